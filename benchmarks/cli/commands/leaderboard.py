"""``trimtab leaderboard``: tables, anew from raw rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.board import curves
from trimtab.benchmarks.board import leaderboard as boards
from trimtab.benchmarks.board.intervals.kinds import KINDS
from trimtab.benchmarks.board.latex import to_latex
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.pictures import DRAWN, FIGURE
from trimtab.benchmarks.board.sources import collect, named_places
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.benchmarks.training import provenance
from trimtab.benchmarks.training.settings.words import listed
from trimtab.benchmarks.training.store import local_view
from trimtab.files import check_own
from trimtab.plugins import command_line

__all__ = ["leaderboard"]

_TEXTS: Mapping[str, Callable[[Leaderboard], str]] = {
    "json": Leaderboard.to_json, "csv": Leaderboard.to_csv, "latex": to_latex,
}  # fmt: skip
"""What is written to standard output alone, by the format's name."""

logger = logging.getLogger(__name__)


def leaderboard(
    runs: str, out: str, physics: str, baseline: str, metric: str, intervals: str, format: str
) -> int:
    """Recompute a leaderboard from raw rows."""
    options: dict[str, Any] = {"metric": metric} if metric else {}
    figure = Path(out, FIGURE)
    if out:
        boards.check_place(out)
        check_own(figure, DRAWN, "out")
    wanted = listed(physics)
    said = {
        "runs": runs,
        "baseline": baseline,
        "intervals": "" if intervals == KINDS[0] else intervals,
        "physics": ",".join(wanted),
    }
    command = command_line("leaderboard", *(f"{key}={word}" for key, word in said.items() if word))
    with ExitStack() as stack:
        places = [stack.enter_context(local_view(place, "runs")) for place in named_places(runs)]
        table, sources = collect(*places)
        board = boards.build(
            table,
            baselines=baseline or None,
            intervals=intervals,
            command=command,
            versions=provenance.versions(),
            sources=sources,
            physics=wanted,
            **options,
        )
    if out:
        paths = boards.write(board, out)
        curves.draw(board, figure)
        logger.info("wrote %s", ", ".join(str(path) for path in paths.values()))
    if format in _TEXTS:
        answer_stream().write(_TEXTS[format](board))
    else:
        boards.print_table(board, Console(markup=False))
    return 0
