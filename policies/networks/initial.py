"""How the weights of perceptrons begin, where a method says more than its library's default."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trimtab.policies.networks.critic import EnsembleLinear

__all__ = ["lecun_uniform_", "near_zero_outputs_", "orthogonal_members_"]


def _linear(network: nn.Sequential) -> list[nn.Linear | EnsembleLinear]:
    return [layer for layer in network if isinstance(layer, nn.Linear | EnsembleLinear)]


def lecun_uniform_(layers: Iterable[nn.Module], inputs: int | None = None) -> None:
    """Make the weights of linear layers uniform with variance 1 / inputs, and their biases 0.

    LeCun et al., "Efficient BackProp" (1998), section 4.6, as JAX has it under this name.

    Args:
        layers: those that are not linear stay as they are.
        inputs: numbers that each layer's outputs are sums over, where other layers add to these
            sums; None: the layer's own.
    """
    for layer in layers:
        if isinstance(layer, nn.Linear):
            bound = math.sqrt(3.0 / (inputs or layer.in_features))
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


@torch.no_grad()
def near_zero_outputs_(network: nn.Sequential, bound: float, bias: float = 0.1) -> None:
    """Give hidden layers one bias, and the last layer uniform weights within ``bound``.

    An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble" (arXiv
    2110.01548), in their code; ReBRAC has it from there.

    Args:
        network: a perceptron, or an ensemble of them.
        bound: of weights and biases of the last layer.
        bias: of the other layers.
    """
    *hidden, last = _linear(network)
    for layer in hidden:
        layer.bias.fill_(bias)
    last.weight.uniform_(-bound, bound)
    last.bias.uniform_(-bound, bound)


@torch.no_grad()
def orthogonal_members_(network: nn.Sequential, last_gain: float) -> None:
    """Make the weights of every member of an ensemble orthogonal, with bias 0.

    Args:
        network: an ensemble of perceptrons.
        last_gain: scale of the last layer; that of the others is the square root of 2.
    """
    layers = _linear(network)
    for layer in layers:
        gain = last_gain if layer is layers[-1] else math.sqrt(2.0)
        members: list[Tensor] = list(layer.weight) if layer.weight.ndim == 3 else [layer.weight]
        for member in members:
            nn.init.orthogonal_(member, gain)
        layer.bias.zero_()
