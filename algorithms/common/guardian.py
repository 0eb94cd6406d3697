"""What tells whether a point is where the data is: a kernel density and a percentile of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Guardian"]

_SMALLEST_RANGE = 1e-4  # of a number that is not constant


class Guardian(nn.Module):
    """A Gaussian kernel density of reference points, and the least density that counts as inside.

    Points are scaled to [-1, 1] by the references' range. The density of a point is the mean of
    ``exp(-|x - x_i|^2 / (2 s^2))`` over references x_i, and the least one a percentile of the
    references' own densities, each among the others. Before there are references, every point is
    inside.

    Args:
        size: numbers of a point.
        references: points that are kept, the newest; at least 2.
        bandwidth: s.
        percentile: share of the references that counts as outside, in percent.
    """

    points: Tensor
    low: Tensor
    high: Tensor
    threshold: Tensor

    def __init__(self, size: int, references: int, bandwidth: float, percentile: float) -> None:
        super().__init__()
        self.bandwidth, self.percentile = bandwidth, percentile
        self.register_buffer("points", torch.zeros(references, size))
        self.register_buffer("low", torch.zeros(size))
        self.register_buffer("high", torch.ones(size))
        self.register_buffer("threshold", torch.zeros(()))

    @torch.no_grad()
    def take(self, points: Tensor) -> None:
        """Keep points ``[B, D]`` in the place of the oldest, and fit scale and threshold to all."""
        kept = len(self.points)
        self.points.copy_(torch.cat([self.points, points])[-kept:])
        self.low.copy_(self.points.amin(0))
        self.high.copy_(self.points.amax(0))
        among_others = (kept * self.density(self.points) - 1) / (kept - 1)
        self.threshold.copy_(among_others.quantile(self.percentile / 100))

    def density(self, points: Tensor) -> Tensor:
        """Return the density ``[B]`` at points ``[B, D]``, but for a constant factor."""
        x, references = self._scaled(points), self._scaled(self.points)
        products = x @ references.T
        apart = x.square().sum(1, keepdim=True) + references.square().sum(1) - 2 * products
        return (apart.clamp_min(0) / (-2 * self.bandwidth**2)).exp().mean(1)

    @torch.no_grad()
    def inside(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return whether pairs are where the data is, ``[B]``: ``[B, O]`` and ``[B, H, A]``."""
        return self.density(torch.cat([obs, action.flatten(1)], dim=1)) >= self.threshold

    def _scaled(self, points: Tensor) -> Tensor:
        width = self.high - self.low
        width = torch.where(width > _SMALLEST_RANGE, width, torch.full_like(width, 2.0))
        return 2 * (points - self.low) / width - 1
