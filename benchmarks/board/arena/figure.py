"""The arena as one picture: score against training episodes, a panel a contest."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest
from trimtab.benchmarks.board.pictures import (
    MUTED,
    Stroke,
    draw_strokes,
    name_ends,
    picture,
    set_axes,
)
from trimtab.benchmarks.board.report.looks import LIGHT, colours_of

__all__ = ["draw"]

_FIRST = 6
"""Number of methods of a contest that have a colour."""
_BLACK = "#000000"


def draw(arena: Arena, path: Path) -> None:
    """Draw every contest: the methods with the largest areas in colour, the others in grey.

    No two of a panel have one colour, and a method keeps its own where that allows it. The frozen
    base and the best control are black levels. Every line is named at its end. One from nothing,
    whose episodes may be far shorter, is cut off where the last of the others ends.

    Args:
        arena: the tables.
        path: PNG to write.
    """
    colours = _colours(arena)
    with picture(path, len(arena.contests), 2, (7.2, 5.0), 120) as axes:
        for axis, contest, own in zip(axes, arena.contests, colours, strict=True):
            _panel(axis, contest, _strokes(contest, arena, own))


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


def _colours(arena: Arena) -> list[dict[str, int]]:
    """Return for each contest the colours of its first methods, by their labels."""
    return colours_of(
        [[row.label for row in _learned(contest, arena)[:_FIRST]] for contest in arena.contests]
    )


def _strokes(contest: Contest, arena: Arena, colours: dict[str, int]) -> list[Stroke]:
    """Return the lines of a contest, in the order in which they are drawn."""
    strokes = []
    for row in reversed(_learned(contest, arena)):
        at, score, low, high = _line(row, contest)
        if row.label in colours:
            colour = LIGHT[colours[row.label]]
            strokes.append(Stroke(row.label, at, score, (low, high), colour, "o", 1.9))
        else:
            strokes.append(Stroke(row.label, at, score, None, MUTED, "", 1.0, named=False))
    last = max((stroke.at[-1] for stroke in strokes), default=1.0)
    levels = []
    if contest.frozen is not None:
        levels.append(("frozen base", contest.frozen.value))
    if controls := [row for row in contest.rows if row.method in arena.controls]:
        best = max(controls, key=lambda row: row.score.value)
        levels.append((f"best control: {best.label}", best.score.value))
    for name, value in levels:
        strokes.append(Stroke(name, (0.0, last), (value, value), None, _BLACK, "", 1.3))
    return strokes


def _panel(axis: Any, contest: Contest, strokes: list[Stroke]) -> None:
    last = max((stroke.at[-1] for stroke in strokes), default=1.0)
    title = f"{contest.task}, from a {contest.base} policy"
    set_axes(axis, title, "training episodes", contest.metric, last)
    draw_strokes(axis, strokes)
    name_ends(axis, strokes[::-1], letters=26)


def _line(
    row: ArenaRow, contest: Contest
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return a curve that starts at the frozen base where the method starts from it."""
    points = [(p.episodes, *p.score) for p in row.curve]
    if row.base is not None and contest.frozen is not None and points[0][0] > 0:
        level = contest.frozen.value
        points.insert(0, (0.0, level, level, level))
    at, score, low, high = (list(column) for column in zip(*points, strict=True))
    return at, score, low, high
