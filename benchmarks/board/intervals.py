"""Intervals for few seeds, after Student, Wilson and Newcombe, in closed form.

A percentile bootstrap of three seeds knows three numbers and resamples only those; its "95 percent"
intervals hold the truth 76 percent of the time. What stands here holds its level where the seeds'
means are roughly normal, and less where one seed in a few fails or returns are very skewed.
``scripts/interval_coverage.py`` measures it; ``docs/statistics.md`` says which interval is used
where, and why.

- **Means of returns**: Student's t over the means of the seeds, exact for normal ones. Differences
  are paired by seed where both sides have the same seeds, otherwise after Welch (1947).
- **Success rates**: Wilson's score interval (1927) with the t quantile of the seeds, and with the
  effective number of episodes ``p (1 - p) / v``, where ``v`` is the variance of the mean over the
  seeds. It is never more than the episodes that were run, so seeds that agree by chance, or all
  succeed always, leave a width. Korn and Graubard (1998) adjust for clusters in the same way.
- **Differences and means of rates over environments**: the limits of the single rates, combined as
  by Newcombe (1998): ``L = d - sqrt((p1 - l1)^2 + (u2 - p2)^2)``.
- **Interquartile means**: up to three seeds they are means. From eight seeds on Yuen's t (1974);
  between, where that has too few degrees of freedom, the standard error of the mean, times 1.09.
- **Probability of improvement**: Newcombe's method 5 (2006) with a t quantile.

With one run an interval is over its episodes alone. Every interval contains its estimate, and that
of a rate or a probability lies in [0, 1]. All functions are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from trimtab.benchmarks.board.stats import (
    Array,
    Interval,
    checked_scores,
    interquartile_mean,
    wins,
)
from trimtab.errors import TrimtabError

Limits = tuple[float, float]

TRIMMING_COST = 1.09
"""Standard error of the interquartile mean over that of the mean, for many normal scores."""
_YUEN_FROM = 8  # runs; below, Yuen's t has less than three degrees of freedom
BEHIND_BY = 0.24
"""P(better) of what is worse by one standard deviation of the seeds: Phi(-1 / sqrt(2))."""


@dataclass(frozen=True)
class _Runs:
    """What an interval needs of the runs of one configuration.

    Attributes:
        means: mean score of each run, ``[R]``.
        episodes: number of episodes of each run, ``[R]``.
        scores: those of each run's episodes; empty where only means are known.
    """

    means: Array
    episodes: Array
    scores: Sequence[Array] = ()

    @classmethod
    def of(cls, runs: Sequence[Array], rate: bool, what: str) -> _Runs:
        scores = checked_scores(runs, what)
        if rate:
            _check_rates(scores, what)
        counts = [len(run) for run in scores]
        means = np.array([run.sum() for run in scores]) / counts
        return cls(means, np.array(counts, np.float64), scores)

    @property
    def count(self) -> int:
        return len(self.means)

    @property
    def mean(self) -> float:
        return float(self.means.mean())

    @property
    def noise(self) -> Array:
        """Variance of each run's mean that comes from its episodes; 0 for a single episode."""
        several = [run if len(run) > 1 else np.zeros(2) for run in self.scores]
        return np.array([run.var(ddof=1) / len(run) for run in several])

    @property
    def seed_variance(self) -> float:
        """Variance of the mean, over runs; 0 for one run, whose variance is unknown."""
        return float(self.means.var(ddof=1)) / self.count if self.count > 1 else 0.0

    @property
    def all_episodes(self) -> float:
        """Episodes that give the mean of the rates as much variance as the runs' episodes do."""
        return self.count**2 / float((1.0 / self.episodes).sum())

    @property
    def binomial_variance(self) -> float:
        """Variance of a mean rate if all runs were one policy."""
        return self.mean * (1.0 - self.mean) / self.all_episodes

    def return_variance(self) -> tuple[float, float]:
        """Return the variance of a mean return and its degrees of freedom.

        It is that over seeds. With one run, or where all seeds are equal, it is that of episodes.
        """
        variance = self.seed_variance
        if variance > 0.0:
            return variance, self.count - 1.0
        freedom = self.episodes[0] - 1.0 if self.count == 1 else self.count - 1.0
        return float(self.noise.sum()) / self.count**2, float(freedom)


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
    found = _Runs.of(runs, rate, "interval of a mean")
    if rate:
        effective = _effective(found.mean, found.all_episodes, found.seed_variance)
        limits = _wilson(found.mean, effective, _quantile(confidence, _seeds_freedom(found)))
        return Interval(found.mean, *limits)
    variance, freedom = found.return_variance()
    half = _quantile(confidence, freedom) * math.sqrt(variance)
    return Interval(found.mean, found.mean - half, found.mean + half)


