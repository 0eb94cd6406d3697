"""The leaderboard as one self-contained HTML page: tables, learning curves and interval plots.

Nothing is fetched and nothing is executed: styles are inline, figures are inline SVG drawn here, so
that they follow the reader's light or dark scheme. Every figure is drawn twice, once for a wide
window and once for a phone, because a scaled drawing would shrink its letters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from trimtab.benchmarks.board.stats import number_text

if TYPE_CHECKING:  # leaderboard.py writes this page, so only its types are needed here
    from trimtab.benchmarks.board.leaderboard import Entry, EnvTable, Leaderboard

METRIC_NAMES = {"success": "success rate", "return": "return (sum of rewards)"}
READING = (
    "Each row is one configuration at the last evaluation of each of its seeds. Brackets are 95 "
    "percent intervals over seeds; with one seed they are over its episodes alone. With three "
    "seeds they are wide, because three seeds tell little: a gain is found with 80 percent power "
    "only if it is more than three times the standard deviation between seeds. IQM is the "
    "interquartile mean over seeds. Methods stand in its order, and in that of the mean where it "
    "is equal. Best takes each seed's best checkpoint afterwards and is "
    "optimistic. Gain is the mean minus that of the baseline, and lowest seed the gain of the seed "
    "that gained least. P(better) is the chance that a random seed beats a random seed of the "
    "baseline. docs/statistics.md says how the intervals are made and how often they hold the "
    "truth."
)
AGGREGATE_READING = (
    "Success rates of all seeds in all environments where a method was run; the environments are "
    "taken as given, the seeds as a sample. Only rows over the same environments compare."
)

_COLOURS = 8
_CHARACTER = 6.4  # width of an average letter of the figures' 12-pixel type, in pixels
_WIDE, _NARROW = 548, 350


def provenance(board: Leaderboard) -> list[tuple[str, str]]:
    """Return what the numbers depend on, as pairs of name and text."""
    facts = [("command", board.command)] if board.command else []
    facts += [("rows", f"{board.rows.num_rows:,} evaluation episodes (episodes.parquet)")]
    facts += [("intervals", board.intervals)]
    if board.versions:
        facts += [("versions", ", ".join(f"{k} {v}" for k, v in board.versions.items()))]
    return facts + [(f"physics of {t.env}", t.fingerprint or "unknown") for t in board.tables]


def render(board: Leaderboard) -> str:
    """Return the page as HTML; the same leaderboard gives the same text."""
    colours = colours_of(board)
    entries = [entry for table in board.tables for entry in table.entries]
    counts = (
        (len(board.tables), "environment"),
        (len({entry.label for entry in entries}), "method"),
        (sum(len(entry.runs) for entry in entries), "run"),
        (sum(run.episodes for entry in entries for run in entry.runs), "final episode"),
    )
    summary = " · ".join(f"{n:,} {word}{'s' * (n != 1)}" for n, word in counts)
    body = [
        f'<header><p class="brand">Trimtab</p><h1>{escape(board.title)}</h1>'
        f'<p class="muted">{summary}</p></header>'
    ]
    body += [_section(table, colours) for table in board.tables]
    if board.aggregates:
        rows = [(row.cells(), colours[row.label]) for row in board.aggregates]
        body.append(
            "<section><h2>Across environments</h2>"
            f'<p class="muted">{escape(AGGREGATE_READING)}</p>{_table(rows)}</section>'
        )
    notes = "".join(f"<li>{escape(note)}</li>" for note in board.notes)
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd><code>{escape(text)}</code></dd>"
        for name, text in provenance(board)
    )
    body.append(
        f"<footer><h2>How to read this</h2><p>{escape(READING)}</p>"
        + (f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "")
        + f"<h2>Provenance</h2><dl>{facts}</dl></footer>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(board.title)} · Trimtab</title><style>{_STYLE}</style></head>\n"
        "<body><main>" + "\n".join(body) + "</main></body></html>\n"
    )


def colours_of(board: Leaderboard) -> dict[str, int]:
    """Return a colour number for each method: the same everywhere, distinct where two meet."""
    chosen: dict[str, int] = {}
    for label in sorted({entry.label for table in board.tables for entry in table.entries}):
        taken = {
            chosen[entry.label]
            for table in board.tables
            if any(entry.label == label for entry in table.entries)
            for entry in table.entries
            if entry.label in chosen
        }
        free = [number for number in range(_COLOURS) if number not in taken]
        chosen[label] = free[0] if free else len(chosen) % _COLOURS
    return chosen


def _section(table: EnvTable, colours: dict[str, int]) -> str:
    """Return one environment: its figures and its table."""
    figures = []
    if _has_curves(table):
        flat = any(not curve_points(table, entry) for entry in table.entries)
        figures.append(
            _figure(
                "Learning curves",
                "Line: mean over seeds. Band: 95 percent interval over seeds."
                + (" Dashed: final level of what takes no environment steps." if flat else ""),
                _curves(table, colours, _WIDE, 300),
                _curves(table, colours, _NARROW, 270),
            )
        )
    figures.append(
        _figure(
            "Last evaluation",
            "Dot: mean over seeds. Bar: 95 percent interval. Ticks: single seeds.",
            _dots(table, colours, _WIDE, beside=True),
            _dots(table, colours, _NARROW, beside=False),
        )
    )
    rows = [(table.cells(entry), colours[entry.label]) for entry in table.entries]
    return (
        f'<section><h2>{escape(table.env)}</h2><p class="muted">Score: '
        f"{escape(METRIC_NAMES[table.metric])} · physics "
        f"<code>{escape(table.fingerprint or 'unknown')}</code></p>"
        f'<div class="figures">{"".join(figures)}</div>{_table(rows)}</section>'
    )


def _figure(title: str, caption: str, wide: str, narrow: str) -> str:
    return (
        f'<figure><h3>{title}</h3><div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _table(rows: Sequence[tuple[dict[str, str], int]]) -> str:
    """Return an HTML table; intervals stand small below their value."""
    heading = "".join(
        f'<th scope="col">{escape(name.removesuffix(" [95%]"))}</th>' for name in rows[0][0]
    )
    lines = []
    for cells, colour in rows:
        first, *rest = cells.values()
        line = f'<th scope="row"><i class="swatch s{colour}"></i>{escape(first)}</th>'
        for cell in rest:
            value, bracket, interval = cell.partition(" [")
            small = f"<small>[{escape(interval)}</small>" if bracket else ""
            line += f"<td>{escape(value)}{small}</td>"
        lines.append(f"<tr>{line}</tr>")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>'
        f"<thead><tr>{heading}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


# ---------------------------------------------------------------------------------------------
# Figures


def _has_curves(table: EnvTable) -> bool:
    return any(len(curve_points(table, entry)) > 1 for entry in table.entries)


def over_steps(table: EnvTable) -> bool:
    """Whether curves run over environment steps; over updates where nobody takes any."""
    return any(entry.online for entry in table.entries)


def curve_points(table: EnvTable, entry: Entry) -> list[tuple[float, float, float, float]]:
    """Return (x, value, low, high) of a curve; empty for what is drawn as a level."""
    if not over_steps(table):
        points = [(float(p.updates), *p.score) for p in entry.curve]
        return points if points[-1][0] > 0 else []
    if not entry.online:
        return []
    # Of an offline phase only its end, at step 0, belongs on an axis of environment steps.
    return list({p.env_steps: (float(p.env_steps), *p.score) for p in entry.curve}.values())


def _curves(table: EnvTable, colours: dict[str, int], width: int, height: int) -> str:
    """Return the learning curves of one environment as SVG, labelled at their ends."""
    margin = max(len(_short(entry.label)) for entry in table.entries) * _CHARACTER + 22
    left, right, top, bottom = 46.0, width - margin, 26.0, height - 40.0
    curves = [(entry, curve_points(table, entry)) for entry in table.entries]
    ends = [value for entry, points in curves for value in (entry.mean.low, entry.mean.high)]
    ends += [value for _, points in curves for point in points for value in point[2:]]
    bottom_score, top_score, ticks = _scale(table, ends)
    last = max(point[0] for _, points in curves for point in points)
    x_ticks = _nice_ticks(0.0, last, 4 if width < 400 else 5)

    def x(value: float) -> float:
        return left + (right - left) * value / last

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - bottom_score) / (top_score - bottom_score)

    parts = []
    for tick in ticks:
        parts.append(_line(left, y(tick), right, y(tick), "grid"))
        parts.append(_text(left - 8, y(tick) + 4, _tick_text(tick, ticks), "end", "muted"))
    for tick in x_ticks:
        if tick <= last * 1.001:
            parts.append(_line(x(tick), bottom, x(tick), bottom + 4, "axis"))
            parts.append(_text(x(tick), bottom + 18, _count_text(tick), "middle", "muted"))
    parts.append(_line(left, bottom, right, bottom, "axis"))
    unit = "environment steps" if over_steps(table) else "gradient updates"
    parts.append(_text((left + right) / 2, height - 5, unit, "middle", "muted"))
    parts.append(_text(0, 12, METRIC_NAMES[table.metric], "start", "muted"))
    finals = []
    for entry, points in curves:
        flat = not points
        points = points or [(0.0, *entry.mean), (last, *entry.mean)]
        upper = [f"{x(p[0]):.1f},{y(p[3]):.1f}" for p in points]
        lower = [f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in reversed(points)]
        middle = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points)
        hover = f"<title>{escape(entry.label)}: {entry.mean.text(table.digits)}</title>"
        parts.append(
            f'<g class="s{colours[entry.label]}">{hover}'
            + ("" if flat else f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
            + f'<polyline class="curve{" flat" if flat else ""}" points="{middle}"/>'
            + ("" if flat else "".join(_dot(x(p[0]), y(p[1]), 2.2) for p in points))
            + "</g>"
        )
        finals.append((y(points[-1][1]), x(points[-1][0]), entry))
    finals.sort(key=lambda final: final[0])
    places = _spread([final[0] for final in finals], 15.0, top, bottom)
    for (height_of, end, entry), place in zip(finals, places, strict=True):
        parts.append(
            f'<g class="s{colours[entry.label]}"><path class="leader" d="M{end + 2:.1f} '
            f'{height_of:.1f}L{right + 6:.1f} {place:.1f}H{right + 12:.1f}"/></g>'
            + _text(right + 16, place + 4, _short(entry.label))
        )
    return _svg(width, height, f"Learning curves in {table.env}", parts)


def _dots(table: EnvTable, colours: dict[str, int], width: int, *, beside: bool) -> str:
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
    low_end, high_end, ticks = _scale(table, ends)

    def x(value: float) -> float:
        return left + (right - left) * (value - low_end) / (high_end - low_end)

    parts = []
    for tick in ticks:
        parts.append(_line(x(tick), top - 4, x(tick), bottom, "grid"))
        parts.append(_text(x(tick), bottom + 18, _tick_text(tick, ticks), "middle", "muted"))
    parts.append(_line(left, bottom, right, bottom, "axis"))
    parts.append(
        _text((left + right) / 2, height - 5, METRIC_NAMES[table.metric], "middle", "muted")
    )
    for index, (entry, value) in enumerate(zip(table.entries, values, strict=True)):
        head = top + row * index
        middle = head + (row / 2 if beside else 29.0)
        if beside:
            parts.append(_text(longest + 2, middle + 4, _short(entry.label), "end"))
            parts.append(_text(width, middle + 4, value, "end", "number"))
        else:
            parts.append(_text(left, head + 14, _short(entry.label), "start", "halo"))
            parts.append(_text(width - 12.0, head + 14, value, "end", "number halo"))
        low, high = x(entry.mean.low), x(entry.mean.high)
        ticks_of_seeds = "".join(
            _line(x(run.last), middle - 7, x(run.last), middle + 7, "seed") for run in entry.runs
        )
        parts.append(
            f'<g class="s{colours[entry.label]}"><title>{escape(entry.label)}: {value}</title>'
            f"{_line(low, middle, high, middle, 'bar')}{ticks_of_seeds}"
            f"{_dot(x(entry.mean.value), middle, 5.0)}</g>"
        )
    return _svg(width, height, f"Last evaluation in {table.env}", parts)


def _spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least ``gap`` apart within the limits, near the sorted wanted ones."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else max(place, low))
    ceiling = max(high, low + gap * (len(places) - 1))
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places


def _scale(table: EnvTable, values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Return the ends of a score axis and the ticks between them."""
    if table.metric == "success":
        return 0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]
    room = 0.05 * ((max(values) - min(values)) or abs(max(values)) or 1.0)
    low, high = min(values) - room, max(values) + room
    return low, high, [tick for tick in _nice_ticks(low, high, 5) if low <= tick <= high]


