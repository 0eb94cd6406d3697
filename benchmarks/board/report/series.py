"""What figures draw of a leaderboard: a colour and a curve for each method."""

from __future__ import annotations

from trimtab.benchmarks.board.model import Entry, EnvTable, Leaderboard

__all__ = ["COLOURS", "colours_of", "curve_points", "has_curves", "over_steps"]

COLOURS = 8
"""Number of colours that a figure has."""


def colours_of(board: Leaderboard) -> dict[str, int]:
    """Return a colour number for each method: the same everywhere, distinct where two meet."""
    chosen: dict[str, int] = {}
    for label in sorted({entry.label for table in board.tables for entry in table.entries}):
        taken = {
            chosen[entry.label]
            for table in board.tables
            if any(entry.label == label for entry in table.entries)
            for entry in table.entries
            if entry.label in chosen
        }
        free = [number for number in range(COLOURS) if number not in taken]
        chosen[label] = free[0] if free else len(chosen) % COLOURS
    return chosen


def over_steps(table: EnvTable) -> bool:
    """Whether curves run over environment steps; over updates where nobody takes any."""
    return any(entry.online for entry in table.entries)


def curve_points(table: EnvTable, entry: Entry) -> list[tuple[float, float, float, float]]:
    """Return (x, value, low, high) of a curve; empty for what is drawn as a level."""
    if not over_steps(table):
        points = [(float(p.updates), *p.score) for p in entry.curve]
        return points if points[-1][0] > 0 else []
    if not entry.online:
        return []
    # Of an offline phase only its end, at step 0, belongs on an axis of environment steps.
    return list({p.env_steps: (float(p.env_steps), *p.score) for p in entry.curve}.values())


def has_curves(table: EnvTable) -> bool:
    """Whether a method of the environment was judged more than once, so that there is a line."""
    return any(len(curve_points(table, entry)) > 1 for entry in table.entries)
