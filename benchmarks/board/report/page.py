"""The leaderboard as one self-contained HTML page: tables, learning curves and interval plots.

Nothing is fetched and nothing is executed: styles and figures are inline. Every figure is drawn
twice, once for a wide window and once for a phone, because a scaled drawing would shrink its
letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from trimtab.benchmarks.board.model import EnvTable, Leaderboard
from trimtab.benchmarks.board.report.figures import last_evaluations, learning_curves
from trimtab.benchmarks.board.report.series import colours_of, curve_points, has_curves
from trimtab.benchmarks.board.report.style import STYLE
from trimtab.benchmarks.board.wording import AGGREGATE_READING, METRIC_NAMES, READING

__all__ = ["render"]

_WIDE, _NARROW = 548, 350  # widths of a figure's two drawings, in pixels


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
        for name, text in board.provenance()
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
        f"<title>{escape(board.title)} · Trimtab</title><style>{STYLE}</style></head>\n"
        "<body><main>" + "\n".join(body) + "</main></body></html>\n"
    )


def _section(table: EnvTable, colours: Mapping[str, int]) -> str:
    """Return one environment: its figures and its table."""
    figures = []
    if has_curves(table):
        flat = any(not curve_points(table, entry) for entry in table.entries)
        figures.append(
            _figure(
                "Learning curves",
                "Line: mean over seeds. Band: 95 percent interval over seeds."
                + (" Dashed: final level of what takes no environment steps." if flat else ""),
                learning_curves(table, colours, _WIDE, 300),
                learning_curves(table, colours, _NARROW, 270),
            )
        )
    figures.append(
        _figure(
            "Last evaluation",
            "Dot: mean over seeds. Bar: 95 percent interval. Ticks: single seeds.",
            last_evaluations(table, colours, _WIDE, beside=True),
            last_evaluations(table, colours, _NARROW, beside=False),
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


def _table(rows: Sequence[tuple[Mapping[str, str], int]]) -> str:
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
