"""A suite: a grid of runs with their bases, carried out in parallel, resumable, then judged.

A suite is a file of ``conf/suite/``. Its runs are lists of overrides, as ``trimtab train`` takes
them; a run that names another one as its ``base`` starts from the frozen policy of that run with
the same seed (the same-start rule). Nothing here knows what any method does.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import multiprocessing
import multiprocessing.queues
import os
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from trimtab.benchmarks.core.pools import await_some, leave_worker, worker_pool
from trimtab.benchmarks.core.signals import end_with_parent, sigterm_as_event, told_to_end
from trimtab.benchmarks.data.recipes import is_recipe_section, recipe_identity
from trimtab.benchmarks.runs.identity import PROTOCOL_REVISION, constructed
from trimtab.benchmarks.runs.provenance import versions
from trimtab.benchmarks.settings.config import RunConfig, compose_run
from trimtab.benchmarks.settings.groups import load_group
from trimtab.benchmarks.settings.words import quoted
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import Stopped
from trimtab.files import atomic_write_json, read_json, sha256_json
from trimtab.types import TrimtabError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    Messages = multiprocessing.queues.Queue[tuple[str, float, str]]  # label, share done, words

_STOPPED = "stopped; the runs' states are saved, run the same command to go on"


@dataclass(frozen=True)
class Job:
    """One run of a suite: a named configuration with one seed."""

    name: str
    seed: int
    overrides: tuple[str, ...]
    base: str | None
    seconds: float

    @property
    def label(self) -> str:
        """What progress bars call it."""
        return f"{self.name} seed {self.seed}"


@dataclass(frozen=True)
class Suite:
    """A suite as its file describes it.

    Attributes:
        name: name of the file.
        title: heading of its leaderboard.
        jobs: every run, bases before what starts from them.
        baselines: method label -> label of the method that it is compared with.
        export: name of the run whose first seed becomes a bundle, or None.
        figure: a figure of its own (``trimtab.benchmarks.suites.figures``), or None for learning
            curves.
        settings: what the file says, and the seeds that were asked for instead.
    """

    name: str
    title: str
    jobs: tuple[Job, ...]
    baselines: Mapping[str, str]
    export: str | None
    figure: Mapping[str, Any] | None
    settings: Mapping[str, Any]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all that decides the suite's numbers, code revisions and packages included."""
        parts: dict[str, Any] = {"protocol": PROTOCOL_REVISION, "packages": versions()}
        for job in self.jobs:
            if job.name not in parts:
                config = compose_run([*job.overrides, *(["base=x"] if job.base else [])])
                parts[job.name] = _revised(config)
        return sha256_json({**self.settings, "parts": parts})


def _revised(config: RunConfig) -> dict[str, Any]:
    """Return what of a run may be revised while its settings stay: code, physics, recipes."""
    groups = {"algorithm": config.algorithm, "policy": config.policy}
    options = checked_names(config["env_options"] or {})
    return {
        "code": [
            constructed(group, name, config[group])
            for group, name in groups.items()
            if name is not None
        ],
        "physics": get_spec(config["env"], **options).fingerprint,
        "data": recipe_identity(config["dataset"], Path(config["out"]))
        if is_recipe_section(config["dataset"])
        else None,
    }


