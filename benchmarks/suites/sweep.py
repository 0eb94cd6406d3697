"""A sweep: one run for each combination of values after commas (``trimtab train -m``)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from trimtab.benchmarks.suites.bars import Bars
from trimtab.benchmarks.suites.launch import JOBS, Chosen, Work, chosen_launcher
from trimtab.benchmarks.suites.sweep_line import SweepLine, sweep_line
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.swept import swept_words
from trimtab.benchmarks.training.store import is_address
from trimtab.benchmarks.training.train import check, is_done
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json

__all__ = ["MOST_RUNS", "sweep"]

MOST_RUNS = 1000
"""How many runs a sweep has at most: each is checked before the first one begins."""


def sweep(
    overrides: Sequence[str],
    tell: Callable[[Sequence[SweepLine]], None],
    *,
    console: Console,
    launcher: Chosen | None = None,
    workers: int = 0,
) -> None:
    """Carry out a sweep; a run that fails does not stop the others.

    Args:
        overrides: words of the run's settings, some of them with several values after commas.
        tell: called at the end, also where the sweep is stopped, with what became of each run.
        console: where progress is shown.
        launcher: what carries the runs out; None for processes of this machine.
        workers: runs side by side; 0 for one a core.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the runs' states are saved.
        TrimtabError: if a word is wrong, or a run failed; the others have come to their end.
    """
    chosen = launcher or chosen_launcher("local")
    combinations = _combinations(overrides)
    runs = [compose_run(words) for words in combinations]
    _check(runs)
    out = runs[0]["out"]
    folder = Path("runs" if is_address(out) else out) / JOBS
    works = [Work(_label(words, combinations), tuple(words)) for words in combinations]
    lines = {work.label: SweepLine(work.label, "not finished") for work in works}
    try:
        with (
            Bars("sweep", dict.fromkeys(lines, 1.0), console) as bars,
            chosen.start(workers, bars.tell, folder) as launched,
        ):
            running = {launched.submit(work): work.label for work in works}
            while running:
                for future in launched.await_some(running):
                    label = running.pop(future)
                    lines[label] = sweep_line(label, future)
                    bars.finished(label, lines[label].state)
    finally:
        tell([*lines.values()])
    if failed := [line for line in lines.values() if line.state == "failed"]:
        raise TrimtabError(
            f"{len(failed)} of {len(works)} runs failed: {failed[0].label}: {failed[0].note}"
        )


def _check(runs: Sequence[RunConfig]) -> None:
    """Check all runs before any is started; those that differ by their seed alone, once.

    Runs that are done are left out: what they learned from need not be recorded again.

    Raises:
        TrimtabError: what the run would end with.
    """
    seen = set()
    for run in runs:
        rest = sha256_json({key: value for key, value in run.settings.items() if key != "seed"})
        if rest not in seen and not is_done(run):
            seen.add(rest)
            check(run)


def _combinations(words: Sequence[str]) -> list[list[str]]:
    """Return every combination of a sweep's words, as single runs take them.

    A run is given the words of the command line, so that whoever carries it out spells them out
    himself: a file of settings is read there, and not known by a name of this process alone.

    Raises:
        TrimtabError: if a word cannot be read, there are too many combinations, or one twice.
    """
    swept = swept_words(words)
    count = math.prod(one.count for one in swept)
    if count > MOST_RUNS:
        raise TrimtabError(
            f"sweep: these are {count} runs, and a sweep has at most {MOST_RUNS}; name fewer "
            "values, or give some of them to another sweep"
        )
    for one in swept:
        one.check_some()
    found = dict[tuple[str, ...], None]()
    for combination in itertools.product(*(one.words() for one in swept)):
        if combination in found:
            shown = " ".join(combination)
            raise TrimtabError(f"sweep: {shown} is there twice; name each value once")
        found[combination] = None
    return [list(combination) for combination in found]


def _label(words: Sequence[str], combinations: Sequence[Sequence[str]]) -> str:
    """Return the words of a run that are not those of every run."""
    shared = set(combinations[0]).intersection(*combinations)
    return " ".join(word for word in words if word not in shared) or words[0]
