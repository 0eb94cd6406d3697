"""The squashed Gaussian policy of SimbaV2, whose weights and features have norm 1."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.networks.hyperspherical import Head, make_body
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Count, Size
from trimtab.types import Obs, PolicySpec

_LOG_STD = (-10.0, 2.0)
"""Range of the log standard deviation before squashing."""


class HypersphericalGaussianPolicy(Policy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, scaled to the action limits.

    Lee et al., "Hyperspherical Normalization for Scalable Deep Reinforcement Learning" (arXiv
    2502.15280). Observations are normalised by the running statistics of what was seen, without a
    clip. The log standard deviation is a tanh, spread from -10 to 2. Judged at its mode,
    ``noise = 0``.

    Args:
        spec: shapes and limits.
        width: of the features.
        blocks: how many there are after the embedding.
    """

    evaluate_deterministic = True
    built_by_method = True
    normalizer: RunningNormalizer

    def __init__(self, spec: PolicySpec, *, width: Size = 128, blocks: Count = 1) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim), width=width, blocks=blocks)
        self.normalizer = RunningNormalizer(spec, limit=None)
        self.body = make_body(spec.obs_dim, width, blocks)
        self.mean_head = Head(width, spec.horizon * spec.action_dim)
        self.log_std_head = Head(width, spec.horizon * spec.action_dim)

    def distribution(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before squashing, each ``[B, H, A]``."""
        features = self.body(self.normalizer.obs(obs))
        least, most = _LOG_STD
        log_std = least + 0.5 * (most - least) * (1.0 + torch.tanh(self.log_std_head(features)))
        mean = self.mean_head(features)
        return mean.reshape(-1, *self.noise_shape), log_std.reshape(-1, *self.noise_shape)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        mean, log_std = self.distribution(obs)
        return self.normalizer.raw_action(torch.tanh(mean + log_std.exp() * noise))

    def sample_with_log_prob(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions scaled to [-1, 1] ``[B, H, A]``, and their log-density ``[B]``."""
        return squashed_sample(*self.distribution(obs), noise)
