"""Tables as text: Markdown for people, CSV with unrounded numbers for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

__all__ = ["csv_table", "markdown_table"]


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


def csv_table(lines: Sequence[Mapping[str, object]]) -> str:
    """Return lines as CSV text.

    Args:
        lines: the first one's keys are the heading; without lines there is no text.
    """
    if not lines:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
