"""A causal transformer, GPT-2's without its table of positions.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): blocks of attention
and of a perceptron, each behind a normalisation and added to what it read. Attention is written
out, so that it becomes plain operations of an exported graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Transformer"]

_DEVIATION = 0.02  # of fresh weights


class Transformer(nn.Module):
    """Maps tokens ``[B, T, E]`` to ``[B, T, E]``; each looks at itself and at those before it.

    With ``causal`` false each looks at those after it too.

    Args:
        width: E, a multiple of ``heads``.
        layers: number of blocks.
        heads: attentions side by side.
        causal: whether a token sees only itself and those before it.
    """

    def __init__(self, width: int, layers: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, there: Tensor, dropout: float = 0.0) -> Tensor:
        """Return what each token has become.

        Args:
            tokens: ``[B, T, E]``.
            there: ``[B, T]`` bool: which of them are no padding; nothing looks at the others.
            dropout: share of the entries that are left out, as is right while learning.
        """
        count = tokens.shape[1]
        past = torch.ones(count, count, dtype=torch.bool, device=tokens.device)
        seen = (past.tril() if self.causal else past) & there[:, None, None, :]  # [B, 1, T, T]
        # What a token of the padding becomes has no meaning, and nothing reads it.
        mask = torch.where(seen, 0.0, -1e4)
        tokens = functional.dropout(tokens, dropout, dropout > 0)
        for block in self.blocks:
            tokens = block(tokens, mask, dropout)
        found: Tensor = self.norm(tokens)
        return found


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (self.attend, self.mix, self.widen, self.narrow):
            nn.init.normal_(layer.weight, std=_DEVIATION)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, mask: Tensor, dropout: float) -> Tensor:
        drop = dropout > 0
        rows, count, width = tokens.shape
        each = self.attend(self.first_norm(tokens))
        query, key, value = each.reshape(rows, count, 3, self.heads, width // self.heads).permute(
            2, 0, 3, 1, 4
        )  # [B, heads, T, E / heads]
        score = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        weight = functional.dropout(score.softmax(-1), dropout, drop)
        mixed = self.mix((weight @ value).transpose(1, 2).reshape(rows, count, width))
        tokens = tokens + functional.dropout(mixed, dropout, drop)
        wide = self.narrow(self.widen(self.second_norm(tokens)).relu())
        found: Tensor = tokens + functional.dropout(wide, dropout, drop)
        return found
