"""Carry out a suite: every run that is not done, bases first, several side by side."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from trimtab.benchmarks.suites.bars import Bars
from trimtab.benchmarks.suites.launch import JOBS, Chosen, Done, Launcher, Work, chosen_launcher
from trimtab.benchmarks.suites.suite import Job, Suite
from trimtab.benchmarks.training.folder import inspect_run
from trimtab.benchmarks.training.rows import SUITE_NOTE
from trimtab.benchmarks.training.settings.words import quoted
from trimtab.benchmarks.training.store import download, is_address, sibling
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_write_json, read_json

__all__ = ["Outcome", "run_suite"]

_USUAL = 60.0
"""Weight in the progress bar of a run of which the suite does not say how long it takes."""


@dataclass
class Outcome:
    """What became of a suite's runs.

    Attributes:
        folders: of each run, on this machine.
        already_done: whether all were there before.
        places: where other machines find them.
    """

    folders: dict[tuple[str, int], Path] = field(default_factory=dict)
    already_done: bool = False
    places: dict[tuple[str, int], str] = field(default_factory=dict)

    def folder(self, name: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.folders[name, seed]


def run_suite(
    suite: Suite, out: Path, *, workers: int, console: Console, launcher: Chosen | None = None
) -> Outcome:  # fmt: skip
    """Carry out every run of a suite that is not done; bases first, ``workers`` side by side.

    Args:
        suite: the suite.
        out: folder of the leaderboard; which runs are done is noted in it.
        workers: runs side by side; 0 for one a core.
        console: where progress is shown.
        launcher: what carries the runs out; None for processes of this machine.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the runs' states are saved.
        TrimtabError: the first error of a run; the other runs are stopped, and go on next time.
    """
    chosen = launcher or chosen_launcher("local")
    note = out / SUITE_NOTE
    done = _all_done(note, suite)
    if done is not None:
        _write_note(note, suite, done)
        return Outcome(done, already_done=True)
    outcome = Outcome()
    weights = {job.label: _USUAL if job.seconds is None else job.seconds for job in suite.jobs}
    process = {"process": os.getpid()}
    _write_note(note, suite, {}, process)
    with Bars(suite.name, weights, console) as bars:

        def finished(label: str) -> None:
            bars.finished(label)
            _write_note(note, suite, outcome.folders, process)

        with chosen.start(workers, bars.tell, out / JOBS) as launched:
            _schedule(suite, launched, outcome, finished)
    # In the suite's order, not in that in which the runs ended: the same runs, the same bytes.
    outcome.folders = {
        (job.name, job.seed): outcome.folders[job.name, job.seed] for job in suite.jobs
    }
    _write_note(note, suite, outcome.folders)
    return outcome


def _write_note(
    note: Path, suite: Suite, folders: Mapping[tuple[str, int], Path],
    more: Mapping[str, int] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write what a suite's tables are of, and what they compare."""
    jobs = [(job.name, job.seed) for job in suite.jobs]
    found = {
        **more,
        "suite": suite.source,
        "digest": suite.digest,
        "baselines": dict(suite.baselines),
        "folders": {f"{job[0]}/{job[1]}": str(folders[job]) for job in jobs if job in folders},
        "waiting": [f"{name}/{seed}" for name, seed in jobs if (name, seed) not in folders],
    }
    atomic_write_json(note, found)


def _all_done(note: Path, suite: Suite) -> dict[tuple[str, int], Path] | None:
    """Return the runs' folders if an earlier call finished this very suite and all are there."""
    if not note.is_file():
        return None
    try:
        document = read_json(note, "suite")
    except TrimtabError:  # it follows from the runs, and is written again at the end
        return None
    if not isinstance(document, dict) or document.get("digest") != suite.digest:
        return None
    known = document.get("folders")
    known = known if isinstance(known, dict) else {}
    places = {(job.name, job.seed): known.get(f"{job.name}/{job.seed}") for job in suite.jobs}
    if not all(isinstance(place, str) for place in places.values()):
        return None
    folders = {run: Path(str(place)) for run, place in places.items()}
    return (
        folders if all(inspect_run(folder).state == "done" for folder in folders.values()) else None
    )


def _schedule(
    suite: Suite, launcher: Launcher, outcome: Outcome, finished: Callable[[str], None]
) -> None:
    """Hand every run to the launcher as soon as its base is there."""
    waiting = list(suite.jobs)
    running: dict[concurrent.futures.Future[Done], Job] = {}
    while waiting or running:
        for job in list(waiting):
            if job.base is None or (job.base, job.seed) in outcome.places:
                waiting.remove(job)
                base = outcome.places.get((job.base, job.seed)) if job.base else None
                running[launcher.submit(_work(job, base))] = job
        for future in launcher.await_some(running):
            job = running.pop(future)
            try:
                place = future.result().folder
                outcome.places[job.name, job.seed] = place
                there = download(place, "runs") if is_address(place) else Path(place)
                outcome.folders[job.name, job.seed] = there
            except Stopped:
                raise
            except TrimtabError as error:
                raise TrimtabError(f"{job.label}: {error}") from error
            finished(job.label)


def _work(job: Job, base: str | None) -> Work:
    """Return a run as a launcher takes it.

    Its base is named by its configuration: every seed starts from the base of its own seed.
    """
    words = [] if base is None else [f"base={quoted(sibling(base, 'seed${seed}'))}"]
    return Work(job.label, (*job.overrides, *words))