def _nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round numbers whose ends enclose ``low`` and ``high``."""
    span = (high - low) or abs(high) or 1.0
    rough = span / max(count - 1, 1)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(m * scale for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * scale >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, max(last, first + 1) + 1)]


def _tick_text(value: float, ticks: Sequence[float]) -> str:
    if abs(max(ticks, key=abs)) >= 10_000 or len(ticks) < 2:
        return _count_text(value)
    step = ticks[1] - ticks[0]
    return number_text(value, max(0, -math.floor(math.log10(step) + 1e-9) + _halves(step)))


def _halves(step: float) -> int:
    """Return 1 for a step such as 0.25 or 2.5, which needs a decimal more than its size says."""
    return int(round(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 6) == 2.5)


def _count_text(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _short(label: str, limit: int = 22) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _dot(x: float, y: float, radius: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", name: str = "") -> str:
    return (
        f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


# Series colours: Okabe and Ito's set, darkened for light ground and lightened for dark ground.
_STYLE = """
:root{--ground:#fff;--panel:#f6f7f9;--ink:#1b2129;--muted:#5c6672;--rule:#e1e5ea;--axis:#9aa4af;
--s0:#0072b2;--s1:#d55e00;--s2:#008a65;--s3:#a8508c;--s4:#b07d00;--s5:#4f9fd0;--s6:#7b4b2b;
--s7:#5b6570}
@media(prefers-color-scheme:dark){:root{--ground:#12161b;--panel:#1a2027;--ink:#e8ecf0;
--muted:#9ba6b2;--rule:#2a323b;--axis:#66717d;--s0:#4ea3e0;--s1:#f58b4c;--s2:#2fc39a;--s3:#dd92c8;
--s4:#e6bb45;--s5:#9ad4f5;--s6:#c79b78;--s7:#a9b3be}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);-webkit-text-size-adjust:100%;
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 24px 56px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.015em;margin:2px 0 6px}
h2{font-size:20px;letter-spacing:-.01em;margin:0 0 2px;overflow-wrap:anywhere}
h3{font-size:13px;font-weight:600;margin:0 0 10px}
p{margin:0 0 12px}
.brand{color:var(--s0);font-weight:650;font-size:14px;margin:0}
.muted,figcaption{color:var(--muted)}
section,footer{border-top:1px solid var(--rule);padding-top:26px;margin-top:34px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:20px;
margin:14px 0 18px}
figure{margin:0;padding:16px 18px 14px;background:var(--panel);border-radius:10px;
min-width:0;display:flex;flex-direction:column}
figure:only-child{max-width:640px}
figcaption{font-size:12.5px;line-height:1.45;margin-top:auto;
padding-top:8px}
svg{display:block;width:100%;height:auto;font-size:12px;fill:var(--ink);overflow:visible}
.narrow{display:none}
text.muted{fill:var(--muted)}
text.number{font-variant-numeric:tabular-nums}
.halo{paint-order:stroke;stroke:var(--panel);stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--rule)}.axis{stroke:var(--axis)}
.curve{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.flat{stroke-dasharray:5 5;stroke-width:1.6}
.band{fill:currentColor;opacity:.14}
.leader{fill:none;stroke:currentColor;stroke-width:1;opacity:.7}
.bar{stroke:currentColor;stroke-width:6;opacity:.38}
.seed{stroke:currentColor;stroke-width:1.5;opacity:.75}
g circle{fill:currentColor}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:13.5px;line-height:1.35;width:100%;
font-variant-numeric:tabular-nums}
th,td{padding:8px 10px;text-align:right;white-space:nowrap;vertical-align:top;
border-bottom:1px solid var(--rule)}
thead th{font-weight:600;font-size:12.5px;color:var(--muted);border-bottom-color:var(--axis)}
th:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--ground)}
tbody th{font-weight:600}
td small{display:block;color:var(--muted);font-size:12px}
.swatch{display:inline-block;width:9px;height:9px;border-radius:50%;background:currentColor;
margin-right:8px}
footer{font-size:14px}footer p,footer ul{max-width:76ch}footer h2{font-size:15px;margin-top:20px}
ul{margin:0;padding-left:20px}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 18px;margin:6px 0 0}
dt{color:var(--muted);overflow-wrap:anywhere}dd{margin:0}
code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
@media(max-width:560px){main{padding:24px 16px 40px}h1{font-size:25px}h2{font-size:18px}
.wide{display:none}.narrow{display:block}figure{padding:14px 10px 12px}
dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:8px}}
""".strip()