def iqm_interval(
    runs: Sequence[Array], *, rate: bool = False, confidence: float = 0.95
) -> Interval:
    """Return the interquartile mean over runs of the runs' means.

    Args:
        runs: for each run the scores of its episodes ``[E_r]``.
        rate: whether scores are successes, 0 or 1.
        confidence: probability with which the interval is to hold the truth.

    Raises:
        TrimtabError: if a run has no score, a score is not finite, or a rate is not in [0, 1].
    """
    found = _Runs.of(runs, rate, "interval of an interquartile mean")
    if found.count < 4:
        return mean_interval(runs, rate=rate, confidence=confidence)
    return _trimmed([found], rate, confidence)


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
    ours = _Runs.of([method[seed] for seed in seeds], rate, "interval of a difference")
    theirs = _Runs.of([baseline[seed] for seed in others], rate, "interval of a difference")
    paired = seeds == others and ours.count > 1
    if rate:
        return _rate_difference(ours, theirs, paired, confidence)
    value = ours.mean - theirs.mean
    sides = [ours.return_variance(), theirs.return_variance()]
    variance, freedom = sum(side[0] for side in sides), _freedom(sides)
    if paired:
        gains = ours.means - theirs.means
        # Equal gains in all seeds: what is left to be unsure of are the episodes.
        variance = float(gains.var(ddof=1)) / len(gains) or float(
            (ours.noise + theirs.noise).sum() / ours.count**2
        )
        freedom = ours.count - 1.0
    half = _quantile(confidence, freedom) * math.sqrt(variance)
    return Interval(value, value - half, value + half)


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
        _newcombe(value, len(table), table.shape[1], _quantile(confidence, sum(table.shape) - 2.0))
        for value, table in zip(values, tables, strict=True)
    ]
    return _combined(values, limits, np.full(len(values), 1.0 / len(values)))


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
    _check_rates(rates, what)
    counts = [np.asarray(count, np.float64) for count in episodes]
    if [len(rate) for rate in rates] != [len(count) for count in counts]:
        raise TrimtabError(f"{what}: every run needs its number of episodes")
    found = [_Runs(rate, count) for rate, count in zip(rates, counts, strict=True)]
    limits = _task_limits(found, confidence)
    values = [task.mean for task in found]
    mean = _combined(values, limits, np.full(len(found), 1.0 / len(found)))
    median = mean
    if len(found) > 2:
        lows, highs = zip(*limits, strict=True)
        median = Interval(*(float(np.median(ends)) for ends in (values, lows, highs)))
    runs = np.array([task.count for task in found])
    if runs.sum() < 4:
        iqm = _combined(values, limits, runs / runs.sum())
    else:
        iqm = _trimmed(found, True, confidence)
    gap = Interval(1.0 - mean.value, 1.0 - mean.high, 1.0 - mean.low)
    return AggregateIntervals(iqm, median, mean, gap)


Verdict = Literal["not behind", "behind", "cannot be told"]


def verdict(improvement: Interval, behind_by: float = BEHIND_BY) -> Verdict:
    """Return what an interval of P(better) shows about a method beside its baseline.

    ``behind``: all of it lies below one half. ``not behind``: all of it lies above ``behind_by``,
    that is, being worse by one standard deviation of the seeds is excluded. Otherwise the runs are
    too few to tell. ``docs/statistics.md`` has the power of this at 3, 5, 10 and 20 seeds.
    """
    if improvement.high < 0.5:
        return "behind"
    return "not behind" if improvement.low > behind_by else "cannot be told"


# ---------------------------------------------------------------------------------------------
# Parts


def _quantile(confidence: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t; of the normal for endless freedom."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(0.5 + confidence / 2.0)
    return float(stdtrit(max(freedom, 1.0), 0.5 + confidence / 2.0))


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of variances (Welch 1947, Satterthwaite 1946)."""
    total = sum(variance for variance, _ in parts)
    if total <= 0.0:
        return sum(freedom for _, freedom in parts)
    shares = (((variance / total) ** 2, freedom) for variance, freedom in parts if variance > 0.0)
    inverse = sum(share / freedom for share, freedom in shares)
    return 1.0 / inverse if inverse > 0.0 else math.inf


def _seeds_freedom(runs: _Runs) -> float:
    """Return the degrees of freedom of a rate's variance; a single run's is binomial."""
    return runs.count - 1.0 if runs.count > 1 else math.inf


def _effective(rate: float, episodes: float, variance: float) -> float:
    """Return how many independent episodes a rate of this variance is worth, at most all."""
    return min(episodes, rate * (1.0 - rate) / variance) if variance > 0.0 else episodes


def _wilson(rate: float, episodes: float, quantile: float) -> Limits:
    """Return Wilson's limits for any number of episodes above 0, whole or not."""
    square = quantile * quantile
    shrink = 1.0 + square / episodes
    centre = (rate + square / (2.0 * episodes)) / shrink
    spread = rate * (1.0 - rate) / episodes + square / (4.0 * episodes * episodes)
    half = quantile * math.sqrt(spread) / shrink
    # Rounding must not push an end past the rate where the two are equal by algebra.
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))


