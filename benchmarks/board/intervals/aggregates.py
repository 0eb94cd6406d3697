"""Success rates over several environments: interquartile mean, median, mean, optimality gap.

The limits of the environments' rates are combined as Newcombe (1998) does:
``L = d - sqrt((p1 - l1)^2 + (u2 - p2)^2)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.benchmarks.board.intervals.interquartile import trimmed_interval
from trimtab.benchmarks.board.intervals.limits import combined
from trimtab.benchmarks.board.intervals.rates import rate_limits
from trimtab.benchmarks.board.intervals.runs import Runs, check_rates
from trimtab.benchmarks.board.stats import Array, Interval, checked_scores
from trimtab.errors import TrimtabError

__all__ = ["AggregateIntervals", "aggregate_intervals"]


@dataclass(frozen=True)
class AggregateIntervals:
    """Success rates over several environments."""

    iqm: Interval
    median: Interval
    mean: Interval
    optimality_gap: Interval


def aggregate_intervals(
    tasks: Sequence[Array], episodes: Sequence[Sequence[int]], *, confidence: float = 0.95
) -> AggregateIntervals:
    """Return the aggregates of Agarwal et al. (2021) over success rates, runs within tasks.

    One t quantile serves all tasks; its degrees of freedom are those of the mean over tasks
    (Satterthwaite 1946). The median's limits are the medians of the tasks' limits, which is
    careful for three tasks and more. The optimality gap of rates is one minus their mean.

    Args:
        tasks: for each task the success rates of its runs ``[R_t]``.
        episodes: for each task how many episodes each of its runs was judged by ``[R_t]``.
        confidence: probability with which an interval is to hold the truth.

    Raises:
        TrimtabError: if a task has no rate, a rate is not in [0, 1], or counts are missing.
    """
    what = "aggregate over environments"
    rates = checked_scores(tasks, what)
    check_rates(rates, what)
    counts = [np.asarray(count, np.float64) for count in episodes]
    if [len(rate) for rate in rates] != [len(count) for count in counts]:
        raise TrimtabError(f"{what}: every run needs its number of episodes")
    found = [Runs(rate, count) for rate, count in zip(rates, counts, strict=True)]
    limits = rate_limits(found, confidence)
    values = [task.mean for task in found]
    mean = combined(values, limits, np.full(len(found), 1.0 / len(found)))
    median = mean
    if len(found) > 2:
        lows, highs = zip(*limits, strict=True)
        median = Interval(*(float(np.median(ends)) for ends in (values, lows, highs)))
    runs = np.array([task.count for task in found])
    if runs.sum() < 4:
        iqm = combined(values, limits, runs / runs.sum())
    else:
        iqm = trimmed_interval(found, True, confidence)
    gap = Interval(1.0 - mean.value, 1.0 - mean.high, 1.0 - mean.low)
    return AggregateIntervals(iqm, median, mean, gap)
