"""Remarks on tables: one seed, equal scores, uneven training, adapted methods."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.benchmarks.board.model import EnvTable
from trimtab.benchmarks.settings.catalog import adaptations

__all__ = ["remarks"]


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
