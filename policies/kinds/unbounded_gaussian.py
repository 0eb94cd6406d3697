"""A Gaussian policy whose mean and width depend on the state and that nothing squashes."""

from __future__ import annotations

import math

from torch import Tensor

from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import Obs


class UnboundedGaussianPolicy(TanhGaussianPolicy):
    """``action = mean(obs) + std(obs) * noise`` in normalised units, clipped to the limits.

    The actor of soft actor-critic (Haarnoja et al., arXiv 1812.05905) over a variable without
    limits of its own, such as a decoder's latent: no tanh, and no term of it in the density, which
    is that before the clip. Judged at its mean. Its settings are those of the squashed one.
    """

    built_by_method = True

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        mean, log_std = self.distribution(obs)
        return self.normalizer.raw_action(mean + log_std.exp() * noise)

    def log_density(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the log-density of every raw action of a chunk, ``[B, H]``, before its clip."""
        return self.normalizer.gaussian_log_density(action, *self.distribution(obs))

    def sample_with_log_prob(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised, unclipped actions ``[B, H, A]``, and their log-density ``[B]``."""
        return gaussian_sample(*self.distribution(obs), noise)


def gaussian_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples of Gaussians ``[B, H, A]``, and their log-density ``[B]``.

    Args:
        mean: ``[B, H, A]``.
        log_std: logarithm of the standard deviation, ``[B, H, A]``.
        noise: standard normal, ``[B, H, A]``.
    """
    log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return mean + log_std.exp() * noise, log_prob.sum(dim=(-2, -1))
