"""Perceptrons with a learned swish."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.networks.mlp import check_widths

__all__ = ["SwishNetwork"]


class SwishNetwork(nn.Module):
    """A perceptron with ``x * sigmoid(slope * x)``, ``[..., inputs]`` to ``[..., outputs]``.

    Ramachandran et al., "Searching for Activation Functions" (arXiv 1710.05941), section 5, with a
    learned slope for each hidden unit, 1 at first.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers.
        outputs: width of the linear output.
        initialize: sets the weights of each linear layer, such as ``nn.init.zeros_``; biases begin
            as torch has them.
        layer_norm: normalise after each hidden linear layer, before its activation.

    Raises:
        TrimtabError: as :func:`~trimtab.policies.networks.mlp.check_widths`.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        initialize: Callable[[Tensor], Tensor],
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        check_widths(hidden)
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        self.slopes = nn.ParameterList()
        for width in hidden:
            self.layers.append(nn.Linear(inputs, width))
            self.norms.append(nn.LayerNorm(width) if layer_norm else nn.Identity())
            self.slopes.append(nn.Parameter(torch.ones(width)))
            inputs = width
        self.last = nn.Linear(inputs, outputs)
        for layer in (*self.layers, self.last):
            assert isinstance(layer, nn.Linear)
            initialize(layer.weight)

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        """Return the outputs; ``dropout`` is the share of hidden numbers that are left out."""
        for layer, norm, slope in zip(self.layers, self.norms, self.slopes, strict=True):
            x = norm(layer(x))
            x = functional.dropout(x * torch.sigmoid(slope * x), dropout, dropout > 0)
        outputs: Tensor = self.last(x)
        return outputs
