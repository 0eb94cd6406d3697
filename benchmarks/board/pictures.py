"""What pictures of curves have in common: panels, their axes, and lines with a legend."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.files import atomic_write_bytes

__all__ = ["DRAWN", "FIGURE", "add_legend", "draw_line", "panels", "picture"]

DRAWN = "Trimtab"
"""The name of the software in a picture, by which an earlier one is known."""
FIGURE = "figure.png"
"""The picture of the runs, in the folder of their leaderboard: their curves, or what a suite draws.
"""
_COLOURS = (
    "#0066a6", "#d55e00", "#007a50", "#c2417f", "#6b5200", "#1591ab", "#7757d9", "#2b333d",
)  # fmt: skip
"""Colours that stay apart for every kind of colour vision; further lines are dashed or dotted."""

Points = Sequence[tuple[float, float, float, float]]
"""(x, value, low, high) of a curve."""


@contextmanager
def picture(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Give matplotlib's axes ``[rows, columns]``, and write them as one PNG in the end.

    Args:
        path: PNG to write.
        rows: axes one below the other.
        columns: axes side by side.
        size: width and height in inches.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    try:
        yield axes
        content = io.BytesIO()
        chart.savefig(content, dpi=120, metadata={"Software": DRAWN})
    finally:
        pyplot.close(chart)
    atomic_write_bytes(path, content.getvalue())


@contextmanager
def panels(path: Path, count: int, metrics: Sequence[Metric]) -> Iterator[list[Any]]:
    """Give the axes of some panels, two side by side, and write them as one PNG in the end.

    The axis of a success rate goes from 0 to 1.

    Args:
        path: PNG to write.
        count: how many panels.
        metrics: what the scores of each of them are.
    """
    from matplotlib.rcsetup import cycler

    rows, columns = -(-count // 2), min(count, 2)
    style = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=_COLOURS)
    with picture(path, rows, columns, (8.0 * columns, 4.4 * rows)) as axes:
        for axis in list(axes.flat)[count:]:
            axis.remove()
        for axis, metric in zip(axes.flat, metrics, strict=False):
            axis.set_prop_cycle(style)
            axis.set_ylabel(METRIC_NAMES[metric])
            if metric == "success":
                axis.set_ylim(0.0, 1.0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.25)
        yield list(axes.flat)[:count]


def draw_line(axis: Any, name: str, points: Points, *, level: bool = False, **style: Any) -> None:
    """Draw a curve with the band of its intervals; a level is thin, and has neither band nor marks.

    Args:
        axis: of the panel.
        name: in its legend.
        points: of the curve.
        level: whether it is a level.
        style: of matplotlib's line, where it is not the next one of the panel.
    """
    at, value, low, high = zip(*points, strict=True)
    shape: dict[str, Any] = {"linewidth": 1.1} if level else {"marker": "o", "markersize": 3.4}
    (line,) = axis.plot(at, value, label=name, **shape | style)
    if not level:
        axis.fill_between(at, low, high, color=line.get_color(), alpha=0.09, linewidth=0)


def add_legend(axis: Any) -> None:
    """Write the names of a panel's lines beside it."""
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7.5)
