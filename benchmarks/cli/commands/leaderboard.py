"""``trimtab leaderboard``: tables, anew from raw rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from trimtab.benchmarks import api
from trimtab.benchmarks.board import leaderboard as boards
from trimtab.benchmarks.board.latex import to_latex
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.benchmarks.training.settings.words import listed

__all__ = ["leaderboard"]

_TEXTS: Mapping[str, Callable[[Leaderboard], str]] = {
    "json": Leaderboard.to_json, "csv": Leaderboard.to_csv, "latex": to_latex,
}  # fmt: skip
"""What is written to standard output alone, by the format's name."""


def leaderboard(
    runs: str, out: str, physics: str, baseline: str, metric: str, intervals: str, format: str
) -> int:
    """Recompute a leaderboard from raw rows."""
    options: dict[str, Any] = {"metric": metric} if metric else {}
    board = api.leaderboard(
        runs, out=out or None, baseline=baseline or None, intervals=intervals,
        physics=listed(physics), **options,
    )  # fmt: skip
    if format in _TEXTS:
        answer_stream().write(_TEXTS[format](board))
    else:
        boards.print_table(board, Console(markup=False))
    return 0
