"""Differences of two methods over several contests, paired by the seeds that both sides share.

A contest is a task from one kind of base. With the same seed both sides begin from the same frozen
weights and are judged from the same starts, so a seed's difference varies less than two runs do.
The mean over contests has the variance that is found within contests, and Student's t with the
degrees of freedom that such a sum has (Satterthwaite 1946): where one contest varies far more than
the others, hardly more than its own. It speaks of these contests. A second interval takes each task
as one draw of all that are like these, and is that of their mean; it does not foretell a single
one. Two contests of one task count as one draw there, since they tend to come out alike.

Against the best of several controls there are two readings. In *hindsight* the control is the best
by all seeds, the seed's own among them; its luck is on its side, so the difference is never too
high on average. *Held out*, each seed's control is the best by the other seeds; it may be a worse
one, so the difference is never too low. ``better`` is read off the first, ``worse`` off the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.benchmarks.board.intervals.limits import student_quantile, summed_freedom
from trimtab.benchmarks.board.intervals.runs import start_variance
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.errors import TrimtabError

__all__ = [
    "Contrast",
    "contest_error",
    "contest_interval",
    "held_out",
    "hindsight",
    "tasks_interval",
    "paired",
]

Scores = Mapping[int, float] | Mapping[int, Array]
"""The score of a method's run for each seed, or those of its episodes ``[E]``."""


@dataclass(frozen=True)
class Contrast:
    """The difference of two methods in one contest.

    Attributes:
        value: the mean difference.
        variance: that of this mean over seeds.
        freedom: the degrees of freedom of ``variance``.
        least_variance: variance of the mean that the episodes alone would give; 0 for returns.
        start_variance: that of the mean over the starts in which all seeds are judged.
        starts: number of them.
        task: contests of one task are judged in the same starts, and are one draw of a task.
    """

    value: float
    variance: float
    freedom: float
    least_variance: float = 0.0
    start_variance: float = 0.0
    starts: int = 2
    task: str = ""


def paired(differences: Array, least_variance: float = 0.0, task: str = "") -> Contrast:
    """Return the contrast of the differences of at least two shared seeds.

    Args:
        differences: ``[n]``, one for each seed; or ``[n, E]``, those of its episodes, in the order
            of the starts, which all seeds share.
        least_variance: see :class:`Contrast`.
        task: see :class:`Contrast`.
    """
    means = differences.reshape(len(differences), -1).mean(1)
    variance = float(means.var(ddof=1)) / len(means)
    found = Contrast(float(means.mean()), variance, len(means) - 1.0, least_variance, task=task)
    if differences.ndim == 1:
        return found
    of_starts = start_variance([*differences], freedom=differences.shape[1] - 1.0)
    return replace(found, start_variance=of_starts, starts=differences.shape[1])


def contest_error(contrasts: Sequence[Contrast], confidence: float = 0.95) -> tuple[float, float]:
    """Return the standard error of the mean difference over contests, and its freedom.

    It is that for an interval of some confidence.

    Its variance is that over seeds and that over starts, and never below that of the episodes
    alone, so that runs which all succeed, or all fail, leave a width.
    """
    of_seeds = max(
        sum(one.variance for one in contrasts), sum(one.least_variance for one in contrasts)
    )
    freedom = summed_freedom([(one.variance, one.freedom) for one in contrasts])
    wide = student_quantile(confidence, freedom)
    # Two contests of one task may be lucky in the same starts: their errors are added as they are.
    errors: dict[str, float] = {}
    for number, one in enumerate(contrasts):
        task = one.task or str(number)
        # Each part has the quantile of its own freedom (see start_variance).
        ratio = student_quantile(confidence, one.starts - 1.0) / wide
        errors[task] = errors.get(task, 0.0) + ratio * math.sqrt(one.start_variance)
    of_starts = sum(error**2 for error in errors.values())
    return math.sqrt(of_seeds + of_starts) / len(contrasts), freedom


def contest_interval(contrasts: Sequence[Contrast], confidence: float = 0.95) -> Interval:
    """Return the mean difference over these contests, with the error of :func:`contest_error`.

    Raises:
        TrimtabError: if there is no contest.
    """
    value = _mean(contrasts)
    error, freedom = contest_error(contrasts, confidence)
    half = student_quantile(confidence, freedom) * error
    return Interval(value, value - half, value + half)


def tasks_interval(contrasts: Sequence[Contrast], confidence: float = 0.95) -> Interval:
    """Return the mean difference over all tasks like these, which are its only draws.

    Raises:
        TrimtabError: if there is no contest. With one task alone the ends are infinite.
    """
    by_task: dict[str, list[Contrast]] = {}
    for number, one in enumerate(contrasts):
        by_task.setdefault(one.task or str(number), []).append(one)
    draws = [_mean(same) for same in by_task.values()]
    value, count = (float(np.mean(draws)) if draws else _mean(contrasts)), len(draws)
    if count == 1:
        return Interval(value, -math.inf, math.inf)
    spread = float(np.std(draws, ddof=1))
    half = student_quantile(confidence, count - 1.0) * spread / math.sqrt(count)
    return Interval(value, value - half, value + half)


def _mean(contrasts: Sequence[Contrast]) -> float:
    if not contrasts:
        raise TrimtabError("a difference over contests: there is no contest; give at least one")
    return float(np.mean([one.value for one in contrasts]))


def hindsight(ours: Scores, controls: Mapping[str, Scores]) -> Array:
    """Return the difference to the best control by all its seeds, for each seed that both have.

    ``[n]``, or ``[n, E]`` where scores are those of episodes.

    Args:
        ours: the method's scores.
        controls: those of each control.

    Raises:
        TrimtabError: if no control has a score.
    """
    best = controls[_best({name: [*scores.values()] for name, scores in controls.items()})]
    return np.array([ours[seed] - best[seed] for seed in sorted(ours.keys() & best.keys())])


def held_out(ours: Scores, controls: Mapping[str, Scores]) -> Array:
    """Return, for each seed, the difference to the control that is best by the other seeds.

    ``[n]`` or ``[n, E]``, as :func:`hindsight`. A seed is left out if no control has it beside
    another one.

    Args:
        ours: the method's scores.
        controls: those of each control.
    """
    found = []
    for seed in sorted(ours):
        others = {
            name: [score for other, score in scores.items() if other != seed]
            for name, scores in controls.items()
            if seed in scores and len(scores) > 1
        }
        if others:
            found.append(ours[seed] - controls[_best(others)][seed])
    return np.array(found)


def _best(scores: Mapping[str, Sequence[float | Array]]) -> str:
    """Return the name with the highest mean; the first of them where some are equal."""
    means = {
        name: float(np.mean([np.mean(one) for one in values]))
        for name, values in scores.items()
        if len(values)
    }
    if not means:
        raise TrimtabError("the best control: no control has a score; run one")
    return max(means, key=means.__getitem__)
