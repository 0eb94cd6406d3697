"""Residual perceptrons with layer normalisation (BroNet).

Nauman et al., "Bigger, Regularized, Optimistic: Scaling for Compute and Sample Efficient Continuous
Control" (arXiv 2405.16158), section 3, in the code of BRC (naumix/BiggerRegularizedCategorical,
``jaxrl/networks.py``).
"""

from __future__ import annotations

import math

from torch import Tensor, nn

__all__ = ["BroNet"]


class BroNet(nn.Module):
    """``[B, inputs]`` to ``[B, outputs]``, of linear layers W, each with a bias, and LayerNorm.

    - first:   x = ReLU(LN(W x))
    - block:   x = x + LN(W2 ReLU(LN(W1 x)))
    - output:  W x

    All weights begin orthogonal with gain sqrt(2), biases with 0.

    Args:
        inputs: width of the input.
        width: of all layers.
        outputs: width of the output.
        blocks: number of blocks.
    """

    def __init__(self, inputs: int, width: int, outputs: int, *, blocks: int) -> None:
        super().__init__()
        # Flax adds 1e-6 to a variance where torch adds 1e-5.
        self.first = nn.Sequential(
            nn.Linear(inputs, width), nn.LayerNorm(width, eps=1e-6), nn.ReLU()
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width),
                nn.LayerNorm(width, eps=1e-6),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.LayerNorm(width, eps=1e-6),
            )
            for _ in range(blocks)
        )
        self.output = nn.Linear(width, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        output: Tensor = self.output(x)
        return output
