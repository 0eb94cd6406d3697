"""The figures of the report as inline SVG: learning curves, and the last evaluation.

Each is drawn for a width in pixels. Colours are classes of the style sheet, so that they follow the
reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from trimtab.benchmarks.board.model import Entry, EnvTable
from trimtab.benchmarks.board.report import svg
from trimtab.benchmarks.board.report.axes import count_text, nice_ticks, score_scale, tick_text
from trimtab.benchmarks.board.report.series import curve_points, over_steps
from trimtab.benchmarks.board.wording import METRIC_NAMES

__all__ = ["last_evaluations", "learning_curves", "spread"]

_CHARACTER = 6.4  # width of an average letter of the figures' 12-pixel type, in pixels
_Points = list[tuple[float, float, float, float]]


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


def learning_curves(table: EnvTable, colours: Mapping[str, int], width: int, height: int) -> str:
    """Return the learning curves of one environment as SVG, labelled at their ends."""
    margin = max(len(_short(entry.label)) for entry in table.entries) * _CHARACTER + 22
    curves = [(entry, curve_points(table, entry)) for entry in table.entries]
    ends = [value for entry, points in curves for value in (entry.mean.low, entry.mean.high)]
    ends += [value for _, points in curves for point in points for value in point[2:]]
    low, high, ticks = score_scale(table, ends)
    last = max(point[0] for _, points in curves for point in points)
    frame = _Frame(46.0, width - margin, 26.0, height - 40.0, last, low, high)
    unit = "environment steps" if over_steps(table) else "gradient updates"
    parts = [
        *_curve_axes(frame, ticks, nice_ticks(0.0, last, 4 if width < 400 else 5)),
        svg.text((frame.left + frame.right) / 2, height - 5, unit, "middle", "muted"),
        svg.text(0, 12, METRIC_NAMES[table.metric], "start", "muted"),
    ]
    finals = []
    for entry, points in curves:
        drawn: _Points = points or [(0.0, *entry.mean), (last, *entry.mean)]
        hover = f"{entry.label}: {entry.mean.text(table.digits)}"
        parts.append(_curve(frame, drawn, hover, colours[entry.label], flat=not points))
        finals.append((frame.y(drawn[-1][1]), frame.x(drawn[-1][0]), entry))
    parts += _end_labels(frame, finals, colours)
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


def _curve(frame: _Frame, points: _Points, hover: str, colour: int, *, flat: bool) -> str:
    """Return a curve with its band; ``flat`` is the level of what takes no steps."""
    upper = [f"{frame.x(p[0]):.1f},{frame.y(p[3]):.1f}" for p in points]
    lower = [f"{frame.x(p[0]):.1f},{frame.y(p[2]):.1f}" for p in reversed(points)]
    middle = " ".join(f"{frame.x(p[0]):.1f},{frame.y(p[1]):.1f}" for p in points)
    return (
        f'<g class="s{colour}"><title>{escape(hover)}</title>'
        + ("" if flat else f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        + f'<polyline class="curve{" flat" if flat else ""}" points="{middle}"/>'
        + ("" if flat else "".join(svg.dot(frame.x(p[0]), frame.y(p[1]), 2.2) for p in points))
        + "</g>"
    )


def _end_labels(
    frame: _Frame, finals: Sequence[tuple[float, float, Entry]], colours: Mapping[str, int]
) -> list[str]:
    """Return the methods' names beside the ends of their curves, at (y, x) pixels."""
    ordered = sorted(finals, key=lambda final: final[0])
    places = spread([y for y, _, _ in ordered], 15.0, frame.top, frame.bottom)
    right = frame.right
    return [
        f'<g class="s{colours[entry.label]}"><path class="leader" d="M{x + 2:.1f} '
        f'{y:.1f}L{right + 6:.1f} {place:.1f}H{right + 12:.1f}"/></g>'
        + svg.text(right + 16, place + 4, _short(entry.label))
        for (y, x, entry), place in zip(ordered, places, strict=True)
    ]


def last_evaluations(
    table: EnvTable, colours: Mapping[str, int], width: int, *, beside: bool
) -> str:
    """Return final scores with intervals as SVG; labels stand beside or above their bars."""
    longest = max(len(_short(entry.label)) for entry in table.entries) * _CHARACTER
    values = [entry.mean.text(table.digits) for entry in table.entries]
    number_width = max(len(value) for value in values) * _CHARACTER
    left, right = (longest + 14, width - number_width - 14) if beside else (10.0, width - 12.0)
    row = min(44.0, max(30.0, 240.0 / len(table.entries))) if beside else 44.0
    top = 6.0
    bottom = top + row * len(table.entries)
    height = bottom + 40
    ends = [v for entry in table.entries for v in entry.mean[1:]]
    ends += [run.last for entry in table.entries for run in entry.runs]
    low_end, high_end, ticks = score_scale(table, ends)

    def x(value: float) -> float:
        return left + (right - left) * (value - low_end) / (high_end - low_end)

    parts = []
    for tick in ticks:
        parts.append(svg.line(x(tick), top - 4, x(tick), bottom, "grid"))
        parts.append(svg.text(x(tick), bottom + 18, tick_text(tick, ticks), "middle", "muted"))
    parts.append(svg.line(left, bottom, right, bottom, "axis"))
    parts.append(
        svg.text((left + right) / 2, height - 5, METRIC_NAMES[table.metric], "middle", "muted")
    )
    for index, (entry, value) in enumerate(zip(table.entries, values, strict=True)):
        head = top + row * index
        middle = head + (row / 2 if beside else 29.0)
        if beside:
            parts.append(svg.text(longest + 2, middle + 4, _short(entry.label), "end"))
            parts.append(svg.text(width, middle + 4, value, "end", "number"))
        else:
            parts.append(svg.text(left, head + 14, _short(entry.label), "start", "halo"))
            parts.append(svg.text(width - 12.0, head + 14, value, "end", "number halo"))
        low, high = x(entry.mean.low), x(entry.mean.high)
        ticks_of_seeds = "".join(
            svg.line(x(run.last), middle - 7, x(run.last), middle + 7, "seed") for run in entry.runs
        )
        parts.append(
            f'<g class="s{colours[entry.label]}"><title>{escape(entry.label)}: {value}</title>'
            f"{svg.line(low, middle, high, middle, 'bar')}{ticks_of_seeds}"
            f"{svg.dot(x(entry.mean.value), middle, 5.0)}</g>"
        )
    return svg.drawing(width, height, f"Last evaluation in {table.env}", parts)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least ``gap`` apart within the limits, near the sorted wanted ones."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else max(place, low))
    ceiling = max(high, low + gap * (len(places) - 1))
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places


def _short(label: str, limit: int = 22) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"
