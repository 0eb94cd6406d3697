"""The squashed Gaussian policy of SimbaV2, whose weights and features have norm 1."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy
from trimtab.policies.networks.hyperspherical import Head, make_body
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Count, Size
from trimtab.types import PolicySpec


class HypersphericalGaussianPolicy(SquashedGaussianPolicy):
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

    built_by_method = True
    log_std_range = None
    normalizer: RunningNormalizer

    def __init__(self, spec: PolicySpec, *, width: Size = 128, blocks: Count = 1) -> None:
        super().__init__(spec)
        self.normalizer = RunningNormalizer(spec, limit=None)
        self.body = make_body(spec.obs_dim, width, blocks)
        self.mean_head = Head(width, spec.horizon * spec.action_dim)
        self.log_std_head = Head(width, spec.horizon * spec.action_dim)

    def network(self, normalized_obs: Tensor) -> Tensor:
        """Return means and log standard deviations ``[B, 2 H A]``, one after another."""
        features = self.body(normalized_obs)
        return torch.cat([self.mean_head(features), self.log_std_head(features)], dim=-1)
