"""Methods over several environments: one table only for those that were run in the same ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.benchmarks.board.stats import Interval

__all__ = ["Across", "Aggregate", "across"]


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
        sets: environments, at least two, and the methods that were run in just these, at least two;
            the most environments first.
        left_out: methods that are in no set, each with the reason.
    """

    sets: tuple[tuple[tuple[str, ...], tuple[Aggregate, ...]], ...]
    left_out: tuple[tuple[str, str], ...]


def across(aggregates: Sequence[Aggregate]) -> Across:
    """Return methods in groups with equal environments, and why the others are in none."""
    alike: dict[tuple[str, ...], list[Aggregate]] = defaultdict(list)
    for row in aggregates:
        alike[tuple(sorted(row.envs))].append(row)
    order = sorted(alike, key=lambda envs: (-len(envs), -len(alike[envs]), envs))
    sets = tuple(
        (envs, tuple(alike[envs])) for envs in order if len(envs) > 1 and len(alike[envs]) > 1
    )
    named = {row.label for _, rows in sets for row in rows}
    left = [(row.label, _reason(row)) for row in aggregates if row.label not in named]
    return Across(sets, tuple(left))


def _reason(row: Aggregate) -> str:
    if len(row.envs) == 1:
        return f"only in {row.envs[0]}"
    return f"no other method is in the same {len(row.envs)} environments: {', '.join(row.envs)}"
