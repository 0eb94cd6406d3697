"""Which intervals a leaderboard has: those for few seeds, or the field's bootstraps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.aggregates import AggregateIntervals, aggregate_intervals
from trimtab.benchmarks.board.intervals.improvement import improvement_interval
from trimtab.benchmarks.board.intervals.interquartile import iqm_interval
from trimtab.benchmarks.board.intervals.means import difference_interval, mean_interval
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.errors import TrimtabError

__all__ = ["KINDS", "IntervalKind", "kind_of"]

Runs = Sequence[Array]
Seeds = Mapping[int, Array]


@dataclass(frozen=True)
class IntervalKind:
    """What a leaderboard asks of intervals; ``rate`` says that scores are successes.

    Attributes:
        description: how the intervals are made, for the provenance.
        mean: ``(runs, rate)``: the mean over runs, from the scores of each run's episodes ``[E]``.
        iqm: ``(runs, rate)``: the interquartile mean over runs, from the same.
        difference: ``(method, baseline, rate)``: of two means, from each seed's episodes ``[E]``.
        improvement: ``(method, baseline)``: P(better), from each task's run scores ``[R]``.
        aggregates: ``(tasks, episodes)``: over tasks, from success rates and numbers of episodes of
            their runs ``[R]``.
    """

    description: str
    mean: Callable[[Runs, bool], Interval]
    iqm: Callable[[Runs, bool], Interval]
    difference: Callable[[Seeds, Seeds, bool], Interval]
    improvement: Callable[[Runs, Runs], Interval]
    aggregates: Callable[[Runs, Sequence[Sequence[int]]], AggregateIntervals]


def _student_t(repetitions: int, seed: int) -> IntervalKind:
    """Return the closed forms of this folder, for few seeds: the default of every table."""
    return IntervalKind(
        "Student-t, Wilson and Newcombe over seeds (docs/statistics.md), 95 percent",
        lambda runs, rate: mean_interval(runs, rate=rate),
        lambda runs, rate: iqm_interval(runs, rate=rate),
        lambda method, baseline, rate: difference_interval(method, baseline, rate=rate),
        improvement_interval,
        aggregate_intervals,
    )


def _bootstrap(repetitions: int, seed: int) -> IntervalKind:
    """Return the percentile bootstraps of Agarwal et al. (2021), too narrow with few seeds."""
    two_level = partial(stats.two_level_bootstrap, repetitions=repetitions, seed=seed)
    difference = partial(stats.difference_bootstrap, repetitions=repetitions, seed=seed)
    over_tasks = partial(stats.stratified_bootstrap, repetitions=repetitions, seed=seed)
    return IntervalKind(
        f"percentile bootstrap, {repetitions:,} resamples, seed {seed}",
        lambda runs, _: two_level(runs, stats.aggregate_mean),
        lambda runs, _: two_level(runs, stats.aggregate_iqm),
        lambda method, baseline, _: difference(method, baseline),
        partial(stats.improvement_bootstrap, repetitions=repetitions, seed=seed),
        lambda tasks, _: AggregateIntervals(
            over_tasks(tasks, stats.aggregate_iqm),
            over_tasks(tasks, stats.aggregate_median),
            over_tasks(tasks, stats.aggregate_mean),
            over_tasks(tasks, stats.optimality_gap),
        ),
    )


_MAKERS = {"student_t": _student_t, "bootstrap": _bootstrap}
KINDS = tuple(_MAKERS)
"""Names of the kinds of interval, the default first."""


def kind_of(name: str, repetitions: int = stats.REPETITIONS, seed: int = 0) -> IntervalKind:
    """Return the kind of interval of that name.

    Args:
        name: one of ``KINDS``.
        repetitions: resamples of each bootstrap.
        seed: of the bootstraps.

    Raises:
        TrimtabError: if there is no such kind.
    """
    if name not in _MAKERS:
        known = ", ".join(KINDS)
        raise TrimtabError(f"leaderboard: intervals={name} is unknown; there are {known}")
    return _MAKERS[name](repetitions, seed)
