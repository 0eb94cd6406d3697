"""Limits of a single quantity in closed form, after Student, Wilson and Newcombe.

The intervals of this folder are made of these. A percentile bootstrap of three seeds knows three
numbers and resamples only those; its "95 percent" intervals hold the truth 76 percent of the time.
Closed forms hold their level where the seeds' means are roughly normal, and less where one seed in
a few fails or returns are very skewed. ``benchmarks/results/coverage/`` has the measurement;
``docs/statistics.md`` says which interval is used where, and why.

With one run an interval is over its episodes alone. Every interval contains its estimate, and that
of a rate or a probability lies in [0, 1]. All functions are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from trimtab.benchmarks.board.stats import Array, Interval

__all__ = ["Limits", "combined", "student_quantile", "summed_freedom", "wilson_limits"]

Limits = tuple[float, float]
"""The lower and the upper end of an interval."""


def student_quantile(confidence: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t; of the normal for endless freedom."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(0.5 + confidence / 2.0)
    return float(stdtrit(max(freedom, 1.0), 0.5 + confidence / 2.0))


def summed_freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of variances (Welch 1947, Satterthwaite 1946)."""
    total = sum(variance for variance, _ in parts)
    if total <= 0.0:
        return sum(freedom for _, freedom in parts)
    shares = (((variance / total) ** 2, freedom) for variance, freedom in parts if variance > 0.0)
    inverse = sum(share / freedom for share, freedom in shares)
    return 1.0 / inverse if inverse > 0.0 else math.inf


def wilson_limits(rate: float, episodes: float, quantile: float) -> Limits:
    """Return the limits of Wilson's score interval (1927) of a success rate.

    Args:
        rate: share of successes, in [0, 1].
        episodes: number of episodes above 0, whole or not.
        quantile: two-sided quantile, of the normal or of Student's t.
    """
    square = quantile * quantile
    shrink = 1.0 + square / episodes
    centre = (rate + square / (2.0 * episodes)) / shrink
    spread = rate * (1.0 - rate) / episodes + square / (4.0 * episodes * episodes)
    half = quantile * math.sqrt(spread) / shrink
    # Rounding must not push an end past the rate where the two are equal by algebra.
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))


def combined(values: Sequence[float], limits: Sequence[Limits], weights: Array) -> Interval:
    """Return a weighted sum with limits from those of its independent parts (Newcombe 1998)."""
    value = float(weights @ np.array(values))
    distances = np.array(
        [(x - low, high - x) for x, (low, high) in zip(values, limits, strict=True)]
    )
    below, above = np.sqrt(np.square(weights[:, None] * distances).sum(axis=0))
    return Interval(value, value - float(below), value + float(above))
