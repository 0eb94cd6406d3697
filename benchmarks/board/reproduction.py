"""Whether results that were made again are the published ones: to the bit, or within the intervals.

On one kind of processor a suite gives the published rows again, to the last bit. On another kind
last bits differ, trainings drift apart, and each method's score has to lie within the published 95
percent interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.benchmarks.board import leaderboard
from trimtab.benchmarks.board.model import Entry
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["MEASURED", "Comparison", "compare_rows"]

MEASURED = (
    "env", "algorithm", "policy", "dataset", "seed", "env_steps", "updates", "eval_episode",
    "eval_seed", "return", "success", "length", "fingerprint",
)  # fmt: skip
"""Columns that are equal where nothing differs: all but names of configurations and seconds."""

_Method = tuple[str, str, str | None]


@dataclass(frozen=True)
class Comparison:
    """How rows that were made again stand to the published ones.

    Attributes:
        rows: how many were made again.
        equal: how many of them are among the published ones, to the bit.
        missing: how many published rows of the same methods and seeds were not made again.
        scores: for each environment, method and policy the new score beside the published mean and
            its interval, each as text, and whether it lies within.
    """

    rows: int
    equal: int
    missing: int
    scores: tuple[tuple[str, str, str, bool], ...]

    @property
    def same(self) -> bool:
        """Whether every row is a published one and none is missing."""
        return self.rows == self.equal and not self.missing

    @property
    def within(self) -> bool:
        """Whether every score lies within its published interval."""
        return all(inside for *_, inside in self.scores)


def compare_rows(made: pa.Table, published: pa.Table) -> Comparison:
    """Compare episode rows with published ones, over the methods and seeds that were made again.

    Args:
        made: rows as :func:`trimtab.benchmarks.training.rows.collect_episodes` returns them.
        published: the same, of which these may be a part.

    Raises:
        TrimtabError: if a method has no published rows, or rows make no leaderboard.
    """
    wanted = set(zip(*(made[name].to_pylist() for name in (*_METHOD, "seed")), strict=True))
    keys = zip(*(published[name].to_pylist() for name in (*_METHOD, "seed")), strict=True)
    counterpart = published.filter(pa.array([key in wanted for key in keys], pa.bool_()))
    ours, theirs = _counted(made), _counted(counterpart)
    return Comparison(
        rows=made.num_rows,
        equal=(ours & theirs).total(),
        missing=(theirs - ours).total(),
        scores=tuple(_scores(made, published)),
    )


_METHOD = ("env", "algorithm", "policy")


def _counted(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(zip(*(table[name].to_pylist() for name in MEASURED), strict=True))


def _entries(table: pa.Table) -> dict[_Method, Entry]:
    return {
        (found.env, entry.algorithm, entry.policy): entry
        for found in leaderboard.build(table).tables
        for entry in found.entries
    }


def _scores(made: pa.Table, published: pa.Table) -> Iterator[tuple[str, str, str, bool]]:
    envs = pc.unique(made["env"])
    known = _entries(published.filter(pc.is_in(published["env"], value_set=envs)))
    for method, entry in _entries(made).items():
        env, algorithm, policy = method
        interval = known[method].mean if method in known else None
        shown = interval.text() if interval is not None else "not published"
        inside = interval is not None and interval.low <= entry.mean.value <= interval.high
        yield f"{env} {algorithm} ({policy})", number_text(entry.mean.value), shown, inside
