"""What pictures of curves have in common: axes, lines in turns, names at the ends of lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.report.labels import short_names, spread
from trimtab.benchmarks.board.report.looks import dashes, swelling, turns
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.files import atomic_write_bytes

__all__ = [
    "DRAWN",
    "GREY",
    "MARKS",
    "MUTED",
    "Stroke",
    "draw_strokes",
    "name_ends",
    "picture",
    "set_axes",
]

DRAWN = "Trimtab"
"""The name of the software in a picture, by which an earlier one is known."""
GREY = "#c3c9d0"
"""Of lines that are named elsewhere."""
MUTED = "#8b95a1"
"""Of lines that are named at their end, but have no colour."""
MARKS = ("o", "s", "D", "^", "v")
"""Shapes of marks, in the order of the page's."""
_WORDS = "#56606b"
_LINE = 11.5  # points from one line of a name to the next
_PANEL = 195.0  # height of a panel's axes, in points; nearly
_WIDTH = 250.0


@dataclass(frozen=True)
class Stroke:
    """A line of a panel: its corners, and how it is drawn.

    Attributes:
        name: of the method.
        at: along the axis.
        score: at each of these.
        band: the ends of the intervals; None draws none.
        colour: of the line.
        mark: shape of its marks; nothing draws none.
        width: of the line, in points.
        named: whether its name stands in its colour; else it is grey.
    """

    name: str
    at: Sequence[float]
    score: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None
    colour: str
    mark: str
    width: float
    named: bool = True


@contextmanager
def picture(path: Path, panels: int, columns: int, size: tuple[float, float], dpi: int
            ) -> Iterator[list[Any]]:  # fmt: skip
    """Give the axes of some panels, and write them as one PNG in the end.

    Args:
        path: PNG to write.
        panels: how many.
        columns: the most of them side by side.
        size: width and height of one, in inches.
        dpi: pixels an inch.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(panels, columns)
    rows = -(-panels // columns)
    chart, axes = pyplot.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False,
    )  # fmt: skip
    chart.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
    try:
        yield list(axes.flat)[:panels]
        for axis in list(axes.flat)[panels:]:
            axis.remove()
        content = io.BytesIO()
        chart.savefig(content, dpi=dpi, metadata={"Software": DRAWN})
    finally:
        pyplot.close(chart)
    atomic_write_bytes(path, content.getvalue())


def set_axes(axis: Any, title: str, along: str, metric: Metric, last: float) -> None:
    """Label the axes of a panel; those of a success rate go from 0 to 1."""
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(along)
    axis.set_ylabel(METRIC_NAMES[metric])
    axis.set_xlim(0.0, last or 1.0)
    if metric == "success":
        axis.set_ylim(0.0, 1.0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)


def draw_strokes(axis: Any, strokes: Sequence[Stroke], context: Sequence[Stroke] = ()) -> None:
    """Draw the lines of a panel, the last above the others.

    Lines that lie on one another take turns, a dash each. Where matplotlib chooses the ends of the
    scores' axis, it has chosen them by the time the bands are drawn.

    Args:
        axis: of the panel.
        strokes: lines that are named.
        context: lines below them, which take no turns.
    """
    for stroke in (*context, *strokes):
        low, high = stroke.band or (stroke.score, stroke.score)
        axis.fill_between(stroke.at, low, high, color=stroke.colour, alpha=0.09, linewidth=0)
    low, high = axis.get_ylim()
    wide = axis.get_xlim()[1]
    corners = [
        [(x * _WIDTH / wide, y * _PANEL / (high - low)) for x, y in zip(*line, strict=True)]
        for line in ((stroke.at, stroke.score) for stroke in strokes)
    ]
    turn_of = [(0, 1)] * len(context) + turns(corners)
    for place, (stroke, turn) in enumerate(zip((*context, *strokes), turn_of, strict=True)):
        dash = dashes(turn)
        # Matplotlib counts dashes in widths of the line.
        style: Any = "-" if dash is None else (
            dash[0] / stroke.width, tuple(part / stroke.width for part in dash[1])
        )  # fmt: skip
        axis.plot(
            stroke.at, stroke.score, color=stroke.colour, linestyle=style, linewidth=stroke.width,
            marker=stroke.mark or None, markersize=3.4 * (1.0 + swelling(turn)),
            markeredgewidth=0, dash_capstyle="butt", clip_on=False, zorder=2.5 + 0.01 * place,
            label=stroke.name,
        )  # fmt: skip
    axis.set_ylim(low, high)


def name_ends(axis: Any, strokes: Sequence[Stroke], letters: int = 24) -> None:
    """Write the name of each line beside its end, to the right of the panel, none over another."""
    if not strokes:
        return
    low, high = axis.get_ylim()
    names = short_names([stroke.name for stroke in strokes], letters)
    ends = [(stroke.score[-1] - low) / ((high - low) or 1.0) for stroke in strokes]
    order = sorted(range(len(strokes)), key=lambda place: (ends[place], -place))
    gap = _LINE * max(len(name) for name in names) / _PANEL
    gap = min(gap, 1.0 / max(len(order) - 1, 1))
    places = spread([ends[place] for place in order], gap, 0.0, 1.0)
    for place, height in zip(order, places, strict=True):
        stroke = strokes[place]
        axis.annotate(
            "\n".join(names[place]), xy=(stroke.at[-1], stroke.score[-1]), xycoords="data",
            xytext=(1.04, height), textcoords="axes fraction", va="center", fontsize=9,
            color=stroke.colour if stroke.named else _WORDS, annotation_clip=False,
            linespacing=0.95,
            arrowprops={
                "arrowstyle": "-", "linestyle": (0, (1, 1.5)), "linewidth": 0.9,
                "color": stroke.colour, "shrinkA": 1, "shrinkB": 2, "relpos": (0.0, 0.5),
            },
        )  # fmt: skip
