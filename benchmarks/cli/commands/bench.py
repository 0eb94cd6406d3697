"""``trimtab bench``: a suite, and its leaderboard."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.board import best_and_last, budgeted, curves, normalised, published, switch
from trimtab.benchmarks.board import leaderboard as boards
from trimtab.benchmarks.board.arena import figure as arena_figure
from trimtab.benchmarks.board.arena import writing as arena_writing
from trimtab.benchmarks.board.arena.table import build as arena_table
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.pictures import FIGURE
from trimtab.benchmarks.board.sources import sources_of
from trimtab.benchmarks.cli.records import RECORDS, methods_of, records_of
from trimtab.benchmarks.cli.screen import print_json, print_line, print_rows
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.benchmarks.core.numerals import time_text
from trimtab.benchmarks.suites import figures
from trimtab.benchmarks.suites.estimate import Estimate, estimate_suite
from trimtab.benchmarks.suites.launch import chosen_launcher
from trimtab.benchmarks.suites.run_suite import SuiteRuns, run_suite
from trimtab.benchmarks.suites.suite import Suite, load_suite
from trimtab.benchmarks.training import locking, provenance
from trimtab.benchmarks.training.rows import FILE_NAME, SUITE_NOTE, collect_files
from trimtab.benchmarks.training.settings.run_settings import MOST_SEED
from trimtab.benchmarks.training.settings.words import listed, nearest
from trimtab.benchmarks.training.store import is_address
from trimtab.errors import TrimtabError
from trimtab.files import check_own, read_json
from trimtab.plugins import command_line

__all__ = ["bench"]

FURTHER = {
    "best_and_last": best_and_last, "budgeted": budgeted, "normalised": normalised,
    "published": published, "switch": switch,
}  # fmt: skip
"""Tables that a suite may ask for beside its leaderboard."""
_NAMED = ((SUITE_NOTE, "suite"), ("leaderboard.json", "title"))
"""What says of a folder which suite's tables are there."""


def bench(
    suite: str,
    runs: str,
    out: str,
    workers: int,
    launcher: str,
    scale: str,
    seeds: str,
    only: str,
    device: str,
    format: str,
    action: str = "run",
    overrides: Sequence[str] = (),
) -> int:
    """Carry out a suite, write its leaderboard, figure and bundle, and print the tables.

    ``overrides`` are the launcher's own settings.
    """
    if os.path.isfile(runs):
        raise TrimtabError(f"runs={runs}: is a file; name a folder for the runs")
    chosen = listed(only)
    if only and not chosen:
        raise TrimtabError(f"only={only}: names no run; leave it out for all runs")
    loaded = load_suite(
        suite,
        runs,
        _whole_numbers(seeds) if seeds else None,
        scale or None,
        chosen,
        device or None,
    )
    for asked in loaded.tables:
        if asked not in FURTHER:
            raise TrimtabError(f"suite={suite}: tables: {nearest(asked, FURTHER)}")
    name = "-".join([loaded.name, *([scale] if scale else []), *(["part"] if chosen else [])])
    folder = Path(out) if out else Path("runs" if is_address(runs) else runs) / "suites" / name
    if action == "status":
        _print_status(folder, runs, format)
        return 0
    if action == "plan":
        _print_plan(estimate_suite(loaded, Path(runs), _done(folder)), workers, format)
        return 0
    where = chosen_launcher(launcher, overrides)
    chosen_by = {"suite": suite, "scale": scale, "only": only, "device": device}
    command = command_line("bench", *(f"{key}={word}" for key, word in chosen_by.items() if word))
    console = Console(stderr=True, markup=False)
    _check_place(folder, loaded)
    _ = loaded.composed  # a wrong word of the last run is told before the first run begins
    with locking.locked(folder):
        outcome = run_suite(loaded, folder, workers=workers, console=console, launcher=where)
        board, paths = _publish(loaded, outcome, folder, Path(runs), command, console)
    if format == "json":
        answer_stream().write(board.to_json())
        return 0
    answer = Console(markup=False)
    if outcome.already_done:
        answer.print(f"suite {name}: all {len(loaded.jobs)} runs were done before; nothing to do")
    boards.print_table(board, answer)
    for what, path in paths.items():
        print_line(f"{what + ':':<11} {path}")
    return 0


def _done(folder: Path) -> set[str]:
    """Return the runs of a suite that are finished, as far as an earlier call has noted it."""
    done = (_note_of(folder) or {}).get("folders", {})
    return {run.replace("/", " seed ") for run in done}


def _print_status(folder: Path, runs: str, format: str) -> None:
    """Print how far the suite is whose tables are, or will be, in a folder.

    Raises:
        TrimtabError: if it was never begun.
    """
    note = _note_of(folder)
    if note is None:
        raise TrimtabError(f"bench: nothing was begun in {folder}; leave the word status out")
    done, waiting = list(note["folders"]), note.get("waiting", [])
    state = "running" if locking.in_use(folder) else "stopped" if waiting else "done"
    if format == "json":
        print_json({"state": state, "done": done, "waiting": waiting})
        return
    hint = {
        "running": "it goes on",
        "stopped": "run the same command to resume",
        "done": "that is all",
    }
    print_line(f"{len(done)} of {len(done) + len(waiting)} runs are done; {hint[state]}")
    print_line(f"trimtab runs {shlex.quote(runs)} shows how far each is")


