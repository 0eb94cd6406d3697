"""Learning curves of a leaderboard as one picture; a panel has one environment and one budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.model import Entry, EnvTable, Leaderboard
from trimtab.benchmarks.board.pictures import add_legend, draw_line, panels

__all__ = ["budgets_of", "draw"]

_SAME = 0.8
"""Share of a budget that a method must have used to count as having had it: episodes end early, and
some methods stop before an evaluation or a trial that would not fit."""

Curve = tuple[Entry, list[tuple[float, float, float, float]]]
"""A method and the points (x, value, low, high) of its curve; it has none if it takes no steps."""


def draw(board: Leaderboard, path: Path, names: Mapping[str, str] | None = None) -> None:
    """Draw every environment's curves, means over seeds with their 95 percent intervals.

    A method that takes no environment steps is a thin line without marks. Methods with another
    budget have a panel of their own.

    Args:
        board: the leaderboard.
        path: PNG to write.
        names: what a suite calls configurations, by their hashes; others have a leaderboard's name.
    """
    found = [(table, *budget) for table in board.tables for budget in budgets_of(table)]
    with panels(path, len(found), [table.metric for table, *_ in found]) as axes:
        for axis, (table, end, curves) in zip(axes, found, strict=True):
            several = sum(table is other for other, *_ in found) > 1
            _panel(axis, table, end, curves, names or {}, several)


def budgets_of(table: EnvTable) -> list[tuple[float, list[Curve]]]:
    """Return an environment's methods by their budgets, the smallest first, with its end.

    What takes no steps is a level of every budget.
    """
    curves: list[Curve] = [(entry, _points(table, entry)) for entry in table.entries]
    groups: list[tuple[float, list[Curve]]] = []
    for curve in sorted((c for c in curves if c[1]), key=lambda curve: -curve[1][-1][0]):
        end = curve[1][-1][0]
        if not groups or end < _SAME * groups[-1][0]:
            groups.append((end, []))
        groups[-1][1].append(curve)
    order = {entry.label: place for place, entry in enumerate(table.entries)}
    levels = [curve for curve in curves if not curve[1]]
    return [
        (end, sorted([*members, *levels], key=lambda curve: order[curve[0].label]))
        for end, members in reversed(groups or [(0.0, [])])
    ]


def _points(table: EnvTable, entry: Entry) -> list[tuple[float, float, float, float]]:
    """Return the points of a curve over environment steps, or updates where nobody takes any."""
    if not _over_steps(table):
        points = [(float(p.updates), *p.score) for p in entry.curve]
        return points if points[-1][0] > 0 else []
    if not entry.online:
        return []
    # Of an offline phase only its end, at step 0, belongs on an axis of environment steps.
    return list({p.env_steps: (float(p.env_steps), *p.score) for p in entry.curve}.values())


def _over_steps(table: EnvTable) -> bool:
    return any(entry.online for entry in table.entries)


def _panel(
    axis: Any,
    table: EnvTable,
    end: float,
    curves: list[Curve],
    names: Mapping[str, str],
    several: bool,
) -> None:
    from matplotlib.ticker import EngFormatter

    unit = "environment steps" if _over_steps(table) else "gradient updates"
    axis.set_title(f"{table.env}, {end:,.0f} {unit}" if several else table.env, fontsize=11)
    axis.set_xlabel(unit)
    axis.set_xlim(0.0, end or 1.0)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    called = [names.get(entry.config_hash, entry.label) for entry in table.entries]
    for entry, points in curves:
        name = names.get(entry.config_hash, entry.label)
        name = name if called.count(name) == 1 else entry.label
        level = [(0.0, *entry.mean), (end or 1.0, *entry.mean)]
        draw_line(axis, name, points or level, level=not points)
    add_legend(axis)
