"""Remarks on tables: one seed, equal scores, uneven training, adapted methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.benchmarks.board.model import EnvTable
from trimtab.benchmarks.board.sources import Sources
from trimtab.benchmarks.training.rows import STOPPED_EARLY
from trimtab.benchmarks.training.settings.catalog import adaptations

__all__ = ["early_ends", "remarks"]


_NAMED = 5
"""Methods that a remark names; of the others it says how many there are."""
_OF_BOTH = " A gain is over the seeds that both sides have."


def remarks(tables: Sequence[EnvTable], sources: Sources) -> list[str]:
    """Return what a reader must know before believing a number."""
    notes = []
    for table in tables:
        lonely = [entry.label for entry in table.entries if len(entry.runs) == 1]
        if lonely:
            notes.append(
                f"{table.env}: one seed only, intervals over episodes alone: {', '.join(lonely)}."
            )
        equal = [
            entry.label
            for entry in table.entries
            if any(x and x.low == x.high for x in (entry.mean, entry.iqm, entry.difference))
        ]
        if equal:
            notes.append(
                f"{table.env}: all scores, or all gains, are equal, so no interval can be given: "
                f"{', '.join(equal)}."
            )
        for entry in table.entries:
            if entry.uneven():
                notes.append(f"{table.env}: the seeds of {entry.label} differ in training length.")
        if len({run.episodes for entry in table.entries for run in entry.runs}) > 1:
            notes.append(f"{table.env}: not every run was judged by as many episodes.")
        notes += [*_seeds_apart(table), *_spending(table, sources)]
    methods = {entry.algorithm for table in tables for entry in table.entries}
    if adapted := sorted(methods & set(adaptations())):
        notes.append(f"Adaptations of their papers, as their docstrings say: {', '.join(adapted)}.")
    return notes


def _seeds_apart(table: EnvTable) -> list[str]:
    """Return a remark on methods that lack seeds which others have."""
    every = {run.seed for entry in table.entries for run in entry.runs}
    apart = [
        f"{entry.label} lacks {', '.join(map(str, sorted(lacking)))}"
        for entry in table.entries
        if (lacking := every - {run.seed for run in entry.runs})
    ]
    if not apart:
        return []
    more = f"; and {len(apart) - _NAMED} more" if len(apart) > _NAMED else ""
    named = "; ".join(apart[:_NAMED])
    gains = "" if all(entry.difference is None for entry in table.entries) else _OF_BOTH
    return [f"{table.env}: not every method has the same seeds: {named}{more}.{gains}"]


def _spending(table: EnvTable, sources: Sources) -> list[str]:
    """Return remarks on what of a method's budget went to something else, as its runs have said."""
    return [
        f"{table.env}: {entry.label}: {line}."
        for entry in table.entries
        for line in dict.fromkeys(
            line
            for run in entry.runs
            for line in sources.results.get((entry.config_hash, run.seed), {}).get("spending", [])
        )
    ]


def early_ends(rows: pa.Table) -> list[str]:
    """Return notes on runs that a callback ended early; they count with their last evaluation."""
    early = pc.map_lookup(rows["metrics"], pa.scalar(STOPPED_EARLY), "first")
    columns = [rows.filter(pc.is_valid(early))[name] for name in ("env", "algorithm", "seed")]
    seeds: dict[tuple[str, str], set[int]] = defaultdict(set)
    for env, algorithm, seed in zip(*(column.to_pylist() for column in columns), strict=True):
        seeds[env, algorithm].add(seed)
    return [
        f"{env}: a callback ended {algorithm} before its settings say, with seed "
        f"{', '.join(map(str, sorted(found)))}: it counts with its last evaluation."
        for (env, algorithm), found in sorted(seeds.items())
    ]
