"""Tables of the report as HTML: a gloss at each heading, and a sign that they scroll.

A heading is a button that opens its gloss, by mouse, finger or key, and without a script. Where a
browser is too old for that, all glosses stand at the end of the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from trimtab.benchmarks.board.wording import GLOSSES

__all__ = ["glosses", "table"]


def table(rows: Sequence[Mapping[str, str]], name: str) -> str:
    """Return an HTML table; intervals stand small below their value.

    Args:
        rows: cells by heading.
        name: what the table is called where it cannot be seen.
    """
    heading = "".join(f'<th scope="col">{_heading(column)}</th>' for column in rows[0])
    lines = []
    for cells in rows:
        first, *rest = cells.values()
        line = f'<th scope="row">{escape(first)}</th>'
        for cell in rest:
            value, bracket, interval = cell.partition(" [")
            small = f"<small>[{escape(interval)}</small>" if bracket else ""
            words = ' class="words"' if value[:1].isalpha() else ""
            line += f"<td{words}>{escape(value)}{small}</td>"
        lines.append(f"<tr>{line}</tr>")
    return (
        '<p class="hint" aria-hidden="true">Scroll the table sideways for more columns →</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"<thead><tr>{heading}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _heading(column: str) -> str:
    """Return a column's heading with its gloss, if it has one."""
    name = column.removesuffix(" [95%]")
    gloss = GLOSSES.get(name)
    if gloss is None:
        return escape(name)
    return (
        f'<button type="button" popovertarget="{_target(name)}" title="{escape(gloss)}">'
        f"{escape(name)}</button>"
    )


def _target(name: str) -> str:
    return "gloss-" + re.sub(r"[^a-z]+", "-", name.lower()).strip("-")


def glosses() -> str:
    """Return what all headings open."""
    return "".join(
        f'<div class="gloss" popover id="{_target(name)}"><strong>{escape(name)}</strong>'
        f"<p>{escape(text)}</p></div>"
        for name, text in GLOSSES.items()
    )
