"""Tables as text: Markdown for people, CSV with unrounded numbers for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.files import atomic_write_text

__all__ = ["csv_table", "markdown_page", "markdown_table", "write_texts"]


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as a Markdown table, the first column to the left and numbers to the right.

    Args:
        rows: at least one; the first one's keys are the heading.
    """
    heading = list(rows[0])
    lines = [heading, [":--", *["--:"] * (len(heading) - 1)], *([*row.values()] for row in rows)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def markdown_page(
    title: str, reading: str, tables: Mapping[str, Sequence[Mapping[str, str]]]
) -> str:
    """Return a page: its title, how to read it, and tables below their headings."""
    parts = [f"# {title}", reading]
    for heading, rows in tables.items():
        parts += [f"## {heading}", markdown_table(rows)]
    return "\n\n".join(parts) + "\n"


def csv_table(lines: Sequence[Mapping[str, Any]], intervals: Sequence[str] = ()) -> str:
    """Return lines as CSV text.

    Args:
        lines: the first one's keys are the heading; without lines there is no text.
        intervals: columns of estimates with two ends, or None. Each is written as three columns.
    """
    if not lines:
        return ""
    flat: list[dict[str, Any]] = [{} for _ in lines]
    for cells, line in zip(flat, lines, strict=True):
        for name, value in line.items():
            if name in intervals:
                names = (name, f"{name}_low", f"{name}_high")
                cells |= zip(names, value or (None, None, None), strict=True)
            else:
                cells[name] = value
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def write_texts(folder: Path, texts: Mapping[str, str]) -> dict[str, Path]:
    """Write texts by the names of their files; return the paths by the same names."""
    for name, text in texts.items():
        atomic_write_text(folder / name, text)
    return {name: folder / name for name in texts}
