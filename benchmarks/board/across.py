"""Methods over several environments: one table only for those that were run in the same ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.benchmarks.board.stats import Interval

__all__ = ["LEFT_OUT", "Across", "Aggregate", "across", "heading"]

LEFT_OUT = "In no table, because they were run in one environment only"
"""What stands above the methods that are in no set."""


@dataclass(frozen=True)
class Aggregate:
    """One method over all environments in which it has a success rate."""

    label: str
    envs: tuple[str, ...]
    runs: int
    iqm: Interval
    median: Interval
    mean: Interval
    optimality_gap: Interval
    improvement: Interval | None

    def cells(self) -> dict[str, str]:
        """Return what a table shows of the method, by column heading."""
        return {
            "Method": self.label,
            "IQM [95%]": self.iqm.text(),
            "Median [95%]": self.median.text(),
            "Mean [95%]": self.mean.text(),
            "Optimality gap [95%]": self.optimality_gap.text(),
            "P(better) [95%]": self.improvement.text() if self.improvement else "–",
            "Environments": str(len(self.envs)),
            "Runs": str(self.runs),
        }


@dataclass(frozen=True)
class Across:
    """What can be compared over environments.

    Attributes:
        sets: environments, at least two, and the methods that were run in just these; first the
            sets of several methods, then those with most environments.
        left_out: an environment, and the methods that were run in it alone.
    """

    sets: tuple[tuple[tuple[str, ...], tuple[Aggregate, ...]], ...]
    left_out: tuple[tuple[str, tuple[str, ...]], ...]


def across(aggregates: Sequence[Aggregate]) -> Across:
    """Return methods in groups with equal environments, and those that are in one alone."""
    alike: dict[tuple[str, ...], list[Aggregate]] = defaultdict(list)
    for row in aggregates:
        alike[tuple(sorted(row.envs))].append(row)
    order = sorted(alike, key=lambda envs: (len(alike[envs]) < 2, -len(envs), envs))
    return Across(
        tuple((envs, tuple(alike[envs])) for envs in order if len(envs) > 1),
        tuple(
            (envs[0], tuple(row.label for row in alike[envs]))
            for envs in sorted(alike)
            if len(envs) == 1
        ),
    )


def heading(envs: Sequence[str], rows: Sequence[Aggregate]) -> str:
    """Return what stands above the table of a set."""
    alone = "" if len(rows) > 1 else " (one method only, so nothing compares)"
    return f"In {', '.join(envs)}{alone}"
