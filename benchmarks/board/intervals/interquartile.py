"""Interquartile means over the runs of one task, or of several together.

Up to three runs they are means. From eight runs on they have Yuen's t (1974); between, where that
has too few degrees of freedom, the standard error of the mean, times 1.09.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trimtab.benchmarks.board.intervals.limits import (
    student_quantile,
    summed_freedom,
    wilson_limits,
)
from trimtab.benchmarks.board.intervals.means import mean_of
from trimtab.benchmarks.board.intervals.runs import Runs, start_variance
from trimtab.benchmarks.board.stats import Array, Interval, interquartile_mean

__all__ = ["iqm_interval", "trimmed_interval"]

TRIMMING_COST = 1.09
"""Standard error of the interquartile mean over that of the mean, for many normal scores."""
_YUEN_FROM = 8  # runs; below, Yuen's t has less than three degrees of freedom


def iqm_interval(
    runs: Sequence[Array], *, rate: bool = False, confidence: float = 0.95
) -> Interval:
    """Return the interquartile mean over runs of the runs' means; up to three runs have their mean.

    Args:
        runs: as of :func:`~trimtab.benchmarks.board.intervals.means.mean_interval`.
        rate: as there.
        confidence: as there.

    Raises:
        TrimtabError: as there.
    """
    found = Runs.of(runs, rate, "interval of an interquartile mean")
    if found.count < 4:
        return mean_of(found, rate, confidence)
    return trimmed_interval([found], rate, confidence)


def trimmed_interval(tasks: Sequence[Runs], rate: bool, confidence: float) -> Interval:
    """Return the interquartile mean over all runs of all tasks, four at least.

    Yuen's variance (1974) with the winsorised scores' variance taken within tasks; for few runs of
    one task that of the mean.
    """
    scores = np.concatenate([task.means for task in tasks])
    total, cut = len(scores), len(scores) // 4
    kept = total - 2 * cut
    order = np.argsort(scores, kind="stable")
    middle = order[cut : total - cut]
    value = float(interquartile_mean(scores))
    if len(tasks) == 1 and total < _YUEN_FROM:
        variance = TRIMMING_COST**2 * (tasks[0].seed_variance + tasks[0].start_variance)
        freedom = total - 1.0
    else:
        low, high = scores[middle[0]], scores[middle[-1]]
        held = [(np.clip(task.means, low, high), task.count) for task in tasks if task.count > 1]
        parts = [(count * float(kept_.var(ddof=1)), count - 1.0) for kept_, count in held]
        variance = sum(part for part, _ in parts) * (total - 1) / (total * kept * (kept - 1.0))
        freedom = summed_freedom(parts) * (kept - 1.0) / (total - 1.0) if parts else math.inf
        if len(tasks) == 1:
            variance += start_variance(tasks[0].scores, freedom)
    quantile = student_quantile(confidence, freedom)
    half = quantile * math.sqrt(variance)
    if not rate:
        if variance == 0.0:
            half = quantile * math.sqrt(float(tasks[0].noise[middle].sum())) / kept
        return Interval(value, value - half, value + half)
    # Never narrower than the middle half's episodes allow, were they one policy's.
    episodes = np.concatenate([task.episodes for task in tasks])[middle]
    low, high = wilson_limits(value, kept**2 / float((1.0 / episodes).sum()), quantile)
    return Interval(value, max(0.0, min(low, value - half)), min(1.0, max(high, value + half)))
