"""Remarks on tables: one seed, equal scores, uneven training, adapted methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.benchmarks.board.model import EnvTable
from trimtab.benchmarks.runs.rows import STOPPED_EARLY
from trimtab.benchmarks.settings.catalog import adaptations

__all__ = ["early_ends", "remarks"]


def remarks(tables: Sequence[EnvTable]) -> list[str]:
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
    methods = {entry.algorithm for table in tables for entry in table.entries}
    if adapted := sorted(methods & set(adaptations())):
        notes.append(f"Adaptations of their papers, as their docstrings say: {', '.join(adapted)}.")
    return notes


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
