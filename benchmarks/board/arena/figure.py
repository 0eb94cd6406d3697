"""The arena as one picture: score against training episodes, a panel a contest."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.files import atomic_write_bytes

__all__ = ["draw"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Colours that stay apart for every kind of colour vision (Okabe and Ito)."""
_GREY = "#b9bec7"
_STROKES = ("-", "--", "-.", ":")
Style = tuple[str, str]
"""A colour and a stroke."""


def draw(arena: Arena, path: Path) -> None:
    """Draw every contest: the methods with the largest areas in colour, the others in grey.

    A method looks the same in every panel. The frozen base is a dotted level, the best control a
    dashed one, both black.

    Args:
        arena: the tables.
        path: PNG to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(arena.contests), 2)
    rows = -(-len(arena.contests) // columns)
    chart, axes = pyplot.subplots(
        rows, columns, figsize=(6.4 * columns, 4.2 * rows), layout="constrained", squeeze=False
    )
    styles = _styles(arena)
    for axis, contest in zip(axes.flat, arena.contests, strict=False):
        _panel(axis, contest, arena, styles)
    for axis in list(axes.flat)[len(arena.contests) :]:
        axis.remove()
    picture = io.BytesIO()
    chart.savefig(picture, dpi=120, metadata={"Software": None})
    pyplot.close(chart)
    atomic_write_bytes(path, picture.getvalue())


def _learned(contest: Contest, arena: Arena) -> list[ArenaRow]:
    """Return what learned in a contest, the largest area first."""
    rows = [row for row in contest.rows if row.variant is None]
    return sorted(
        (row for row in rows if row.method not in arena.controls), key=lambda row: -row.area
    )


def _styles(arena: Arena) -> dict[str, Style]:
    """Return how each method is drawn that is among the first in some contest, by its label."""
    first = [row for c in arena.contests for row in _learned(c, arena)[: len(_COLOURS)]]
    areas: dict[str, list[float]] = {}
    for row in first:
        areas.setdefault(row.label, []).append(row.area)
    order = sorted(areas, key=lambda label: (-max(areas[label]), label))
    number = len(_COLOURS)
    return {
        label: (_COLOURS[place % number], _STROKES[place // number % len(_STROKES)])
        for place, label in enumerate(order)
    }


def _panel(axis: Any, contest: Contest, arena: Arena, styles: dict[str, Style]) -> None:
    learned = _learned(contest, arena)
    for place, row in reversed(list(enumerate(learned))):
        shown = place < len(_COLOURS)
        colour, stroke = styles[row.label] if shown else (_GREY, "-")
        at, score, low, high = _line(row, contest)
        axis.plot(
            at, score, color=colour, linestyle=stroke, linewidth=1.8 if shown else 0.9,
            label=row.label if shown else None, zorder=3 if shown else 1,
        )  # fmt: skip
        if shown:
            axis.fill_between(at, low, high, color=colour, alpha=0.07, linewidth=0)
    if contest.frozen is not None:
        axis.axhline(contest.frozen.value, color="black", linestyle=":", label="frozen base")
    controls = [row for row in contest.rows if row.method in arena.controls]
    if controls:
        best = max(controls, key=lambda row: row.score.value)
        axis.axhline(
            best.score.value, color="black", linestyle="--", label=f"best control: {best.label}"
        )
    axis.set_title(f"{contest.task}, from a {contest.base} policy", fontsize=11)
    axis.set_xlabel("training episodes")
    axis.set_ylabel(METRIC_NAMES[contest.metric])
    if contest.metric == "success":
        axis.set_ylim(-0.03, 1.03)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(
        handles[::-1], labels[::-1], frameon=False, fontsize=8, loc="upper center",
        bbox_to_anchor=(0.5, -0.14), ncols=3,
    )  # fmt: skip


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
