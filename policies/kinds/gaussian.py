"""A Gaussian policy of fixed width: the unimodal baseline of behaviour cloning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Positive, Size
from trimtab.types import Batch, Obs, PolicySpec


class GaussianPolicy(Policy):
    """``action = mean(obs) + std * noise`` in normalised units.

    With a fixed width the negative log-likelihood is the mean squared error up to a factor and a
    constant, so cloning this policy is mean-squared-error regression. It is judged at its mean.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        std: standard deviation of each normalised action dimension.
    """

    evaluate_deterministic = True

    adjustable = frozenset({"std"})

    def __init__(
        self, spec: PolicySpec, *, hidden: Sequence[Size] = (256, 256, 256), std: Positive = 0.1
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        self.std = std
        self.network = mlp(spec.obs_dim, hidden, spec.horizon * spec.action_dim)

    def mean(self, obs: Obs) -> Tensor:
        """Return the normalised mean chunk ``[B, H, A]`` for raw ``obs`` ``[B, O]``."""
        mean: Tensor = self.network(self.normalizer.obs(obs))
        return mean.reshape(-1, *self.noise_shape)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.mean(obs) + self.std * noise)

    def log_density(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the log-density of every raw action of a chunk, ``[B, H]``."""
        log_std = torch.full_like(action, math.log(self.std))
        return self.normalizer.gaussian_log_density(action, self.mean(obs), log_std)

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the mean squared error in normalised units."""
        return self.masked_mean(self.bc_errors(batch), batch.valid)

    def bc_errors(self, batch: Batch) -> Tensor:
        """Return the squared error of every entry in normalised units."""
        target = self.normalizer.normalize_action(batch.action)
        return (self.mean(batch.obs) - target).square()