@dataclass
class Outcome:
    """What became of a suite's runs: the folder of each, and whether all were there before."""

    folders: dict[tuple[str, int], Path] = field(default_factory=dict)
    already_done: bool = False

    def folder(self, name: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.folders[name, seed]


def load_suite(name: str, runs: str, seeds: Sequence[int] | None = None) -> Suite:
    """Read a suite's file.

    Args:
        name: name of the suite.
        runs: folder of the runs.
        seeds: instead of the suite's own, and of those that a run has for itself.

    Raises:
        TrimtabError: if there is no such suite, or its bases do not exist.
    """
    document = load_group("suite", name)
    given = None if seeds is None else list(seeds)
    described: Mapping[str, Mapping[str, Any]] = document["runs"]
    common = [*document.get("common", []), f"suite_name={name}", f"out={quoted(runs)}"]
    shared: Mapping[str, Sequence[str]] = document.get("shared", {})
    jobs: list[Job] = []
    for run, what in described.items():
        base = what.get("base")
        if base is not None and base not in list(described)[: list(described).index(run)]:
            raise TrimtabError(f"suite {name}: {run} starts from {base}, which no run above it is")
        chosen = given or what.get("seeds", document["seeds"])
        lacking = set(chosen) - {job.seed for job in jobs if job.name == base} if base else set()
        if lacking:
            raise TrimtabError(f"suite {name}: {run} has seeds {sorted(lacking)}, {base} has not")
        words = [word for part in what.get("with", []) for word in shared[part]]
        words += what.get("overrides", [])
        jobs += [
            Job(
                name=run,
                seed=seed,
                overrides=(*common, *words, f"seed={seed}"),
                base=base,
                seconds=float(what.get("seconds", 60)),
            )
            for seed in chosen
        ]
    return Suite(
        name=name,
        title=document["title"],
        jobs=tuple(jobs),
        baselines=document.get("baselines", {}),
        export=document.get("export"),
        figure=document.get("figure"),
        settings={"suite": document, "seeds": given},
    )


def run_suite(suite: Suite, out: Path, *, workers: int, console: Console) -> Outcome:
    """Carry out every run of a suite that is not done; bases first, ``workers`` side by side.

    Args:
        suite: the suite.
        out: folder of the leaderboard; the folders of the runs are noted in it.
        workers: runs side by side; 0 for one a core.
        console: where progress is shown.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the runs' states are saved.
        TrimtabError: the first error of a run; the other runs are stopped, and go on next time.
    """
    note = out / "suite.json"
    done = _all_done(note, suite)
    if done is not None:
        return Outcome(done, already_done=True)
    outcome = Outcome()
    context = multiprocessing.get_context("spawn")
    messages: Messages = context.Queue()
    with (
        sigterm_as_event() as told,
        _bars(suite, messages, console) as finished,
        worker_pool(
            workers or os.cpu_count() or 1,
            context,
            _prepare_worker,
            (messages,),
            told=told,
            stopped=_STOPPED,
        ) as pool,
    ):
        _schedule(suite, pool, told, outcome, finished)
    folders = {f"{name}/{seed}": str(path) for (name, seed), path in outcome.folders.items()}
    atomic_write_json(note, {"digest": suite.digest, "folders": folders})
    return outcome


def _all_done(note: Path, suite: Suite) -> dict[tuple[str, int], Path] | None:
    """Return the runs' folders if an earlier call finished this very suite and all are there."""
    if not note.is_file():
        return None
    document = read_json(note, "suite")
    if not isinstance(document, dict) or document.get("digest") != suite.digest:
        return None
    folders = {
        (job.name, job.seed): Path(document["folders"][f"{job.name}/{job.seed}"])
        for job in suite.jobs
    }
    whole = all((folder / "result.json").is_file() for folder in folders.values())
    return folders if whole else None


def _schedule(
    suite: Suite,
    pool: concurrent.futures.Executor,
    told: threading.Event,
    outcome: Outcome,
    finished: Any,
) -> None:
    """Give every run to the pool as soon as its base is there."""
    waiting = list(suite.jobs)
    running: dict[concurrent.futures.Future[str], Job] = {}
    while waiting or running:
        for job in list(waiting):
            if job.base is None or (job.base, job.seed) in outcome.folders:
                waiting.remove(job)
                base = outcome.folders.get((job.base, job.seed)) if job.base else None
                running[pool.submit(_work, job, base)] = job
        for future in await_some(running, told, _STOPPED):
            job = running.pop(future)
            outcome.folders[job.name, job.seed] = Path(future.result())
            finished(job)


def run_job(job: Job, base: Path | None, messages: Any) -> str:
    """Carry out one run in this process; return its folder.

    Raises:
        Stopped: if the process is told to end.
        TrimtabError: as ``trimtab train``, with the run's name in front.
    """
    from trimtab.benchmarks.runs.train import train

    overrides = list(job.overrides)
    if base is not None:
        # The base is named by its configuration: every seed starts from the base of its own seed.
        overrides.append(f"base={quoted(str(base.parent / 'seed') + '${seed}')}")
    try:
        result = train(
            compose_run(overrides),
            lambda share, text: messages.put((job.label, share, text)),
            wait=True,  # two suites that share runs do each of them once
        )
    except Stopped:
        raise
    except TrimtabError as error:
        raise TrimtabError(f"{job.label}: {error}") from error
    return str(result.folder)


_worker_messages: Messages
"""Where a worker process says how far it is."""


def _prepare_worker(messages: Messages) -> None:
    import warnings

    global _worker_messages
    end_with_parent()
    # The parent decides what an interrupt means; a worker is told by being terminated.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore")
    messages.cancel_join_thread()  # a worker that ends does not wait for its last words to be read
    _worker_messages = messages


def _work(job: Job, base: Path | None) -> str:
    """Carry out one run in a worker process, which ends if it is told to stop."""
    if told_to_end():  # during the last steps of the run before
        leave_worker()
    try:
        return run_job(job, base, _worker_messages)
    except Stopped:  # its state is saved; the pool may have given it another run already
        leave_worker()


@contextmanager
def _bars(suite: Suite, messages: Messages, console: Console) -> Iterator[Any]:
    """Show how far the whole suite and each running run are."""
    progress = Progress(
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=28),
        TextColumn("{task.percentage:>4.0f}%"),
        TimeElapsedColumn(),
        Remaining(compact=True),
        TextColumn("{task.fields[text]}"),
        console=console,
        refresh_per_second=2,
    )
    total = sum(job.seconds for job in suite.jobs)
    weights = {job.label: job.seconds for job in suite.jobs}
    whole = progress.add_task(f"[bold]{suite.name}[/bold]", total=total, text="")
    tasks: dict[str, TaskID] = {}
    shares: dict[str, float] = {}
    stop = threading.Event()
    lock = threading.Lock()  # runs end in this thread, their messages come in by another

    def end(label: str) -> None:
        shares[label] = 1.0
        if label in tasks:
            progress.remove_task(tasks.pop(label))
        refresh()

    def refresh() -> None:
        progress.update(
            whole,
            completed=sum(weights[label] * share for label, share in shares.items()),
            text=f"{sum(share >= 1 for share in shares.values())} of {len(suite.jobs)} runs",
        )

    def listen() -> None:
        while not stop.is_set():
            try:
                label, share, text = messages.get(timeout=0.2)
            except queue.Empty:
                continue
            except (EOFError, OSError):
                return
            with lock:
                if shares.get(label, 0.0) >= 1.0:
                    continue
                if label not in tasks:
                    tasks[label] = progress.add_task(label, total=1.0, text="")
                shares[label] = share
                progress.update(tasks[label], completed=share, text=text)
                if share >= 1.0:
                    end(label)
                refresh()

    def finished(job: Job) -> None:
        with lock:
            end(job.label)
        if not console.is_terminal:
            count = sum(share >= 1 for share in shares.values())
            console.print(f"{count}/{len(suite.jobs)} {job.label} done", highlight=False)

    with progress:
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield finished
        finally:
            stop.set()
            listener.join(timeout=2)
