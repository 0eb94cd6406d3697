"""The arena as one picture: score against training episodes, a panel a contest."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest
from trimtab.benchmarks.board.pictures import add_legend, draw_line, panels

__all__ = ["draw"]

_FIRST = 8
"""Number of methods of a contest that have a colour."""


def draw(arena: Arena, path: Path) -> None:
    """Draw every contest: the methods with the largest areas in colour, the others in grey.

    The frozen base and the best control are black levels. A method that learns from nothing, whose
    episodes may be far shorter, is cut off where the last of the others ends.

    Args:
        arena: the tables.
        path: PNG to write.
    """
    metrics = [contest.metric for contest in arena.contests]
    with panels(path, len(metrics), metrics) as axes:
        for axis, contest in zip(axes, arena.contests, strict=True):
            _panel(axis, contest, arena)


def _panel(axis: Any, contest: Contest, arena: Arena) -> None:
    rows = _learned(contest, arena)
    last = max((row.curve[-1].episodes for row in rows), default=1.0)
    axis.set_title(f"{contest.task}, from a {contest.base} policy", fontsize=11)
    axis.set_xlabel("training episodes")
    axis.set_xlim(0.0, last)
    for row in rows[:_FIRST]:
        draw_line(axis, row.label, _line(row, contest))
    for number, row in enumerate(rows[_FIRST:]):
        name = f"{len(rows) - _FIRST} others" if number == 0 else "_"
        draw_line(axis, name, _line(row, contest), level=True, color="#c3c9d0", linestyle="-")
    levels = []
    if contest.frozen is not None:
        levels.append(("frozen base", contest.frozen.value, "-"))
    if controls := [row for row in contest.rows if row.method in arena.controls]:
        best = max(controls, key=lambda row: row.score.value)
        levels.append((f"best control: {best.label}", best.score.value, "--"))
    for name, at, style in levels:
        ends = [(x, at, at, at) for x in (0.0, last)]
        draw_line(axis, name, ends, level=True, color="black", linestyle=style)
    add_legend(axis)


def _learned(contest: Contest, arena: Arena) -> list[ArenaRow]:
    """Return what learned in a contest, the largest area first."""
    rows = [row for row in contest.rows if row.method not in arena.controls]
    ends = [row.curve[-1].episodes for row in rows if row.base is not None]
    limit = max(ends, default=math.inf)
    shown = [
        replace(row, curve=tuple(point for point in row.curve if point.episodes <= limit))
        for row in rows
    ]
    return sorted((row for row in shown if row.curve), key=lambda row: -row.area)


def _line(row: ArenaRow, contest: Contest) -> list[tuple[float, float, float, float]]:
    """Return a curve that starts at the frozen base where the method starts from it."""
    points = [(p.episodes, *p.score) for p in row.curve]
    if row.base is not None and contest.frozen is not None and points[0][0] > 0:
        level = contest.frozen.value
        points.insert(0, (0.0, level, level, level))
    return points
