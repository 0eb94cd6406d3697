"""The leaderboard as one HTML page: tables, and the picture of the learning curves beside it.

Nothing is executed, and nothing is fetched but that picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trimtab.benchmarks.board.across import LEFT_OUT, across, heading
from trimtab.benchmarks.board.model import EnvTable, Leaderboard
from trimtab.benchmarks.board.report.panels import Panel, panels_of
from trimtab.benchmarks.board.report.style import STYLE
from trimtab.benchmarks.board.report.summary import contents, headline
from trimtab.benchmarks.board.report.tables import glosses, table
from trimtab.benchmarks.board.wording import AGGREGATE_READING, METRIC_NAMES, READING

__all__ = ["FIGURE", "render"]

FIGURE = "figure.png"
"""The picture of the runs, in the folder of the page: their curves, or what a suite draws."""
_PICTURE = (
    f'<figure><a href="{FIGURE}"><img src="{FIGURE}" alt="Figure of these runs">'
    "</a><figcaption>A curve is the mean over seeds, its band the 95 percent interval; a thin line "
    "without marks is the final level of what takes no steps of this kind.</figcaption></figure>"
)


def render(board: Leaderboard) -> str:
    """Return the page as HTML; the same leaderboard gives the same text."""
    panels = panels_of(board)
    after = [("Across environments", "across")] if board.aggregates else []
    after += [("How to read this", "reading")]
    after += [(f"Notes ({len(board.notes)})", "notes")] if board.notes else []
    after += [("Provenance", "provenance")]
    body = [_header(board, panels), contents(board, panels, after), _PICTURE]
    body += [_section(one, number) for number, one in enumerate(board.tables)]
    if board.aggregates:
        body.append(_across(board))
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


def _section(one: EnvTable, number: int) -> str:
    """Return one environment: its score, its physics, and its table."""
    rows = [one.cells(entry) for entry in one.entries]
    return (
        f'<section id="env-{number}"><h2>{escape(one.env)}</h2><p class="muted">Score: '
        f"{escape(METRIC_NAMES[one.metric])} · physics "
        f"<code>{escape(one.fingerprint or 'unknown')}</code></p>"
        f"{table(rows, f'Table of {one.env}')}</section>"
    )


def _across(board: Leaderboard) -> str:
    """Return the tables over equal sets of environments, and what is in no table."""
    found, parts = across(board.aggregates), []
    for number, (envs, rows) in enumerate(found.sets):
        parts.append(f'<h3 class="budget">{escape(heading(envs, rows))}</h3>')
        cells = [row.cells() for row in rows]
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
