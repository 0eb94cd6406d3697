"""Which intervals a leaderboard has: those for few seeds, or the field's bootstraps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.aggregates import AggregateIntervals, aggregate_intervals
from trimtab.benchmarks.board.intervals.improvement import improvement_interval
from trimtab.benchmarks.board.intervals.interquartile import iqm_interval
from trimtab.benchmarks.board.intervals.means import difference_interval, mean_interval
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.errors import TrimtabError

__all__ = ["KINDS", "IntervalKind", "kind_of"]


class IntervalKind(Protocol):
    """What a leaderboard asks of intervals; ``rate`` says that scores are successes."""

    @property
    def description(self) -> str:
        """Return how the intervals are made, for the provenance."""
        ...

    def mean(self, runs: Sequence[Array], rate: bool) -> Interval:
        """Return the mean over runs, from the scores of each run's episodes ``[E]``."""
        ...

    def iqm(self, runs: Sequence[Array], rate: bool) -> Interval:
        """Return the interquartile mean over runs, from the same."""
        ...

    def difference(
        self, method: Mapping[int, Array], baseline: Mapping[int, Array], rate: bool
    ) -> Interval:
        """Return the difference of two means, from each seed's episodes ``[E]``."""
        ...

    def improvement(self, method: Sequence[Array], baseline: Sequence[Array]) -> Interval:
        """Return P(better) over tasks, from each task's run scores ``[R]``."""
        ...

    def aggregates(
        self, tasks: Sequence[Array], episodes: Sequence[Sequence[int]]
    ) -> AggregateIntervals:
        """Return aggregates over tasks, from success rates and episodes of their runs ``[R]``."""
        ...


@dataclass(frozen=True)
class StudentT:
    """The closed forms of this folder, for few seeds: the default of every table."""

    @property
    def description(self) -> str:
        """Return how the intervals are made."""
        return "Student-t, Wilson and Newcombe over seeds (docs/statistics.md), 95 percent"

    def mean(self, runs: Sequence[Array], rate: bool) -> Interval:
        """Return the mean over runs."""
        return mean_interval(runs, rate=rate)

    def iqm(self, runs: Sequence[Array], rate: bool) -> Interval:
        """Return the interquartile mean over runs."""
        return iqm_interval(runs, rate=rate)

    def difference(
        self, method: Mapping[int, Array], baseline: Mapping[int, Array], rate: bool
    ) -> Interval:
        """Return the difference of two means."""
        return difference_interval(method, baseline, rate=rate)

    def improvement(self, method: Sequence[Array], baseline: Sequence[Array]) -> Interval:
        """Return P(better)."""
        return improvement_interval(method, baseline)

    def aggregates(
        self, tasks: Sequence[Array], episodes: Sequence[Sequence[int]]
    ) -> AggregateIntervals:
        """Return aggregates over tasks."""
        return aggregate_intervals(tasks, episodes)


@dataclass(frozen=True)
class Bootstrap:
    """The field's percentile bootstraps (Agarwal et al. 2021); too narrow with few seeds."""

    repetitions: int = stats.REPETITIONS
    seed: int = 0

    @property
    def description(self) -> str:
        """Return how the intervals are made."""
        return f"percentile bootstrap, {self.repetitions:,} resamples, seed {self.seed}"

    def mean(self, runs: Sequence[Array], rate: bool) -> Interval:
        """Return the mean over runs."""
        return self._two_level(runs, stats.aggregate_mean)

    def iqm(self, runs: Sequence[Array], rate: bool) -> Interval:
        """Return the interquartile mean over runs."""
        return self._two_level(runs, stats.aggregate_iqm)

    def difference(
        self, method: Mapping[int, Array], baseline: Mapping[int, Array], rate: bool
    ) -> Interval:
        """Return the difference of two means."""
        return stats.difference_bootstrap(
            method, baseline, repetitions=self.repetitions, seed=self.seed
        )

    def improvement(self, method: Sequence[Array], baseline: Sequence[Array]) -> Interval:
        """Return P(better)."""
        return stats.improvement_bootstrap(
            method, baseline, repetitions=self.repetitions, seed=self.seed
        )

    def aggregates(
        self, tasks: Sequence[Array], episodes: Sequence[Sequence[int]]
    ) -> AggregateIntervals:
        """Return aggregates over tasks; episodes are not resampled."""
        return AggregateIntervals(
            *(
                stats.stratified_bootstrap(
                    tasks, statistic, repetitions=self.repetitions, seed=self.seed
                )
                for statistic in (
                    stats.aggregate_iqm, stats.aggregate_median, stats.aggregate_mean,
                    stats.optimality_gap,
                )
            )
        )  # fmt: skip

    def _two_level(self, runs: Sequence[Array], statistic: stats.Statistic) -> Interval:
        return stats.two_level_bootstrap(
            runs, statistic, repetitions=self.repetitions, seed=self.seed
        )


KINDS = ("student_t", "bootstrap")
"""Names of the kinds of interval, the default first."""


def kind_of(name: str, repetitions: int = stats.REPETITIONS, seed: int = 0) -> IntervalKind:
    """Return the kind of interval of that name.

    Raises:
        TrimtabError: if there is no such kind.
    """
    made: dict[str, IntervalKind] = {
        "student_t": StudentT(), "bootstrap": Bootstrap(repetitions, seed),
    }  # fmt: skip
    if name not in made:
        raise TrimtabError(f"leaderboard: intervals={name} is unknown; there are {', '.join(made)}")
    return made[name]
