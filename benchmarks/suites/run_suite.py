"""Carry out a suite: every run that is not done, bases first, several side by side."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from trimtab.benchmarks.suites.bars import Bars
from trimtab.benchmarks.suites.launch import JOBS, Chosen, Done, Launcher, Work
from trimtab.benchmarks.suites.suite import Job, Suite
from trimtab.benchmarks.training.folder import inspect_run
from trimtab.benchmarks.training.rows import SUITE_NOTE
from trimtab.benchmarks.training.settings.words import quoted
from trimtab.benchmarks.training.store import download, is_address, sibling
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_write_json, read_json

__all__ = ["SuiteRuns", "run_suite"]

_USUAL = 60.0
"""Seconds assumed for a run whose suite gives none; only the progress bar uses them."""


@dataclass
class SuiteRuns:
    """What became of a suite's runs.

    Attributes:
        folders: of each run, on this machine.
        already_done: whether all were there before.
    """

    folders: dict[tuple[str, int], Path] = field(default_factory=dict)
    already_done: bool = False

    def folder(self, name: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.folders[name, seed]


def run_suite(
    suite: Suite, out: Path, *, workers: int, console: Console, launcher: Chosen
) -> SuiteRuns:
    """Carry out every run of a suite that is not done; bases first, ``workers`` side by side.

    Args:
        suite: the suite.
        out: folder of the leaderboard; which runs are done is noted in it.
        workers: runs side by side; 0 for one a core.
        console: where progress is shown.
        launcher: what carries the runs out.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the runs' states are saved.
        TrimtabError: the first error of a run; the other runs are stopped, and resume next time.
    """
    note = out / SUITE_NOTE
    done = _all_done(note, suite)
    if done is not None:
        return SuiteRuns(done, already_done=True)
    outcome = SuiteRuns()
    weights = {job.label: _USUAL if job.seconds is None else job.seconds for job in suite.jobs}
    _write_note(note, suite, {})
    with Bars(suite.name, weights, console) as bars:

        def finished(label: str) -> None:
            bars.finished(label)
            _write_note(note, suite, outcome.folders)

        with launcher.start(workers, bars.tell, out / JOBS) as launched:
            _schedule(suite, launched, outcome, finished)
    # In the suite's order, not in that in which the runs ended: the same runs, the same bytes.
    outcome.folders = {
        (job.name, job.seed): outcome.folders[job.name, job.seed] for job in suite.jobs
    }
    _write_note(note, suite, outcome.folders)
    return outcome


def _write_note(note: Path, suite: Suite, folders: Mapping[tuple[str, int], Path]) -> None:
    """Write ``suite.json``: the runs that are done, those that wait, and the baselines."""
    jobs = [(job.name, job.seed) for job in suite.jobs]
    found = {
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
    suite: Suite, launcher: Launcher, outcome: SuiteRuns, finished: Callable[[str], None]
) -> None:
    """Hand every run to the launcher as soon as its base is there."""
    waiting = list(suite.jobs)
    running: dict[concurrent.futures.Future[Done], Job] = {}
    addresses: dict[tuple[str, int], str] = {}  # where other machines find a run's folder
    while waiting or running:
        for job in list(waiting):
            if job.base is None or (job.base, job.seed) in addresses:
                waiting.remove(job)
                base = addresses.get((job.base, job.seed)) if job.base else None
                running[launcher.submit(_work(job, base))] = job
        for future in launcher.await_some(running):
            job = running.pop(future)
            try:
                address = future.result().folder
                addresses[job.name, job.seed] = address
                here = download(address, "runs") if is_address(address) else Path(address)
                outcome.folders[job.name, job.seed] = here
            except Stopped:
                raise
            except TrimtabError as error:
                raise TrimtabError(f"{job.label}: {error}") from error
            except Exception as error:
                error.add_note(f"this was the run {job.label}")
                raise
            finished(job.label)


def _work(job: Job, base: str | None) -> Work:
    """Return a run as a launcher takes it.

    The word ``base=`` has ``${seed}`` in it, so that all seeds of a run have one configuration.
    """
    words = [] if base is None else [f"base={quoted(sibling(base, 'seed${seed}'))}"]
    return Work(job.label, (*job.overrides, *words))
