"""State-action value functions, as an ensemble computed in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.networks.mlp import check_widths

Members = Tensor | slice | None
"""Which members of an ensemble are wanted: their numbers, a slice of them, or all."""
_ROWS_IN_CACHE = 1024
"""Rows of one pass over many actions: its activations stay in a processor's second cache."""


class EnsembleLinear(nn.Module):
    """E independent linear layers, ``[E, B, inputs]`` to ``[E, B, outputs]``.

    Initialised as E ``nn.Linear`` would be.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, members: Members = None) -> Tensor:
        """Return ``x @ weight + bias`` for each member, or for some of them."""
        weight: Tensor = self.weight if members is None else self.weight[members]
        bias: Tensor = self.bias if members is None else self.bias[members]
        if weight.shape[-1] == 1:
            # A batched product with one column takes five times as long as this, and its gradient
            # ten times; the gradient's layout would slow down the layer before, too.
            return (x * weight.mT).sum(-1, keepdim=True) + bias
        return torch.baddbmm(bias, x, weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with a scale and a shift for each member, on ``[E, B, width]``."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor, members: Members = None) -> Tensor:
        """Return ``x`` normalised over its last dimension, scaled and shifted."""
        x = functional.layer_norm(x, x.shape[-1:])
        if members is None:
            return torch.addcmul(self.bias, x, self.weight)
        return torch.addcmul(self.bias[members], x, self.weight[members])


class EnsembleCritic(nn.Module):
    """Q functions ``Q_e(obs, action)``: E perceptrons with ReLU in one batched pass.

    Args:
        obs_dim: length of the observation.
        action_size: length of the flattened action chunk.
        hidden: widths of the hidden layers.
        members: number E of Q functions.
        layer_norm: normalise after each hidden linear layer, before its activation.
        norm_last: normalise after the activation in place of before it (ReBRAC's order).
        dropout: chance that an output of a hidden linear layer is 0 (DroQ's order).
        outputs: numbers for each action; with more than one, values are ``[E, B, outputs]``.
    """

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        hidden: Sequence[int],
        members: int = 2,
        layer_norm: bool = False,
        norm_last: bool = False,
        dropout: float = 0.0,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        check_widths(hidden)
        self.members = members
        self._settings: dict[str, Any] = {
            "hidden": hidden,
            "members": members,
            "layer_norm": layer_norm,
            "norm_last": norm_last,
            "dropout": dropout,
            "outputs": outputs,
        }
        layers: list[nn.Module] = []
        inputs = obs_dim + action_size
        for width in hidden:
            layers.append(EnsembleLinear(members, inputs, width))
            if dropout:
                layers.append(nn.Dropout(dropout))
            after: list[nn.Module] = [nn.ReLU(inplace=True)]
            if layer_norm:
                after.insert(1 if norm_last else 0, EnsembleLayerNorm(members, width))
            layers += after
            inputs = width
        layers.append(EnsembleLinear(members, inputs, outputs))
        self.network = nn.Sequential(*layers)

    def for_inputs(self, obs_dim: int, action_size: int) -> EnsembleCritic:
        """Return Q functions with the same settings, for other inputs and with fresh weights."""
        return EnsembleCritic(obs_dim, action_size, **self._settings)

    def forward(self, obs: Tensor, action: Tensor, members: Members = None) -> Tensor:
        """Return values ``[E, B]``.

        Args:
            obs: ``[B, O]``.
            action: a chunk ``[B, H, A]``.
            members: numbers or a slice of the Q functions that are wanted; None for all.
        """
        x = torch.cat([obs, action.flatten(1)], dim=1)
        if isinstance(members, slice):
            count = len(range(self.members)[members])
        else:
            count = self.members if members is None else len(members)
        return self.of_rows(x.expand(count, -1, -1), members)

    def drawn(self, count: int | None) -> Tensor | None:
        """Return the numbers of ``count`` different members, drawn by chance; None: of all."""
        if count is None:
            return None
        device = next(self.parameters()).device
        return torch.randperm(self.members, device=device)[:count]

    def of_actions(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values ``[E, N, B]`` of N actions in each state, as one pass over all would.

        The first layer's product with the observations is computed once, not for each action, and
        the others go over rows few enough for the processor's cache: a fifth faster for CQL.

        Args:
            obs: ``[B, O]``.
            actions: N chunks for each state, ``[N, B, H, A]``.
        """
        flat = actions.flatten(2)
        layers = [layer for layer in self.network if isinstance(layer, EnsembleLinear)]
        if not all(isinstance(layer, EnsembleLinear | nn.ReLU) for layer in self.network):
            rows = torch.cat([obs.expand(len(flat), -1, -1), flat], 2).flatten(0, 1)
            found = self.of_rows(rows.expand(self.members, -1, -1))
            return found.view(self.members, *flat.shape[:2])
        # Unbound at once, so that each weight's gradient is put together once.
        weights = zip(*(layer.weight.unbind() for layer in layers), strict=True)
        biases = zip(*(layer.bias.unbind() for layer in layers), strict=True)
        blocks = flat.split(max(1, _ROWS_IN_CACHE // len(obs)))
        values = []
        for (first, *rest), (shift, *shifts) in zip(weights, biases, strict=True):
            of_obs = torch.addmm(shift, obs, first[: obs.shape[1]])
            of_action, parts = first[obs.shape[1] :], []
            for block in blocks:
                x = (block @ of_action).add_(of_obs).flatten(0, 1)
                for weight, bias in zip(rest, shifts, strict=True):
                    x = torch.addmm(bias, torch.relu_(x), weight)
                parts.append(x.view(len(block), len(obs)))
            values.append(torch.cat(parts))
        return torch.stack(values)

    def of_rows(self, x: Tensor, members: Members = None) -> Tensor:
        """Return values ``[E, B]`` of each member's own rows ``[E, B, inputs]``."""
        for layer in self.network:
            x = layer(x) if isinstance(layer, nn.ReLU | nn.Dropout) else layer(x, members)
        return x.squeeze(-1)
