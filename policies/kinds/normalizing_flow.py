"""A normalising flow of additive couplings, whose actions have an exact density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.base import Policy
from trimtab.policies.kinds.tanh_gaussian import spread_tanh
from trimtab.policies.networks.swish import SwishNetwork
from trimtab.settings import Bounds, Size
from trimtab.types import Obs, PolicySpec

_INSIDE = 1.0 - 1e-5
"""Scaled actions are moved this far inside before their density is asked for: at 1 it has none."""


class Coupling(nn.Module):
    """``x + (1 - mask) * shift(mask * x, obs)``: one part moves by what the other part says.

    Dinh et al., "NICE: Non-linear Independent Components Estimation" (arXiv 1410.8516), section
    3.2. It keeps volumes, so the logarithm of its determinant is 0.

    Args:
        obs_dim: length of the observation.
        mask: ``[D]``, 1 for the entries that stay.
        hidden: widths of the hidden layers.
    """

    mask: Tensor

    def __init__(self, obs_dim: int, mask: Tensor, hidden: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)
        size = len(mask)
        self.network = SwishNetwork(
            size + obs_dim, hidden, size, initialize=nn.init.orthogonal_, layer_norm=True
        )

    def shift(self, x: Tensor, obs: Tensor, dropout: float = 0.0) -> Tensor:
        """Return by how much points ``[..., D]`` move; it depends only on what stays of them."""
        moved: Tensor = self.network(torch.cat([self.mask * x, obs], dim=-1), dropout)
        return (1.0 - self.mask) * moved


class NormalizingFlowPolicy(Policy):
    """``action = tanh(T(std(obs) * noise, obs))``, with T a stack of additive couplings.

    The policy of MEow (Chao et al., arXiv 2405.13629, and its public code). As T keeps volumes,

    - log pi(a|s) = energy(a, s) - log Z(s)
    - energy = -|T^-1(atanh a) / std|^2 / 2 - sum log (1 - a^2),  log Z = sum log std + D/2 log 2 pi

    and before the squashing the density has one maximum only, the image of the prior's mean, which
    is the action at ``noise = 0``. Actions of the density are scaled to [-1, 1].

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers of prior and couplings.
        layers: number of layers, each of two couplings.
        log_std_min: lower bound of the prior's log standard deviation, by a tanh.
        log_std_max: upper bound of it.
    """

    evaluate_deterministic = True
    built_by_method = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (64, 64),
        layers: Size = 2,
        log_std_min: Annotated[float, Bounds(least=-20)] = -5.0,
        log_std_max: Annotated[float, Bounds(least_of="log_std_min", most=20)] = -0.3,
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        self.log_std_range = (log_std_min, log_std_max)
        self.size = spec.horizon * spec.action_dim
        self.prior = SwishNetwork(spec.obs_dim, hidden, self.size, initialize=nn.init.zeros_)
        even = 1.0 - torch.arange(self.size).remainder(2).float()
        self.couplings = nn.ModuleList(
            Coupling(spec.obs_dim, mask, hidden)
            for _ in range(layers)
            for mask in (even, 1.0 - even)
        )

    def log_std(self, obs: Tensor) -> Tensor:
        """Return the prior's log standard deviation ``[..., D]`` at normalised observations."""
        return spread_tanh(self.prior(obs), *self.log_std_range)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        features = self.normalizer.obs(obs)
        x = self.log_std(features).exp() * noise.flatten(1)
        for coupling in self.couplings:
            assert isinstance(coupling, Coupling)
            x = x + coupling.shift(x, features)
        return self.normalizer.raw_action(torch.tanh(x).reshape(-1, *self.noise_shape))

    def inverse(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the noise ``[..., D]`` of scaled actions, and the energy's log-slope ``[...]``.

        Args:
            obs: normalised observations ``[..., O]``.
            action: chunks scaled to [-1, 1] ``[..., H, A]``, moved inside by 1e-5.
            dropout: share of the couplings' hidden numbers that are left out, while learning.

        Returns:
            The noise, and the sum of ``log (1 - a^2)``.
        """
        x = torch.atanh(action.flatten(-2).clamp(-_INSIDE, _INSIDE))
        # log (1 - tanh(x)^2) as 2 (log 2 - x - softplus(-2 x)).
        log_slope = 2.0 * (math.log(2.0) - x - functional.softplus(-2.0 * x)).sum(-1)
        for coupling in reversed(self.couplings):
            assert isinstance(coupling, Coupling)
            x = x - coupling.shift(x, obs, dropout)
        return x * (-self.log_std(obs)).exp(), log_slope

    def energy(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """Return the logarithm of the density before it is normalised, ``[...]``.

        The arguments are those of :meth:`inverse`.
        """
        noise, log_slope = self.inverse(obs, action, dropout)
        return -0.5 * noise.square().sum(-1) - log_slope

    def log_normalizer(self, obs: Tensor) -> Tensor:
        """Return log Z, the logarithm of the integral of exp energy over the box, ``[...]``."""
        return self.log_std(obs).sum(-1) + 0.5 * self.size * math.log(2 * math.pi)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of scaled chunks; the arguments are as above."""
        return self.energy(obs, action) - self.log_normalizer(obs)
