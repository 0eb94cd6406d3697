"""Networks whose weights keep their lengths, with batch normalisation.

Kim et al., "FlashSAC: Fast and Stable Off-Policy Reinforcement Learning for High-Dimensional Robot
Control" (arXiv 2604.04539), in its code ``flash_rl/agents/flashSAC/layer.py``; Palenicek et al.,
"XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning" (arXiv 2509.25174), in
its code ``xqc/networks/{mlp,common}.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.networks.batch_norm import BatchNorm

__all__ = ["UnitNetwork", "UnitPerceptron"]

_EXPANSION = 4
"""How many times wider than the residual stream the middle of a block is."""
_MOMENTUM = 0.01
"""Share of a batch in the running statistics."""


class UnitNetwork(nn.Module):
    """A network that learns directions: after each step, weights are scaled back to their lengths.

    - embedding:  x = W BN(input)
    - block:      x = x + ReLU(BN(W2 ReLU(BN(W1 x)))),  W1 to four times the width
    - output:     W RMSNorm(x) + b

    Args:
        inputs: width of the input.
        width: of the residual stream.
        outputs: width of the output.
        blocks: number of blocks.
    """

    def __init__(self, inputs: int, width: int, outputs: int, *, blocks: int) -> None:
        super().__init__()
        self.first_norm = BatchNorm(inputs, momentum=_MOMENTUM)
        self.embedding = nn.Linear(inputs, width, bias=False)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.last_norm = nn.RMSNorm(width, eps=1e-6)
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
            x = x + block(x, learning)
        output: Tensor = self.output(self.last_norm(x))
        return output

    @torch.no_grad()
    def project(self) -> None:
        """Scale all weights back, in place.

        Each row of a matrix gets the length 1. The scales and shifts of a batch normalisation get,
        together, the length ``sqrt(width)``, and so do the scales of the last normalisation. The
        bias of the output stays.
        """
        _scale_rows_back(self)
        for layer in self.modules():
            if isinstance(layer, BatchNorm):
                _scale_back(layer.weight, layer.bias)
            elif isinstance(layer, nn.RMSNorm):
                _scale_back(layer.weight)


class _Block(nn.Module):
    """Two layers ``ReLU(BN(W x))``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        middle = _EXPANSION * width
        self.first = nn.Linear(width, middle, bias=False)
        self.first_norm = BatchNorm(middle, momentum=_MOMENTUM)
        self.second = nn.Linear(middle, width, bias=False)
        self.second_norm = BatchNorm(width, momentum=_MOMENTUM)

    def forward(self, x: Tensor, learning: bool) -> Tensor:
        """Return outputs ``[B, outputs]``."""
        x = functional.relu(self.first_norm(self.first(x), learning))
        return functional.relu(self.second_norm(self.second(x), learning))


class UnitPerceptron(nn.Module):
    """A perceptron that learns directions: layers ``x = ReLU(BN(W x))`` on ``BN(input)``.

    The output is ``W x + b``. Scales and shifts of the normalisations are free.

    Args:
        inputs: width of the input.
        width: of the layers.
        outputs: width of the output.
        layers: how many there are before the output.
    """

    def __init__(self, inputs: int, width: int, outputs: int, *, layers: int) -> None:
        super().__init__()
        widths = [inputs, *[width] * layers]
        self.norms = nn.ModuleList(BatchNorm(one, eps=1e-3, momentum=_MOMENTUM) for one in widths)
        self.layers = nn.ModuleList(nn.Linear(one, width, bias=False) for one in widths[:-1])
        self.output = nn.Linear(width, outputs)
        for layer in (*self.layers, self.output):
            assert isinstance(layer, nn.Linear)
            nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(self.output.bias)
        self.project()

    def forward(self, x: Tensor, learning: bool = False) -> Tensor:
        """Return outputs ``[B, outputs]``, as :meth:`UnitNetwork.forward` does."""
        first, *norms = self.norms
        x = first(x, learning)
        for layer, norm in zip(self.layers, norms, strict=True):
            x = functional.relu(norm(layer(x), learning))
        output: Tensor = self.output(x)
        return output

    def project(self) -> None:
        """Give each row of a matrix the length 1, in place. The bias of the output stays."""
        _scale_rows_back(self)


@torch.no_grad()
def _scale_rows_back(network: nn.Module) -> None:
    """Give each row of the matrices of linear layers the length 1."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(functional.normalize(layer.weight, dim=-1, eps=1e-8))


def _scale_back(*vectors: Tensor) -> None:
    """Scale vectors ``[D]`` so that all of them together have the length ``sqrt(D)``."""
    squares = sum((vector.square().sum() for vector in vectors), torch.zeros_like(vectors[0][0]))
    factor = math.sqrt(len(vectors[0])) * (squares + 1e-8).rsqrt()
    for vector in vectors:
        vector.mul_(factor)
