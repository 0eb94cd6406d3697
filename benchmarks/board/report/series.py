"""What figures draw of a leaderboard: the curve of each method."""

from __future__ import annotations

from trimtab.benchmarks.board.model import Entry, EnvTable

__all__ = ["curve_points", "over_steps"]


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
