"""A Gaussian policy whose width is learned and does not depend on the state: PPO's and TRPO's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import Activation, mlp, orthogonal_
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Positive, Size
from trimtab.types import Obs, PolicySpec

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class DiagonalGaussianPolicy(Policy):
    """``action = mean(obs) + std * noise`` in normalised units, clipped to the limits of the spec.

    Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), section 6.1. The
    likelihood is that of the action *before* it is clipped, which is what on-policy methods have to
    keep beside the action that was executed (:meth:`unclipped`). Judged at its mean.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        activation: of the hidden layers: relu, tanh, elu, gelu or silu.
        initial_log_std: logarithm of the width at the start.
        normalize_observations: keep a running mean and standard deviation of observations.
        obs_limit: normalised observations are clipped to ``[-obs_limit, obs_limit]``; None: they
            are not, and those with running statistics are clipped at 10.

    Raises:
        TrimtabError: if ``obs_limit`` is not above 0.
    """

    evaluate_deterministic = True
    neutral = MappingProxyType({"obs_limit": None})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (64, 64),
        activation: Activation = "tanh",
        initial_log_std: float = 0.0,
        normalize_observations: bool = False,
        obs_limit: Positive | None = None,
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        if obs_limit is not None:
            self._clip_observations(obs_limit)
        if normalize_observations:
            self.normalizer = RunningNormalizer(spec, 10.0 if obs_limit is None else obs_limit)
        flat = spec.horizon * spec.action_dim
        network = mlp(spec.obs_dim, hidden, flat, activation=activation)
        self.network = orthogonal_(network, last_gain=0.01)
        self.log_std = nn.Parameter(torch.full(shape, float(initial_log_std)))

    def head(self, normalized_obs: Tensor) -> Tensor:
        """Return normalised means ``[B, H, A]`` for observations already normalised ``[B, O]``."""
        mean: Tensor = self.network(normalized_obs)
        return mean.reshape(-1, *self.noise_shape)

    def mean(self, obs: Obs) -> Tensor:
        """Return normalised means ``[B, H, A]`` for raw ``obs`` ``[B, O]``."""
        return self.head(self.normalizer.obs(obs))

    def unclipped(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return normalised actions ``[B, H, A]`` before they are clipped."""
        return torch.addcmul(self.mean(obs), self.log_std.exp(), noise)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.unclipped(obs, noise))

    def log_density(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the log-density of every raw action of a chunk, ``[B, H]``, before its clip."""
        return self.normalizer.gaussian_log_density(action, self.mean(obs), self.log_std)

    def log_prob(self, mean: Tensor, unclipped: Tensor) -> Tensor:
        """Return the log-density ``[B]`` of normalised, unclipped actions under ``mean``."""
        scaled = (unclipped - mean) * (-self.log_std).exp()
        constant = self.log_std.sum() + _LOG_ROOT_TWO_PI * self.log_std.numel()
        return -0.5 * scaled.square().sum((1, 2)) - constant

    def entropy(self) -> Tensor:
        """Return the entropy of the unclipped action, a scalar: it is the same in every state."""
        return self.log_std.sum() + self.log_std.numel() * (0.5 + _LOG_ROOT_TWO_PI)


def gaussian_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return KL(N(mean, std) || N(other_mean, other_std)) ``[B]`` of diagonal Gaussians.

    Args:
        mean: ``[B, H, A]``.
        log_std: ``[H, A]``.
        other_mean: ``[B, H, A]``.
        other_log_std: ``[H, A]``.
    """
    variance_ratio = (2 * (log_std - other_log_std)).exp()
    shift = ((mean - other_mean) * (-other_log_std).exp()).square()
    return 0.5 * (variance_ratio + shift - 1 - 2 * (log_std - other_log_std)).sum((1, 2))
