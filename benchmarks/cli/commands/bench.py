"""``trimtab bench``: a suite, and its leaderboard."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.board import curves
from trimtab.benchmarks.board import leaderboard as boards
from trimtab.benchmarks.core import rundir
from trimtab.benchmarks.runs import provenance
from trimtab.benchmarks.runs.rows import FILE_NAME, collect_files
from trimtab.benchmarks.settings.values import MOST_SEED
from trimtab.benchmarks.suites import figures
from trimtab.benchmarks.suites.suite import load_suite, run_suite
from trimtab.errors import TrimtabError

__all__ = ["bench"]


def bench(suite: str, runs: str, out: str, workers: int, seeds: str, format: str) -> int:
    """Carry out a suite, write its leaderboard, figure and bundle, and print the tables."""
    loaded = load_suite(suite, runs, _whole_numbers(seeds) if seeds else None)
    folder = Path(out) if out else Path(runs) / "suites" / suite
    console = Console(stderr=True)
    with rundir.locked(folder):
        outcome = run_suite(loaded, folder, workers=workers, console=console)
        console.print("computing the leaderboard", highlight=False)
        table = collect_files([path / FILE_NAME for path in outcome.folders.values()], Path(runs))
        board = boards.build(
            table,
            baselines=loaded.baselines or None,
            command=f"trimtab bench suite={suite}",
            versions=provenance.versions(),
            title=loaded.title,
        )
        paths = boards.write(board, folder)
        figure = folder / "figure.png"
        if not (outcome.already_done and figure.is_file()):
            console.print("drawing the figure", highlight=False)
            if loaded.figure is None:
                curves.draw(board, figure)
            else:
                figures.draw(loaded.figure, outcome, figure)
        bundle = folder / "bundle"
        if loaded.export is not None and not (outcome.already_done and bundle.is_dir()):
            console.print("exporting the bundle", highlight=False)
            first = loaded.jobs[0].seed
            export_bundle(outcome.folder(loaded.export, first), bundle)
    if format == "json":
        sys.stdout.write(board.to_json())
        return 0
    answer = Console()
    if outcome.already_done:
        answer.print(f"suite {suite}: all {len(loaded.jobs)} runs were done before; nothing to do")
    boards.print_table(board, answer)
    plain = Console(soft_wrap=True, highlight=False)
    plain.print(f"page:    {paths['index.html']}")
    plain.print(f"figure:  {figure}")
    if loaded.export is not None:
        plain.print(f"bundle:  {bundle}")
    plain.print(f"rows:    {paths[FILE_NAME]}")
    return 0


def _whole_numbers(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise TrimtabError(f"seeds={text}: must be whole numbers, such as 0,1,2") from error
    if not all(0 <= seed <= MOST_SEED for seed in seeds):
        raise TrimtabError(f"seeds={text}: must be from 0 to {MOST_SEED}")
    if len(set(seeds)) < len(seeds):
        raise TrimtabError(f"seeds={text}: give each seed once")
    return seeds
