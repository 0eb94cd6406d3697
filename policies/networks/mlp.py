"""The few network bodies that the policies share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError

Activation = Literal["elu", "gelu", "relu", "silu", "tanh"]
ACTIVATIONS: Mapping[Activation, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


MOST_LAYERS = 256
"""Hidden layers of a perceptron; thousands take minutes to make and to save."""


def check_widths(hidden: Sequence[int]) -> None:
    """Check how many hidden layers there are, and that none is empty.

    Raises:
        TrimtabError: if one is, or there are more than :data:`MOST_LAYERS`.
    """
    if len(hidden) > MOST_LAYERS or min(hidden, default=1) < 1:
        raise TrimtabError(
            f"hidden={list(hidden)[:8]}: at most {MOST_LAYERS} layers, each at least 1 wide"
        )


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    layer_norm: bool = False,
    rms_norm: bool = False,
    activation: Activation = "relu",
) -> nn.Sequential:
    """Return a multilayer perceptron, mapping ``[..., inputs]`` to ``[..., outputs]``.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers.
        outputs: width of the linear output.
        layer_norm: normalise after each hidden linear layer, before its activation (RLPD's order).
        rms_norm: in the same place, divide by the root of the mean square (arXiv 1910.07467).
        activation: a name of ``ACTIVATIONS``.

    Raises:
        TrimtabError: as :func:`check_widths`.
    """
    check_widths(hidden)
    layers: list[nn.Module] = []
    activate = ACTIVATIONS[activation]
    for width in hidden:
        layers.append(nn.Linear(inputs, width))
        if layer_norm:
            layers.append(nn.LayerNorm(width))
        if rms_norm:
            layers.append(nn.RMSNorm(width, eps=1e-6))
        layers.append(activate())
        inputs = width
    layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def orthogonal_(network: nn.Sequential, last_gain: float) -> nn.Sequential:
    """Make every linear layer's weight orthogonal, with bias 0, and return the network.

    The initialisation of on-policy learning (Engstrom et al., arXiv 2005.12729, section 3).

    Args:
        network: what :func:`mlp` returned.
        last_gain: scale of the last layer; that of the others is the square root of 2.
    """
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in linear:
        nn.init.orthogonal_(layer.weight, last_gain if layer is linear[-1] else math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    return network


class DenoisingNetwork(nn.Module):
    """A perceptron over (noisy action chunk, time, observation), for diffusion and flow policies.

    The observation enters through the first layer only, so its share of that layer is computed
    once for all the steps of a sampler (``condition``) and added at each (``forward``).

    Raises:
        TrimtabError: if there is no hidden layer, or as :func:`check_widths`.
    """

    frequencies: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_shape: tuple[int, int],
        hidden: Sequence[int],
        time_dim: int,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        check_widths(hidden)
        if not hidden:
            raise TrimtabError("hidden=[]: a denoiser has at least one hidden layer")
        self.action_shape = action_shape
        flat = math.prod(action_shape)
        exponent = torch.arange(time_dim // 2) / max(time_dim // 2 - 1, 1)
        self.register_buffer("frequencies", math.pi * 64.0**exponent, persistent=False)
        self.obs_layer = nn.Linear(obs_dim, hidden[0])
        self.action_layer = nn.Linear(flat + 2 * (time_dim // 2), hidden[0], bias=False)
        rest = mlp(hidden[0], hidden[1:], flat, activation=activation)
        self.body = nn.Sequential(ACTIVATIONS[activation](), rest)

    def condition(self, obs: Tensor) -> Tensor:
        """Return the observation's share of the first layer, ``[B, hidden]``."""
        share: Tensor = self.obs_layer(obs)
        return share

    def forward(self, action: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Return the network's field at a noisy chunk.

        Args:
            action: noisy normalised chunk ``[B, H, A]``.
            time: position on the path from 0 to 1, ``[B]`` or ``[1]`` for all rows.
            condition: what :meth:`condition` returned, ``[B, hidden]``.

        Returns:
            Predicted noise or velocity ``[B, H, A]``.
        """
        angle = time[:, None] * self.frequencies
        features = torch.cat([angle.sin(), angle.cos()], dim=1)
        if features.shape[0] != action.shape[0]:
            features = features.expand(action.shape[0], -1)
        first = self.action_layer(torch.cat([action.flatten(1), features], dim=1)) + condition
        field: Tensor = self.body(first)
        return field.reshape(-1, *self.action_shape)
