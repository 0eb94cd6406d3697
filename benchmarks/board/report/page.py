"""The leaderboard as one self-contained HTML page: tables, learning curves and interval plots.

Nothing is fetched and nothing is executed: styles and figures are inline. Every figure is drawn
twice, once for a wide window and once for a phone, because a scaled drawing would shrink its
letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from trimtab.benchmarks.board.across import LEFT_OUT, across, heading
from trimtab.benchmarks.board.model import EnvTable, Leaderboard
from trimtab.benchmarks.board.report.bars import last_evaluations
from trimtab.benchmarks.board.report.figures import curves_of, learning_curves
from trimtab.benchmarks.board.report.panels import Panel, has_curves, panels_of
from trimtab.benchmarks.board.report.style import STYLE
from trimtab.benchmarks.board.report.summary import contents, headline
from trimtab.benchmarks.board.report.tables import Swatch, glosses, table
from trimtab.benchmarks.board.wording import AGGREGATE_READING, METRIC_NAMES, READING

__all__ = ["render"]

_WIDE, _NARROW = 548, 350  # widths of a figure's two drawings, in pixels
_LETTERS = {_WIDE: 24, _NARROW: 15}  # of a label's line


def render(board: Leaderboard) -> str:
    """Return the page as HTML; the same leaderboard gives the same text."""
    panels = panels_of(board)
    looks: dict[str, Swatch] = {}
    for panel in reversed(panels):  # a method looks in the last table as it first does
        looks |= {label: (colour, panel.group) for label, colour in panel.colours.items()}
    after = [("Across environments", "across")] if board.aggregates else []
    after += [("How to read this", "reading")]
    after += [(f"Notes ({len(board.notes)})", "notes")] if board.notes else []
    after += [("Provenance", "provenance")]
    body = [_header(board, panels), contents(board, panels, after)]
    for number, one in enumerate(board.tables):
        body.append(_section(one, number, [panel for panel in panels if panel.table is one]))
    if board.aggregates:
        body.append(_across(board, looks))
    body.append(_footer(board))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(board.title)} · Trimtab</title><style>{STYLE}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main>{glosses()}</body></html>\n"
    )


def _header(board: Leaderboard, panels: Sequence[Panel]) -> str:
    """Return the title, the result in a sentence, and how much there is."""
    entries = [entry for table in board.tables for entry in table.entries]
    counts = (
        (len(board.tables), "environment"),
        (len({entry.label for entry in entries}), "method"),
        (sum(len(entry.runs) for entry in entries), "run"),
        (sum(run.episodes for entry in entries for run in entry.runs), "final episode"),
    )
    summary = " · ".join(f"{n:,} {word}{'s' * (n != 1)}" for n, word in counts)
    return (
        f'<header><p class="brand">Trimtab</p><h1>{escape(board.title)}</h1>'
        f'<p class="headline">{escape(headline(board, panels))}</p>'
        f'<p class="muted">{summary}</p></header>'
    )


def _section(one: EnvTable, number: int, panels: Sequence[Panel]) -> str:
    """Return one environment: its figures, a pair a panel, and its table."""
    figures = []
    for _, members in groupby(panels, key=lambda panel: panel.budget):
        here = list(members)
        if here[0].budgets > 1:
            figures.append(f'<h3 class="budget">Trained for {here[0].budget_text}</h3>')
        pairs = "".join(_curves(panel) + _bars(panel) for panel in here)
        figures.append(f'<div class="figures">{pairs}</div>')
    looks: dict[str, Swatch] = {}
    for panel in reversed(panels):
        looks |= {label: (colour, panel.group) for label, colour in panel.colours.items()}
    rows = [(one.cells(entry), looks[entry.label]) for entry in one.entries]
    return (
        f'<section id="env-{number}"><h2>{escape(one.env)}</h2><p class="muted">Score: '
        f"{escape(METRIC_NAMES[one.metric])} · physics "
        f"<code>{escape(one.fingerprint or 'unknown')}</code></p>"
        f"{''.join(figures)}{table(rows, f'Table of {one.env}')}</section>"
    )


def _curves(panel: Panel) -> str:
    """Return the learning curves of a panel, if it has any."""
    if not has_curves(panel):
        return ""
    named = curves_of(panel, panel.entries)
    caption = "Line: mean over seeds. Band: 95 percent interval over seeds."
    if any(curve.flat for curve in named):
        caption += " Thin, without marks: final level of what takes no steps of this kind."
    drawings = [
        learning_curves(panel, width, height, _LETTERS[width])
        for width, height in ((_WIDE, 300), (_NARROW, 310))
    ]
    if any("stroke-dasharray" in drawing for drawing in drawings):
        caption += " Lines that lie on one another take turns, a dash each."
    if panel.others:
        caption += " Grey: methods that are named in other panels."
    return _figure("Learning curves", panel, caption, *drawings)


def _bars(panel: Panel) -> str:
    """Return the last evaluations of a panel."""
    return _figure(
        "Last evaluation", panel, "Mark: mean over seeds. Bar: 95 percent interval. Ticks: seeds.",
        last_evaluations(panel, _WIDE, beside=True), last_evaluations(panel, _NARROW, beside=False),
    )  # fmt: skip


def _figure(title: str, panel: Panel, caption: str, wide: str, narrow: str) -> str:
    title += f", {panel.places}" if panel.places else ""
    return (
        f'<figure><h3>{title}</h3><div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _across(board: Leaderboard, looks: dict[str, Swatch]) -> str:
    """Return the tables over equal sets of environments, and what is in no table."""
    found, parts = across(board.aggregates), []
    for number, (envs, rows) in enumerate(found.sets):
        parts.append(f'<h3 class="budget">{escape(heading(envs, rows))}</h3>')
        cells = [(row.cells(), looks[row.label]) for row in rows]
        parts.append(table(cells, f"Across environments, set {number + 1}"))
    if found.left_out:
        left = "".join(
            f"<li>{escape(env)}: {escape(', '.join(labels))}</li>" for env, labels in found.left_out
        )
        parts.append(f'<h3 class="budget">{LEFT_OUT}</h3><ul class="left">{left}</ul>')
    return (
        '<section id="across"><h2>Across environments</h2>'
        f'<p class="muted">{escape(AGGREGATE_READING)}</p>{"".join(parts)}</section>'
    )


def _footer(board: Leaderboard) -> str:
    """Return how to read the page, the notes, and what the numbers depend on."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in board.notes)
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd><code>{escape(text)}</code></dd>"
        for name, text in board.provenance()
    )
    return (
        f'<footer><h2 id="reading">How to read this</h2><p>{escape(READING)}</p>'
        "<p>A heading of a table says what its column means when it is pressed.</p>"
        + (f'<h2 id="notes">Notes</h2><ul>{notes}</ul>' if notes else "")
        + f'<h2 id="provenance">Provenance</h2><dl>{facts}</dl></footer>'
    )
