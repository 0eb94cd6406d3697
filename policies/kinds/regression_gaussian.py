"""A Gaussian policy of learned width that is fitted to actions: IQL's and AWAC's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, NonNegative, Size
from trimtab.types import Batch, Obs, PolicySpec

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class RegressionGaussianPolicy(Policy):
    """``action = mean(obs) + std * noise`` in normalised units, clipped to the limits of the spec.

    Its width is learned and the same in every state. What it is fitted to are actions within the
    limits, so their density is the Gaussian's own: nothing squashes a sample (Kostrikov et al.,
    "Offline Reinforcement Learning with Implicit Q-Learning", arXiv 2110.06169; Nair et al.,
    "AWAC", arXiv 2006.09359). Judged at its mean.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        tanh_mean: whether the mean is a tanh, as in IQL, or has no bound, as in AWAC.
        log_std_min: lower bound of the log standard deviation (a clamp), which is 0 at the start.
        log_std_max: upper bound of the log standard deviation (a clamp).

    Raises:
        TrimtabError: if the bounds leave 0 out.

    Attributes:
        told: how many numbers its network reads beside the observation.
    """

    evaluate_deterministic = True
    told: ClassVar[int] = 0

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256),
        tanh_mean: bool = True,
        log_std_min: Annotated[float, Bounds(most=0)] = -20.0,
        log_std_max: NonNegative = 2.0,
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        self.tanh_mean, self.log_std_range = tanh_mean, (log_std_min, log_std_max)
        self.network = mlp(spec.obs_dim + self.told, hidden, spec.horizon * spec.action_dim)
        self.free_log_std = nn.Parameter(torch.zeros(shape))

    @property
    def log_std(self) -> Tensor:
        """The log standard deviation of each entry, ``[H, A]``."""
        return self.free_log_std.clamp(*self.log_std_range)

    def mean(self, obs: Obs) -> Tensor:
        """Return normalised means ``[B, H, A]`` for raw ``obs`` ``[B, O]``."""
        return self.head(self.normalizer.obs(obs))

    def head(self, read: Tensor) -> Tensor:
        """Return normalised means ``[B, H, A]`` for what the network reads ``[B, O + told]``."""
        mean: Tensor = self.network(read)
        mean = torch.tanh(mean) if self.tanh_mean else mean
        return mean.reshape(-1, *self.noise_shape)

    def clipped(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return normalised actions ``[B, H, A]``, clipped to [-1, 1]."""
        return torch.addcmul(self.mean(obs), self.log_std.exp(), noise).clamp(-1.0, 1.0)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.clipped(obs, noise))

    def log_density(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the log-density of every raw action of a chunk, ``[B, H]``, before its clip."""
        return self.normalizer.gaussian_log_density(action, self.mean(obs), self.log_std)

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the mean negative log-density of an entry, in normalised units."""
        return self.masked_mean(self.bc_errors(batch), batch.valid)

    def bc_errors(self, batch: Batch) -> Tensor:
        """Return the negative log-density of every entry in normalised units."""
        return self.errors_of(self.mean(batch.obs), batch.action)

    def errors_of(self, mean: Tensor, action: Tensor) -> Tensor:
        """Return the negative log-density of raw actions under ``mean``, each ``[B, H, A]``."""
        target = self.normalizer.normalize_action(action)
        log_std = self.log_std
        scaled = (target - mean) * (-log_std).exp()
        return 0.5 * scaled.square() + (log_std + _LOG_ROOT_TWO_PI)
