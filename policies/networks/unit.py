"""Networks whose weights keep their lengths, with batch normalisation.

Kim et al., "FlashSAC: Fast and Stable Off-Policy Reinforcement Learning for High-Dimensional Robot
Control" (arXiv 2604.04539), in its code ``flash_rl/agents/flashSAC/layer.py``; the plain form is
that of Palenicek et al., "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement
Learning" (arXiv 2509.25174), in its code ``xqc/networks/mlp.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.networks.batch_norm import BatchNorm

__all__ = ["UnitNetwork"]

_EXPANSION = 4
"""How many times wider than the residual stream the middle of a block is."""
_MOMENTUM = 0.01
"""Share of a batch in the running statistics."""


class UnitNetwork(nn.Module):
    """A network that learns directions: after each step, weights are scaled back to their lengths.

    - embedding:  x = W BN(input)
    - block:      x = x + ReLU(BN(W2 ReLU(BN(W1 x)))),  W1 to four times the width
    - output:     W RMSNorm(x) + b

    Without ``residual`` it is a perceptron: a block is two layers ``x = ReLU(BN(W x))`` of one
    width, the first of them on ``BN(input)``, and the output is ``W x + b``.

    Args:
        inputs: width of the input.
        width: of the residual stream, or of the layers.
        outputs: width of the output.
        blocks: number of blocks.
        residual: whether a block's input is added to what it computes.
    """

    def __init__(
        self, inputs: int, width: int, outputs: int, *, blocks: int, residual: bool = True
    ) -> None:
        super().__init__()
        self.residual = residual
        middle = _EXPANSION * width if residual else width
        self.first_norm = BatchNorm(inputs, momentum=_MOMENTUM)
        self.embedding = nn.Linear(inputs, width, bias=False) if residual else nn.Identity()
        self.blocks = nn.ModuleList(
            _Block(width if residual or number else inputs, middle, width)
            for number in range(blocks)
        )
        self.last_norm = nn.RMSNorm(width, eps=1e-6) if residual else nn.Identity()
        self.output = nn.Linear(width, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(self.output.bias)
        self.project()

    def forward(self, x: Tensor, learning: bool = False) -> Tensor:
        """Return outputs ``[B, outputs]`` of inputs ``[B, inputs]``.

        Args:
            x: inputs.
            learning: whether the batch's own statistics normalise it, and the running ones follow.
        """
        x = self.embedding(self.first_norm(x, learning))
        for block in self.blocks:
            x = x + block(x, learning) if self.residual else block(x, learning)
        output: Tensor = self.output(self.last_norm(x))
        return output

    @torch.no_grad()
    def project(self) -> None:
        """Scale all weights back, in place.

        Each row of a matrix gets the length 1. The scales and shifts of a batch normalisation get,
        together, the length ``sqrt(width)``, and so do the scales of the last normalisation. The
        bias of the output stays.
        """
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(functional.normalize(layer.weight, dim=-1, eps=1e-8))
            elif isinstance(layer, BatchNorm):
                _scale_back(layer.weight, layer.bias)
            elif isinstance(layer, nn.RMSNorm):
                _scale_back(layer.weight)


class _Block(nn.Module):
    """Two layers ``ReLU(BN(W x))``."""

    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, middle, bias=False)
        self.first_norm = BatchNorm(middle, momentum=_MOMENTUM)
        self.second = nn.Linear(middle, outputs, bias=False)
        self.second_norm = BatchNorm(outputs, momentum=_MOMENTUM)

    def forward(self, x: Tensor, learning: bool) -> Tensor:
        """Return outputs ``[B, outputs]``."""
        x = functional.relu(self.first_norm(self.first(x), learning))
        return functional.relu(self.second_norm(self.second(x), learning))


def _scale_back(*vectors: Tensor) -> None:
    """Scale vectors ``[D]`` so that all of them together have the length ``sqrt(D)``."""
    squares = sum((vector.square().sum() for vector in vectors), torch.zeros_like(vectors[0][0]))
    factor = math.sqrt(len(vectors[0])) * (squares + 1e-8).rsqrt()
    for vector in vectors:
        vector.mul_(factor)
