"""Last evaluations of a panel's methods as inline SVG: dot, interval and single seeds."""

from __future__ import annotations

from html import escape

from trimtab.benchmarks.board.report import svg
from trimtab.benchmarks.board.report.axes import score_scale, tick_text
from trimtab.benchmarks.board.report.figures import CHARACTER
from trimtab.benchmarks.board.report.labels import short_names
from trimtab.benchmarks.board.report.panels import Panel
from trimtab.benchmarks.board.wording import METRIC_NAMES

__all__ = ["last_evaluations"]


def last_evaluations(panel: Panel, width: int, *, beside: bool) -> str:
    """Return final scores with intervals as SVG; labels stand beside or above their bars."""
    table, entries = panel.table, panel.entries
    names = short_names([entry.label for entry in entries], 24 if beside else 30)
    longest = max(len(line) for name in names for line in name) * CHARACTER
    values = [entry.mean.text(table.digits) for entry in entries]
    number_width = max(len(value) for value in values) * CHARACTER
    left, right = (longest + 14, width - number_width - 14) if beside else (10.0, width - 12.0)
    row = min(44.0, max(30.0, 240.0 / len(entries))) if beside else 44.0
    top, bottom = 6.0, 6.0 + row * len(entries)
    ends = [v for entry in panel.everyone for v in entry.mean[1:]]
    ends += [run.last for entry in panel.everyone for run in entry.runs]
    low_end, high_end, ticks = score_scale(table, ends)

    def x(value: float) -> float:
        return left + (right - left) * (value - low_end) / (high_end - low_end)

    parts = []
    for tick in ticks:
        parts.append(svg.line(x(tick), top - 4, x(tick), bottom, "grid"))
        parts.append(svg.text(x(tick), bottom + 18, tick_text(tick, ticks), "middle", "muted"))
    parts.append(svg.line(left, bottom, right, bottom, "axis"))
    middle = (left + right) / 2
    parts.append(svg.text(middle, bottom + 35, METRIC_NAMES[table.metric], "middle", "muted"))
    for index, (entry, value, name) in enumerate(zip(entries, values, names, strict=True)):
        head = top + row * index
        level = head + (row / 2 if beside else 29.0)
        if beside:
            parts += [
                svg.text(longest + 2, level + 4 + 13 * (line - (len(name) - 1) / 2), words, "end")
                for line, words in enumerate(name)
            ]
            parts.append(svg.text(width, level + 4, value, "end", "number"))
        else:
            parts.append(svg.text(left, head + 14, " ".join(name), "start", "halo"))
            parts.append(svg.text(width - 12.0, head + 14, value, "end", "number halo"))
        seeds = "".join(
            svg.line(x(run.last), level - 7, x(run.last), level + 7, "seed") for run in entry.runs
        )
        parts.append(
            f'<g class="s{panel.colours[entry.label]}" data-method="{escape(entry.label)}">'
            f"<title>{escape(entry.label)}: {value}</title>"
            f"{svg.line(x(entry.mean.low), level, x(entry.mean.high), level, 'bar')}{seeds}"
            f"{svg.mark(x(entry.mean.value), level, 5.0, panel.group)}</g>"
        )
    return svg.drawing(width, bottom + 40, f"Last evaluation in {table.env}", parts)
