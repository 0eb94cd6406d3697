"""The transformer of ACT: from states to a whole chunk of actions at once.

Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (arXiv
2304.13705), by LeRobot's code, whose names the modules have, so that its weights load. Attention is
written out, so that it becomes plain operations of an exported graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.networks.mlp import ACTIVATIONS

__all__ = ["ActionTransformer"]


class ActionTransformer(nn.Module):
    """Maps states ``[B, O]`` to chunks ``[B, H, A]``.

    An encoder looks at one token for each group of states, and at one for the style of a
    demonstration, which is zero where the policy acts. A decoder makes each action of it.

    Args:
        sizes: numbers of each group of states, one after another.
        chunk: actions H.
        actions: numbers A of an action.
        width: of a token, a multiple of ``heads``; this and the others are settings of
            :class:`~trimtab.policies.kinds.action_transformer.ActionTransformerPolicy`.

    Raises:
        TrimtabError: if ``width`` is no multiple of ``heads``.
    """

    def __init__(
        self, sizes: Sequence[int], chunk: int, actions: int, *, width: int, heads: int,
        feedforward: int, encoders: int, decoders: int, activation: Literal["relu", "gelu"],
        norm_first: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        if width % heads:
            raise TrimtabError(f"width={width} must be a multiple of heads={heads}")
        self.sizes = list(sizes)
        layer = (width, heads, feedforward, activation, norm_first)
        self.inputs = nn.ModuleList(nn.Linear(size, width) for size in sizes)
        self.style = nn.Parameter(torch.zeros(width))
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + len(sizes), width)
        self.encoder = _Stack(encoders, False, layer, norm_first)
        self.decoder = _Stack(decoders, True, layer, True)
        self.decoder_pos_embed = nn.Embedding(chunk, width)
        self.action_head = nn.Linear(width, actions)

    def forward(self, states: Tensor) -> Tensor:
        """Return chunks ``[B, H, A]`` of states ``[B, O]``."""
        read = [layer(x) for layer, x in
                zip(self.inputs, states.split(self.sizes, dim=-1), strict=True)]  # fmt: skip
        tokens = torch.stack([self.style.expand_as(read[0]), *read], dim=1)
        places = self.encoder_1d_feature_pos_embed.weight
        seen = self.encoder(tokens, places)
        queries = self.decoder_pos_embed.weight
        blank = torch.zeros_like(queries).expand(states.shape[0], -1, -1)
        result: Tensor = self.action_head(self.decoder(blank, queries, seen, seen + places))
        return result


class _Stack(nn.Module):
    """Layers one after another, maybe with a normalisation at the end."""

    def __init__(
        self, count: int, decodes: bool, layer: tuple[int, int, int, str, bool], normed: bool
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(decodes, *layer) for _ in range(count))
        self.norm = nn.LayerNorm(layer[0]) if normed else nn.Identity()

    def forward(self, x: Tensor, places: Tensor, *seen: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, places, *seen)
        result: Tensor = self.norm(x)
        return result


class _Layer(nn.Module):
    """Attention to one another, to what an encoder has seen if it decodes, and a perceptron."""

    def __init__(
        self, decodes: bool, width: int, heads: int, feedforward: int, activation: str,
        norm_first: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_first = norm_first
        self.self_attn = _Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if decodes:
            self.multihead_attn, self.norm3 = _Attention(width, heads), nn.LayerNorm(width)
        self.linear1, self.linear2 = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.act = ACTIVATIONS[activation]()  # type: ignore[index]

    def forward(self, x: Tensor, places: Tensor, *seen: Tensor) -> Tensor:
        """Return the next tokens; ``seen`` are the encoder's, and the same with their places."""
        x = self.add(x, self.norm1, lambda y: self.self_attn(y + places, y + places, y))
        if seen:
            value, key = seen
            x = self.add(x, self.norm2, lambda y: self.multihead_attn(y + places, key, value))
        last = self.norm3 if seen else self.norm2
        return self.add(x, last, lambda y: self.linear2(self.act(self.linear1(y))))

    def add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        result: Tensor = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return result


class _Attention(nn.Module):
    """Attention of several heads, with the tensors of ``torch.nn.MultiheadAttention``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            nn.functional.linear(x, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )  # [B, heads, tokens, width / heads]
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        result: Tensor = self.out_proj((score.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return result
