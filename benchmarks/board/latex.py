"""A leaderboard as LaTeX tables, for the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.wording import METRIC_NAMES

__all__ = ["to_latex"]

_SHOWN = ("Method", "Mean [95%]", "IQM [95%]", "Gain [95%]", "Baseline", "Seeds", "Episodes")
_LETTERS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "\"": "''",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip
"""What LaTeX reads otherwise than it is written."""
_SIGNED = re.compile(r"(?<![\w.)])[+-]\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")


def to_latex(board: Leaderboard) -> str:
    """Return a floating table for each environment; notes stand before them, as comments."""
    parts = [r"% \usepackage{booktabs}", f"% intervals: {board.intervals}"]
    parts += [f"% note: {note}" for note in board.notes]
    for table in board.tables:
        cells = [table.cells(entry) for entry in table.entries]
        rows = [{name: row[name] for name in _SHOWN} for row in cells]
        caption = f"{table.env}: {METRIC_NAMES[table.metric]}, with 95 percent intervals."
        parts += ["", _table(rows, caption)]
    return "\n".join(parts) + "\n"


def _table(rows: Sequence[Mapping[str, str]], caption: str) -> str:
    """Return rows as a table, names to the left and numbers to the right."""
    left = ("Method", "Baseline")
    columns = "".join("l" if name in left else "r" for name in _SHOWN)
    heading = [name.removesuffix(" [95%]") for name in _SHOWN]
    lines = [
        r"\begin{table}", r"  \centering", f"  \\caption{{{_escaped(caption)}}}",
        f"  \\begin{{tabular}}{{{columns}}}", r"    \toprule", f"    {_line(heading)}",
        r"    \midrule",
    ]  # fmt: skip
    lines += [f"    {_line([*row.values()])}" for row in rows]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"])


def _line(cells: Sequence[str]) -> str:
    first, *rest = (_escaped(cell) for cell in cells)
    if first.startswith("["):  # behind the last line's end it would be an argument
        first = f"{{}}{first}"
    return " & ".join([first, *rest]) + r" \\"


def _escaped(text: str) -> str:
    """Return a text as LaTeX writes it; numbers with signs stand in mathematics, for the minus."""
    parts, end = [], 0
    for found in _SIGNED.finditer(text):
        parts.append("".join(_LETTERS.get(letter, letter) for letter in text[end : found.start()]))
        parts.append(f"${found[0].replace(',', '{,}')}$")
        end = found.end()
    return "".join([*parts, *(_LETTERS.get(letter, letter) for letter in text[end:])])
