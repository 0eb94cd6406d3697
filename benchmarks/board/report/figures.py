"""The figures of the report as inline SVG: learning curves.

Each is drawn for a width in pixels. Colours are classes of the style sheet, so that they follow the
reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trimtab.benchmarks.board.model import Entry
from trimtab.benchmarks.board.report import svg
from trimtab.benchmarks.board.report.axes import count_text, nice_ticks, score_scale, tick_text
from trimtab.benchmarks.board.report.labels import short_names, spread
from trimtab.benchmarks.board.report.looks import dashes, swelling, turns
from trimtab.benchmarks.board.report.panels import Panel
from trimtab.benchmarks.board.report.series import curve_points, over_steps
from trimtab.benchmarks.board.wording import METRIC_NAMES

__all__ = ["CHARACTER", "Curve", "curves_of", "learning_curves"]

CHARACTER = 7.0
"""Width of an average letter of the figures' 12-pixel type, in pixels."""
_LINE = 13.0  # height of a line of it
_Points = list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Curve:
    """A method's curve: its points (x, value, low, high); ``flat`` is what takes no steps."""

    entry: Entry
    points: _Points
    flat: bool


@dataclass(frozen=True)
class _Frame:
    """Where the axes of learning curves lie, in pixels, and what their ends stand for."""

    left: float
    right: float
    top: float
    bottom: float
    last: float  # at the right end; the left end is 0
    low: float
    high: float

    def x(self, value: float) -> float:
        """Return where a number of steps or updates lies."""
        return self.left + (self.right - self.left) * value / self.last

    def y(self, value: float) -> float:
        """Return where a score lies."""
        return self.bottom - (self.bottom - self.top) * (value - self.low) / (self.high - self.low)

    def line(self, curve: Curve) -> list[tuple[float, float]]:
        """Return the corners of a curve."""
        return [(self.x(point[0]), self.y(point[1])) for point in curve.points]


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


def learning_curves(panel: Panel, width: int, height: int, letters: int) -> str:
    """Return a panel's learning curves as SVG, labelled at their ends.

    The best is drawn last, above the others, and lines that lie on one another take turns.

    Args:
        panel: what is drawn.
        width: of the drawing, in pixels.
        height: of the drawing, in pixels.
        letters: the most of them in a line of a label.
    """
    table = panel.table
    names = short_names([entry.label for entry in panel.entries], letters)
    margin = max(len(line) for name in names for line in name) * CHARACTER + 22
    everyone = curves_of(panel, panel.everyone)
    ends = [value for curve in everyone for point in curve.points for value in point[2:]]
    low, high, ticks = score_scale(table, ends)
    frame = _Frame(46.0, width - margin, 26.0, height - 40.0, float(panel.budget), low, high)
    unit = "environment steps" if over_steps(table) else "gradient updates"
    curves = everyone[: len(panel.entries)]
    parts = [
        *_curve_axes(frame, ticks, nice_ticks(0.0, frame.last, 4 if width < 400 else 5)),
        svg.text((frame.left + frame.right) / 2, height - 5, unit, "middle", "muted"),
        svg.text(0, 12, METRIC_NAMES[table.metric], "start", "muted"),
        *(_grey(frame, curve) for curve in everyone[len(panel.entries) :]),
    ]
    upwards = curves[::-1]
    taken = turns([frame.line(curve) for curve in upwards])
    parts += [_band(frame, curve, panel) for curve in upwards if not curve.flat]
    parts += [_curve(frame, curve, panel, turn) for curve, turn in zip(upwards, taken, strict=True)]
    parts += _end_labels(frame, curves, names, panel)
    return svg.drawing(width, height, f"Learning curves in {table.env}", parts)


def _curve_axes(frame: _Frame, ticks: Sequence[float], x_ticks: Sequence[float]) -> list[str]:
    """Return the grid of scores and the axis of steps or updates."""
    parts = []
    for tick in ticks:
        y = frame.y(tick)
        parts.append(svg.line(frame.left, y, frame.right, y, "grid"))
        parts.append(svg.text(frame.left - 8, y + 4, tick_text(tick, ticks), "end", "muted"))
    for tick in x_ticks:
        if tick <= frame.last * 1.001:
            x = frame.x(tick)
            parts.append(svg.line(x, frame.bottom, x, frame.bottom + 4, "axis"))
            parts.append(svg.text(x, frame.bottom + 18, count_text(tick), "middle", "muted"))
    parts.append(svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis"))
    return parts


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _grey(frame: _Frame, curve: Curve) -> str:
    """Return the line of a method that is named in another panel."""
    name = escape(curve.entry.label)
    points = _path(frame.line(curve))
    return f'<polyline class="other" points="{points}"><title>{name}</title></polyline>'


def _band(frame: _Frame, curve: Curve, panel: Panel) -> str:
    """Return the interval around a curve."""
    upper = [(frame.x(point[0]), frame.y(point[3])) for point in curve.points]
    lower = [(frame.x(point[0]), frame.y(point[2])) for point in reversed(curve.points)]
    colour = panel.colours[curve.entry.label]
    return f'<polygon class="band s{colour}" points="{_path([*upper, *lower])}"/>'


def _curve(frame: _Frame, curve: Curve, panel: Panel, turn: tuple[int, int]) -> str:
    """Return a curve with its marks; marks of lines below are larger, so that they show."""
    entry, corners = curve.entry, frame.line(curve)
    dash = dashes(turn)
    style = ""
    if dash is not None:
        offset, (stroke, gap) = dash
        style = f' stroke-dasharray="{stroke:g} {gap:g}" stroke-dashoffset="{offset:g}"'
    radius = 2.4 * (1.0 + swelling(turn))
    marks = "" if curve.flat else "".join(svg.mark(*at, radius, panel.group) for at in corners)
    hover = f"{entry.label}: {entry.mean.text(panel.table.digits)}"
    return (
        f'<g class="s{panel.colours[entry.label]}" data-method="{escape(entry.label)}">'
        f"<title>{escape(hover)}</title>"
        f'<polyline class="curve{" flat" if curve.flat else ""}"{style} '
        f'points="{_path(corners)}"/>{marks}</g>'
    )


def _end_labels(
    frame: _Frame, curves: Sequence[Curve], names: Sequence[tuple[str, ...]], panel: Panel
) -> list[str]:
    """Return the methods' names beside the ends of their curves, apart from one another."""
    ends = [frame.line(curve)[-1] for curve in curves]
    order = sorted(range(len(curves)), key=lambda place: (ends[place][1], place))
    gap = 2.0 + _LINE * max(len(name) for name in names)
    heights = spread([ends[place][1] for place in order], gap, frame.top, frame.bottom)
    right, parts = frame.right, []
    for place, height in zip(order, heights, strict=True):
        (x, y), label, lines = ends[place], curves[place].entry.label, names[place]
        parts.append(
            f'<g class="s{panel.colours[label]}"><path class="leader" d="M{x + 3:.1f} '
            f'{y:.1f}L{right + 6:.1f} {height:.1f}"/>'
            f"{svg.mark(right + 11, height, 2.8, panel.group)}</g>"
        )
        first = height + 4 - _LINE * (len(lines) - 1) / 2
        parts += [
            svg.text(right + 18, first + _LINE * number, line) for number, line in enumerate(lines)
        ]
    return parts
