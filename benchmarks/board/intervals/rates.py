"""Success rates: Wilson's score interval (1927), also for seeds that differ.

With several seeds it takes the t quantile of the seeds, and the effective number of episodes
``p (1 - p) / v``, where ``v`` is the variance of the mean over the seeds and over the starts that
all of them are judged in. That is never more than the episodes that were run, so seeds that agree
by chance, or all succeed always, leave a width.
Korn and Graubard (1998) adjust for clusters in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from trimtab.benchmarks.board.intervals.limits import (
    Limits,
    student_quantile,
    summed_freedom,
    wilson_limits,
)
from trimtab.benchmarks.board.intervals.runs import Runs
from trimtab.benchmarks.board.stats import Interval
from trimtab.errors import TrimtabError

__all__ = ["rate_interval", "rate_limits", "wilson_interval"]


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return a success rate with Wilson's score interval (Wilson 1927).

    Right for one policy judged by ``n`` independent episodes; never of zero width.

    Raises:
        TrimtabError: unless ``0 <= successes <= n`` and ``n >= 1``.
    """
    if n < 1 or not 0 <= successes <= n:
        raise TrimtabError(f"wilson interval: {successes} successes of {n} episodes cannot be")
    rate = successes / n
    return Interval(rate, *wilson_limits(rate, n, NormalDist().inv_cdf(0.5 + confidence / 2.0)))


def rate_interval(runs: Runs, confidence: float) -> Interval:
    """Return the mean success rate of the runs of one task; a single run's is binomial."""
    freedom = runs.count - 1.0 if runs.count > 1 else math.inf
    quantile = student_quantile(confidence, freedom)
    return Interval(runs.mean, *wilson_limits(runs.mean, runs.effective_episodes, quantile))


def rate_limits(tasks: Sequence[Runs], confidence: float) -> list[Limits]:
    """Return the limits of each task's success rate, with one t quantile for all of them.

    Its degrees of freedom are those of the sum of the rates (Satterthwaite 1946).
    """
    several = [task for task in tasks if task.count > 1]
    freedom = summed_freedom(
        [(task.seed_variance, task.count - 1.0) for task in several]
        + [(task.binomial_variance, math.inf) for task in tasks if task.count == 1]
    )
    if math.isinf(freedom):  # a single run beside runs that do not vary: their number decides
        freedom = sum(task.count - 1.0 for task in several) or math.inf
    quantile = student_quantile(confidence, freedom)
    return [wilson_limits(task.mean, task.effective_episodes, quantile) for task in tasks]