def _note_of(folder: Path) -> Mapping[str, Any] | None:
    """Return what a suite has noted in the folder of its tables; None where it cannot be read."""
    try:
        found = read_json(folder / SUITE_NOTE, "suite")
    except TrimtabError:
        return None
    whole = isinstance(found, dict) and isinstance(found.get("folders"), dict)
    return found if whole and isinstance(found.get("waiting", []), list) else None


def _print_plan(plan: Estimate, workers: int, format: str) -> None:
    """Print what a suite will take, a line a run, and in all."""
    side = workers or os.cpu_count() or 1
    hours = sum(one.hours for one in plan.runs)
    if format == "json":
        print_json({
            **dataclasses.asdict(plan), "workers": side, "hours": hours,
            "hours_side_by_side": hours / side,
        })  # fmt: skip
        return
    rows = [
        {
            "run": one.run,
            "seeds": one.seeds,
            "done": one.done,
            "updates": f"{one.updates:,}",
            "steps": f"{one.steps:,}",
            "time": time_text(3600 * one.hours),
            "time from": one.hours_from,
        }
        for one in plan.runs
    ]
    left = [(one.seeds - one.done, one) for one in plan.runs]
    updates, steps = (sum(n * getattr(x, name) for n, x in left) for name in ("updates", "steps"))
    print_rows("what is left to run", rows)
    lines = [
        f"{sum(n for n, _ in left)} runs, {updates:,} updates and {steps:,} environment steps",
        f"{'about ' if 3600 * hours >= 1 else ''}{time_text(3600 * hours)} of one core, "
        f"{time_text(3600 * hours / side)} with "
        f"{side} runs side by side; a rough guess leaves evaluations out",
    ]
    if plan.recipes:
        lines.append(f"data that is recorded first, and not counted: {', '.join(plan.recipes)}")
    print_line("\n".join(lines))


def _check_place(folder: Path, suite: Suite) -> None:
    """Check that what a suite writes replaces nothing but what an earlier call of it has written.

    Raises:
        TrimtabError: naming the file of somebody else's, or the other suite whose folder it is.
    """
    boards.check_place(folder)
    check_own(folder / SUITE_NOTE, '"digest"', "out")
    # A suite's file may be renamed, or have another title: both together are another suite.
    source, title = (_text_in(folder / file, key) for file, key in _NAMED)
    same = source is not None and Path(source).resolve() == Path(suite.source).resolve()
    if title not in (None, suite.title) and not same:
        known = f"suite={source}" if source else f"the suite '{title}'"
        raise TrimtabError(f"out={folder}: has the tables of {known}; name another folder")
    # A published folder has the tables of its suite, and not the note on where its runs were.
    if not ((folder / SUITE_NOTE).is_file() or (folder / "leaderboard.json").is_file()):
        further = [name for table in FURTHER.values() for name in table.FILES]
        for name in (FIGURE, RECORDS, *arena_writing.FILES, *further):
            check_own(folder / name, None, "out")


def _text_in(path: Path, key: str) -> str | None:
    """Return a text of what an earlier call has written, as far as it can be read."""
    try:
        found = read_json(path, "suite")
    except TrimtabError:  # none is there, or a damaged one, which is written again
        return None
    text = found.get(key) if isinstance(found, dict) else None
    return text if isinstance(text, str) else None


def _publish(
    suite: Suite, outcome: SuiteRuns, folder: Path, runs: Path, command: str, console: Console
) -> tuple[Leaderboard, dict[str, Path]]:
    """Write the leaderboard, the figure and the bundle of a suite's runs.

    If no run was carried out, a figure and a bundle that exist already are kept.

    Returns:
        The leaderboard, and the path of each thing that was written, by its name.
    """
    console.print("computing the leaderboard", highlight=False)
    table = collect_files([path / FILE_NAME for path in outcome.folders.values()], runs)
    sources = sources_of(dict.fromkeys(outcome.folders.values()))
    part = bool(suite.settings.get("only"))  # of a part, not all methods are there
    board = boards.build(
        table,
        baselines=None if part else suite.baselines or None,
        command=command,
        versions=provenance.versions(),
        title=suite.title,
        sources=dataclasses.replace(sources, baselines=suite.baselines) if part else sources,
    )
    written = boards.write(board, folder)
    figure, bundle = folder / FIGURE, folder / "bundle"
    paths = {"table": written["leaderboard.md"], "figure": figure}
    arena = None
    records = records_of(suite, outcome, folder, console) if suite.has_records else []
    if suite.controls:
        arena = arena_table(table, records, suite.controls)
        paths |= arena_writing.write(arena, folder)
    for name in suite.tables:
        paths |= FURTHER[name].write(table, folder, methods_of(records))
    if not (outcome.already_done and figure.is_file()):
        console.print("drawing the figure", highlight=False)
        if arena is not None and arena.contests:
            arena_figure.draw(arena, figure)
        elif suite.figure is None:
            curves.draw(board, figure, methods_of(records))
        else:
            figures.draw(suite.figure, outcome, figure)
    if suite.export is not None:
        paths["bundle"] = bundle
        if not (outcome.already_done and bundle.is_dir()):
            console.print("exporting the bundle", highlight=False)
            export_bundle(outcome.folder(suite.export, suite.jobs[0].seed), bundle)
    return board, paths | {"rows": written[FILE_NAME]}


def _whole_numbers(text: str) -> list[int]:
    seeds = [int(word) for word in listed(text) if word.isdecimal() and int(word) <= MOST_SEED]
    if not seeds or len(set(seeds)) < len(listed(text)):
        raise TrimtabError(
            f"seeds={text}: must be different whole numbers from 0 to {MOST_SEED}, such as 0,1,2"
        )
    return seeds
