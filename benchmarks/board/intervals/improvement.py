"""P(better), the probability of improvement: its interval, and the verdict that it allows.

The interval is Newcombe's method 5 (2006) with a t quantile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from trimtab.benchmarks.board.intervals.limits import Limits, combined, student_quantile
from trimtab.benchmarks.board.stats import Array, Interval, wins

__all__ = ["BEHIND_BY", "Verdict", "improvement_interval", "verdict"]

BEHIND_BY = 0.24
"""P(better) of what is worse by one standard deviation of the seeds: Phi(-1 / sqrt(2))."""

Verdict = Literal["not behind", "behind", "cannot be told"]
"""What is shown about a method beside its baseline."""


def improvement_interval(
    method: Sequence[Array], baseline: Sequence[Array], *, confidence: float = 0.95
) -> Interval:
    """Return the chance that a random run of the method beats a random run of the baseline.

    The mean over tasks of ``P(X > Y) + P(X = Y) / 2``. The limits of a task solve
    ``|theta - estimate| = q sqrt(V(theta))`` with the variance ``V`` of Newcombe (2006, Statistics
    in Medicine 25, method 5) and ``q`` the t quantile with as many degrees of freedom as there are
    runs less two. So they keep a width where every run of one side beats every run of the other.

    Args:
        method: for each task the scores of the method's runs ``[R_t]``.
        baseline: for each of the same tasks those of the baseline's runs.
        confidence: probability with which the interval is to hold the truth.

    Raises:
        TrimtabError: if a task has no score or one that is not finite, or the tasks do not pair.
    """
    tables = wins(method, baseline)
    values = [float(table.mean()) for table in tables]
    limits = [
        _newcombe(
            value, len(table), table.shape[1], student_quantile(confidence, sum(table.shape) - 2.0)
        )
        for value, table in zip(values, tables, strict=True)
    ]
    return combined(values, limits, np.full(len(values), 1.0 / len(values)))


def verdict(improvement: Interval, behind_by: float = BEHIND_BY) -> Verdict:
    """Return what an interval of P(better) shows about a method beside its baseline.

    ``behind``: all of it lies below one half. ``not behind``: all of it lies above ``behind_by``,
    that is, being worse by one standard deviation of the seeds is excluded. Otherwise the runs are
    too few to tell. ``docs/statistics.md`` has the power of this at 3, 5, 10 and 20 seeds.
    """
    if improvement.high < 0.5:
        return "behind"
    return "not behind" if improvement.low > behind_by else "cannot be told"


def _newcombe(value: float, ours: int, theirs: int, quantile: float) -> Limits:
    """Return the limits of a task's probability of improvement, by bisection."""
    extra = (ours + theirs) / 2.0 - 1.0

    def outside(theta: float) -> bool:
        shape = 1.0 + extra * ((1.0 - theta) / (2.0 - theta) + theta / (1.0 + theta))
        variance = theta * (1.0 - theta) * shape / (ours * theirs)
        return (theta - value) ** 2 > quantile * quantile * variance

    ends = []
    for far in (0.0, 1.0):
        near = value
        for _ in range(60):
            middle = (far + near) / 2.0
            if outside(middle):
                far = middle
            else:
                near = middle
        ends.append(near)
    return ends[0], ends[1]