def _rate_difference(ours: _Runs, theirs: _Runs, paired: bool, confidence: float) -> Interval:
    sides = (ours, theirs)
    if paired:
        # One design effect for both sides: how much more the gains vary than episodes explain.
        gains = ours.means - theirs.means
        binomial = ours.binomial_variance + theirs.binomial_variance
        variance = float(gains.var(ddof=1)) / len(gains)
        effect = max(1.0, variance / binomial) if binomial > 0.0 else 1.0
        effective = [side.all_episodes / effect for side in sides]
        freedom = ours.count - 1.0
    else:
        effective = [_effective(x.mean, x.all_episodes, x.seed_variance) for x in sides]
        freedom = _freedom(
            [(x.seed_variance, x.count - 1.0) for x in sides if x.count > 1]
            + [(x.binomial_variance, math.inf) for x in sides if x.count == 1]
        )
        if math.isinf(freedom):  # a single run beside runs that do not vary: their number decides
            freedom = sum(x.count - 1.0 for x in sides) or math.inf
    quantile = _quantile(confidence, freedom)
    (low, high), (their_low, their_high) = (
        _wilson(side.mean, episodes, quantile)
        for side, episodes in zip(sides, effective, strict=True)
    )
    return _combined(
        [ours.mean, -theirs.mean], [(low, high), (-their_high, -their_low)], np.ones(2)
    )


def _combined(
    values: Sequence[float], limits: Sequence[Limits], weights: NDArray[np.float64]
) -> Interval:
    """Return a weighted sum with limits from those of its independent parts (Newcombe 1998)."""
    value = float(weights @ np.array(values))
    distances = np.array(
        [(x - low, high - x) for x, (low, high) in zip(values, limits, strict=True)]
    )
    below, above = np.sqrt(np.square(weights[:, None] * distances).sum(axis=0))
    return Interval(value, value - float(below), value + float(above))


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


def _task_limits(tasks: Sequence[_Runs], confidence: float) -> list[Limits]:
    """Return Wilson's limits of each task's success rate with one quantile for all."""
    several = [task for task in tasks if task.count > 1]
    freedom = _freedom(
        [(task.seed_variance, task.count - 1.0) for task in several]
        + [(task.binomial_variance, math.inf) for task in tasks if task.count == 1]
    )
    if math.isinf(freedom):
        freedom = sum(task.count - 1.0 for task in several) or math.inf
    quantile = _quantile(confidence, freedom)
    return [
        _wilson(task.mean, _effective(task.mean, task.all_episodes, task.seed_variance), quantile)
        for task in tasks
    ]


def _trimmed(tasks: Sequence[_Runs], rate: bool, confidence: float) -> Interval:
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
        variance = TRIMMING_COST**2 * tasks[0].seed_variance
        freedom = total - 1.0
    else:
        low, high = scores[middle[0]], scores[middle[-1]]
        held = [(np.clip(task.means, low, high), task.count) for task in tasks if task.count > 1]
        parts = [(count * float(kept_.var(ddof=1)), count - 1.0) for kept_, count in held]
        variance = sum(part for part, _ in parts) * (total - 1) / (total * kept * (kept - 1.0))
        freedom = _freedom(parts) * (kept - 1.0) / (total - 1.0) if parts else math.inf
    quantile = _quantile(confidence, freedom)
    half = quantile * math.sqrt(variance)
    if not rate:
        if variance == 0.0:
            half = quantile * math.sqrt(float(tasks[0].noise[middle].sum())) / kept
        return Interval(value, value - half, value + half)
    # Never narrower than the middle half's episodes allow, were they one policy's.
    episodes = np.concatenate([task.episodes for task in tasks])[middle]
    low, high = _wilson(value, kept**2 / float((1.0 / episodes).sum()), quantile)
    return Interval(value, max(0.0, min(low, value - half)), min(1.0, max(high, value + half)))


def _check_rates(scores: Sequence[Array], what: str) -> None:
    if any(array.min() < 0.0 or array.max() > 1.0 for array in scores):
        raise TrimtabError(f"{what}: a success is not between 0 and 1; score it as a return")
