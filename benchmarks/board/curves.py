"""Learning curves of a leaderboard as one picture; a panel has one environment and one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.model import Entry, Leaderboard
from trimtab.benchmarks.board.pictures import (
    GREY,
    MARKS,
    Stroke,
    draw_strokes,
    name_ends,
    picture,
    set_axes,
)
from trimtab.benchmarks.board.report.looks import LIGHT
from trimtab.benchmarks.board.report.panels import Panel, panels_of
from trimtab.benchmarks.board.report.series import curve_points, over_steps

__all__ = ["Curve", "count_text", "curves_of", "draw"]

_Points = list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Curve:
    """A method's curve: its points (x, value, low, high); ``flat`` is what takes no steps."""

    entry: Entry
    points: _Points
    flat: bool


def curves_of(panel: Panel, entries: Sequence[Entry]) -> list[Curve]:
    """Return the curves of some of a panel's methods; a level goes from 0 to the budget's end.

    Where nobody takes steps, it goes to 1.
    """
    found = []
    for entry in entries:
        points = curve_points(panel.table, entry)
        level = [(0.0, *entry.mean), (float(panel.budget or 1), *entry.mean)]
        found.append(Curve(entry, points or level, flat=not points))
    return found


def count_text(value: float) -> str:
    """Return a number with a letter for thousands, millions or billions."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def draw(board: Leaderboard, path: Path, names: Mapping[str, str] | None = None) -> None:
    """Draw every environment's curves, means over seeds with their 95 percent intervals.

    A method that takes no environment steps is a thin line without marks. Methods with another
    budget have a panel of their own, and so have those for which a panel has no colour left.

    Args:
        board: the leaderboard.
        path: PNG to write.
        names: what a suite calls configurations, by their hashes; others have a leaderboard's name.
    """
    panels = panels_of(_called(board, names or {}))
    with picture(path, len(panels), 3, (5.8, 3.6), 130) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            _panel(axis, panel)


def _called(board: Leaderboard, names: Mapping[str, str]) -> Leaderboard:
    """Return the leaderboard with other names of its rows, where no two of a table get the same."""
    tables = []
    for table in board.tables:
        wanted = [names.get(entry.config_hash, entry.label) for entry in table.entries]
        entries = tuple(
            replace(entry, label=name) if wanted.count(name) == 1 else entry
            for entry, name in zip(table.entries, wanted, strict=True)
        )
        tables.append(replace(table, entries=entries))
    return replace(board, tables=tuple(tables))


def _panel(axis: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter

    curves = curves_of(panel, panel.everyone)
    named = [_stroke(curve, panel) for curve in curves[: len(panel.entries)]]
    others = [_grey(curve) for curve in curves[len(panel.entries) :]]
    title = panel.table.env
    if panel.budgets > 1:
        title += f", {panel.budget_text}"
    if panel.places:
        title += f"\n{panel.places}"
    unit = "environment steps" if over_steps(panel.table) else "gradient updates"
    set_axes(axis, title, unit, panel.table.metric, panel.budget)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    draw_strokes(axis, named[::-1], others)
    name_ends(axis, named)


def _stroke(curve: Curve, panel: Panel) -> Stroke:
    at, mean, low, high = zip(*curve.points, strict=True)
    return Stroke(
        curve.entry.label, at, mean, None if curve.flat else (low, high),
        LIGHT[panel.colours[curve.entry.label]],
        "" if curve.flat else MARKS[panel.group % len(MARKS)], 1.2 if curve.flat else 1.9,
    )  # fmt: skip


def _grey(curve: Curve) -> Stroke:
    at, mean, _, _ = zip(*curve.points, strict=True)
    return Stroke(curve.entry.label, at, mean, None, GREY, "", 0.9, named=False)
