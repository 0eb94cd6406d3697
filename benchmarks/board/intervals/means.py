"""Means of the runs of one task, and differences of two such means.

- **Means of returns**: Student's t over the means of the seeds, exact for normal ones. Differences
  are paired by seed where both sides have the same seeds, otherwise after Welch (1947).
- **Means of success rates**: as :mod:`trimtab.benchmarks.board.intervals.rates` says; differences
  combine the limits of both sides as Newcombe (1998) does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from trimtab.benchmarks.board.intervals.limits import (
    combined,
    student_quantile,
    summed_freedom,
    wilson_limits,
)
from trimtab.benchmarks.board.intervals.rates import rate_interval, rate_limits
from trimtab.benchmarks.board.intervals.runs import Runs, start_variance
from trimtab.benchmarks.board.stats import Array, Interval

__all__ = ["difference_interval", "mean_interval", "mean_of"]


def mean_interval(
    runs: Sequence[Array], *, rate: bool = False, confidence: float = 0.95
) -> Interval:
    """Return the mean over runs of the runs' means.

    Args:
        runs: for each run the scores of its episodes ``[E_r]``.
        rate: whether scores are successes, 0 or 1.
        confidence: probability with which the interval is to hold the truth.

    Raises:
        TrimtabError: if a run has no score, a score is not finite, or a rate is not in [0, 1].
    """
    return mean_of(Runs.of(runs, rate, "interval of a mean"), rate, confidence)


def mean_of(runs: Runs, rate: bool, confidence: float) -> Interval:
    """Return what :func:`mean_interval` does, of runs that are checked."""
    if rate:
        return rate_interval(runs, confidence)
    variance, freedom = runs.return_variance()
    half = student_quantile(confidence, freedom) * math.sqrt(variance)
    return Interval(runs.mean, runs.mean - half, runs.mean + half)


def difference_interval(
    method: Mapping[int, Array],
    baseline: Mapping[int, Array],
    *,
    rate: bool = False,
    confidence: float = 0.95,
) -> Interval:
    """Return the mean of a method's runs minus that of a baseline's.

    Runs are paired where both sides have the same seeds, two at least; otherwise the sides are
    taken as independent. Of a side with one run the variance is that of its episodes.

    Args:
        method: for each seed the scores of the run's episodes ``[E]``.
        baseline: the same of the baseline.
        rate: whether scores are successes, 0 or 1.
        confidence: probability with which the interval is to hold the truth.

    Raises:
        TrimtabError: if a run has no score, a score is not finite, or a rate is not in [0, 1].
    """
    seeds, others = sorted(method), sorted(baseline)
    ours = Runs.of([method[seed] for seed in seeds], rate, "interval of a difference")
    theirs = Runs.of([baseline[seed] for seed in others], rate, "interval of a difference")
    paired = seeds == others and ours.count > 1
    if rate:
        return _rate_difference(ours, theirs, paired, confidence)
    value = ours.mean - theirs.mean
    sides = [ours.return_variance(), theirs.return_variance()]
    variance, freedom = sum(side[0] for side in sides), summed_freedom(sides)
    if paired:
        gains = ours.means - theirs.means
        # Equal gains in all seeds: what is left to be unsure of are the episodes.
        variance = float(gains.var(ddof=1)) / len(gains) or float(
            (ours.noise + theirs.noise).sum() / ours.count**2
        )
        variance += start_variance(_gains(ours, theirs))
        freedom = ours.count - 1.0
    half = student_quantile(confidence, freedom) * math.sqrt(variance)
    return Interval(value, value - half, value + half)


def _gains(ours: Runs, theirs: Runs) -> list[Array]:
    """Return the gains of each seed's episodes, in the first starts, which all runs were judged in.

    The runs of a side with more of them vary a little less with their starts than this says.
    """
    shared = int(min(ours.episodes.min(), theirs.episodes.min()))
    pairs = zip(ours.scores, theirs.scores, strict=True)
    return [one[:shared] - other[:shared] for one, other in pairs]


def _rate_difference(ours: Runs, theirs: Runs, paired: bool, confidence: float) -> Interval:
    sides = (ours, theirs)
    if paired:
        # One design effect for both sides: how much more the gains vary than episodes explain.
        gains = ours.means - theirs.means
        binomial = ours.binomial_variance + theirs.binomial_variance
        variance = float(gains.var(ddof=1)) / len(gains) + start_variance(_gains(ours, theirs))
        effect = max(1.0, variance / binomial) if binomial > 0.0 else 1.0
        quantile = student_quantile(confidence, ours.count - 1.0)
        limits = [wilson_limits(side.mean, side.all_episodes / effect, quantile) for side in sides]
    else:
        limits = rate_limits(sides, confidence)
    (low, high), (their_low, their_high) = limits
    return combined([ours.mean, -theirs.mean], [(low, high), (-their_high, -their_low)], np.ones(2))
