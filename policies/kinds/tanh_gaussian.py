"""The squashed Gaussian policy of soft actor-critic."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import Activation, mlp
from trimtab.policies.normalizer import Normalizer
from trimtab.settings import Positive, Size
from trimtab.types import Obs, PolicySpec

_INSIDE = 1.0 - 1e-4
"""Scaled actions are moved this far inside before their density is asked for: at 1 it has none."""


class SquashedGaussianPolicy(Policy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, scaled to the action limits.

    What policies of this form share, whichever network gives mean and width. Judged at its mode,
    ``noise = 0``.

    Attributes:
        network: from normalised observations ``[B, O]`` to means and log standard deviations, one
            after another; a child sets it.

    Args:
        spec: shapes and limits.
    """

    evaluate_deterministic = True
    network: Any

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))

    @property
    @abstractmethod
    def log_std_range(self) -> tuple[float, float] | None:
        """What log standard deviations are clipped to; None: a tanh spreads them from -10 to 2."""

    def head(self, normalized_obs: Tensor, **mode: bool) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before squashing, each ``[B, H, A]``.

        Args:
            normalized_obs: ``[B, O]``.
            mode: passed to the network: ``learning=True`` where batch normalisation goes by the
                batch's own statistics, and the running ones follow.
        """
        mean, log_std = self.network(normalized_obs, **mode).chunk(2, dim=-1)
        limits = self.log_std_range
        log_std = spread_tanh(log_std) if limits is None else log_std.clamp(*limits)
        return mean.reshape(-1, *self.noise_shape), log_std.reshape(-1, *self.noise_shape)

    def distribution(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Return what :meth:`head` does, for raw observations ``[B, O]``."""
        return self.head(self.normalizer.obs(obs))

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        mean, log_std = self.distribution(obs)
        return self.normalizer.raw_action(torch.tanh(mean + log_std.exp() * noise))

    def log_density(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the log-density of every raw action of a chunk, ``[B, H]``."""
        mean, log_std = self.distribution(obs)
        inside = self.normalizer.normalize_action(action).clamp(-_INSIDE, _INSIDE)
        raw = torch.atanh(inside)
        gaussian = 0.5 * ((raw - mean) * (-log_std).exp()).square() + log_std
        slope = torch.log1p(-inside.square()) + self.normalizer.action_scale.log()
        return -(gaussian + slope + 0.5 * math.log(2 * math.pi)).sum(-1)

    def sample_with_log_prob(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions scaled to [-1, 1] ``[B, H, A]``, and their log-density ``[B]``.

        The density is that of the scaled action, as in the published code.
        """
        return squashed_sample(*self.distribution(obs), noise)


class TanhGaussianPolicy(SquashedGaussianPolicy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, scaled to the action limits.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", appendix C. Judged at its
    mode, ``noise = 0``.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        layer_norm: normalise after each hidden layer.
        log_std_min: lower bound of the log standard deviation (a clamp).
        log_std_max: upper bound of the log standard deviation (a clamp).
        activation: of the hidden layers: relu, tanh, elu, gelu or silu.
        obs_limit: normalised observations are clipped to ``[-obs_limit, obs_limit]``; None: they
            are not.

    Raises:
        TrimtabError: if an action limit is not finite, or ``obs_limit`` is not above 0.
    """

    log_std_range: tuple[float, float] = (-5.0, 2.0)

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = False,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
        activation: Activation = "relu",
        obs_limit: Positive | None = None,
    ) -> None:
        super().__init__(spec)
        if obs_limit is None:
            self._keywords.pop("obs_limit", None)  # which published configs lack
        else:
            self._clip_observations(obs_limit)
        self.log_std_range = (log_std_min, log_std_max)
        flat = spec.horizon * spec.action_dim
        self.network = mlp(
            spec.obs_dim, hidden, 2 * flat, layer_norm=layer_norm, activation=activation
        )

    def read_observations_as(self, normalizer: Normalizer) -> None:
        """Normalise observations as ``normalizer`` does now, its clip included."""
        if normalizer.limit is not None:
            self._clip_observations(normalizer.limit)
        self.normalizer.obs_shift.copy_(normalizer.obs_shift)
        self.normalizer.obs_scale.copy_(normalizer.obs_scale)


def spread_tanh(output: Tensor, low: float = -10.0, high: float = 2.0) -> Tensor:
    """Return a network's output, squashed by a tanh and spread from ``low`` to ``high``.

    The defaults are those of log standard deviations in BRC, SimbaV2 and FlashSAC.
    """
    return low + 0.5 * (high - low) * (1.0 + output.tanh())


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions in [-1, 1] ``[..., B, H, A]``, and their log-density ``[..., B]``.

    Args:
        mean: before squashing, ``[B, H, A]``.
        log_std: log standard deviation before squashing, ``[B, H, A]``.
        noise: standard normal, ``[..., B, H, A]``: one sample of each row, or several.
    """
    raw = mean + log_std.exp() * noise
    # log N(raw) - log |d tanh(raw) / d raw|, the latter as 2 (log 2 - raw - softplus(-2 raw)).
    log_prob = 2.0 * (raw + functional.softplus(-2.0 * raw)) - 0.5 * noise.square() - log_std
    constant = 2.0 * math.log(2.0) + 0.5 * math.log(2 * math.pi)
    return torch.tanh(raw), (log_prob - constant).sum(dim=(-2, -1))
