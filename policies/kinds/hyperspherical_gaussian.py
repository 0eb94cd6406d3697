"""The squashed Gaussian policy of SimbaV2, whose weights and features have norm 1."""

from __future__ import annotations

from torch import Tensor

from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy, spread_tanh
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
    normalizer: RunningNormalizer

    def __init__(self, spec: PolicySpec, *, width: Size = 128, blocks: Count = 1) -> None:
        super().__init__(spec, width=width, blocks=blocks)
        self.normalizer = RunningNormalizer(spec, limit=None)
        self.body = make_body(spec.obs_dim, width, blocks)
        self.mean_head = Head(width, spec.horizon * spec.action_dim)
        self.log_std_head = Head(width, spec.horizon * spec.action_dim)

    def head(self, normalized_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before squashing, each ``[B, H, A]``."""
        features = self.body(normalized_obs)
        mean, log_std = self.mean_head(features), spread_tanh(self.log_std_head(features))
        return mean.reshape(-1, *self.noise_shape), log_std.reshape(-1, *self.noise_shape)
