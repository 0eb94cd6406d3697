"""Perceptrons that the codes of papers take as an input, and their weights by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Value", "named", "perceptron", "take"]


def perceptron(widths: Sequence[int], activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    """Return linear layers from each width to the next, with activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class Value(nn.Module):
    """V, a perceptron over the observations of a condition."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = perceptron([settings["obs_dim"], *settings["hidden"], 1], nn.SiLU)

    def forward(self, cond: Mapping[str, Tensor]) -> Tensor:
        """Return values ``[B, 1]``."""
        found: Tensor = self.network(cond["state"].flatten(1))
        return found


def named(network: nn.Module, name: str) -> dict[str, Tensor]:
    """Return the weights of linear layers by name, such as ``actor 0 weight``."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return {
        f"{name} {index} {kind}": getattr(layer, kind)
        for index, layer in enumerate(layers)
        for kind in ("weight", "bias")
    }


@torch.no_grad()
def take(network: nn.Module, name: str, inputs: Mapping[str, Any]) -> None:
    """Take the weights that the question gives."""
    for word, weight in named(network, name).items():
        weight.copy_(torch.from_numpy(inputs[f"start {word}"]))
