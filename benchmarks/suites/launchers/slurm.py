"""Runs as jobs of a Slurm cluster, by submitit: arrays, several runs a job, queued anew.

submitit writes the batch files, submits them, asks for the jobs' states, and has a job queued anew
that the cluster ends before its time. A job only carries out words, and finds in the run's folder
how far an earlier start of it came. Its outcome is read from files of JSON and never from
submitit's own, so nothing is unpickled here.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.suites.launch import (
    STOPPED,
    Done,
    Kind,
    Launcher,
    Option,
    Start,
    Work,
    attempt,
    line_of,
    settle,
)
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_write_json, read_json

__all__ = ["LAUNCHER", "Job"]

logger = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between two looks at the files of jobs."""
SETTLES = 10.0
"""Seconds until the files of a job that has ended are seen on this machine."""
LATER = 30.0
"""Seconds until jobs that were not taken are submitted again, where others are there."""
AGAIN = 4.0
"""Seconds between two times that jobs are told to end: one that only begins hears nothing yet."""
GRACE = 60.0
"""Seconds that jobs have to save their runs' states when this process is told to end."""
_EVERY = 1.0  # seconds between two times that a job writes how far a run is
_MOST = 500  # jobs that are submitted as one array; most clusters take 1001

OPTIONS = {
    "cluster": Option("slurm", "slurm, or local: processes of this machine, to try it out"),
    "minutes": Option(240, "time limit of a job; a run that takes longer goes on in a next one"),
    "cpus": Option(1, "cores of a run"),
    "gpus": Option(0, "GPUs of a job, shared by its runs"),
    "memory_gb": Option(0.0, "memory of a run in GB; 0: what the cluster gives"),
    "partition": Option("", "partition to submit to"),
    "account": Option("", "account to charge"),
    "qos": Option("", "quality of service"),
    "constraint": Option("", "features that nodes must have"),
    "more": Option("", "further options of sbatch, such as '{reservation: mine}'"),
    "setup": Option("", "a line for the shell of a job before it begins"),
    "runs_a_job": Option(1, "runs that one job carries out side by side; at most workers, if set"),
    "signal_seconds": Option(90, "how long before its end a job is told to save its runs"),
    "requeues": Option(100, "how often a job at its time limit is queued anew"),
    "retries": Option(3, "how often a job that ended without a word is submitted again"),
}


def _progress_path(notes: Path, number: int) -> Path:
    """Return the file that says how far a run is."""
    return notes / f"{number}.progress.json"


def _outcome_path(notes: Path, number: int) -> Path:
    """Return the file that says what became of a run; it is there once that is known."""
    return notes / f"{number}.outcome.json"


class Job:
    """Some runs, as submitit carries them out: each in a process (a task of Slurm's) of its own.

    Args:
        works: the runs, by the numbers that their files have.
        notes: folder of those files.
    """

    def __init__(self, works: Sequence[tuple[int, Work]], notes: Path) -> None:
        self.works, self.notes = tuple(works), notes

    def __call__(self) -> None:
        """Carry out this process's run, unless an earlier start of this job has ended it."""
        from submitit import JobEnvironment

        rank = JobEnvironment().global_rank
        if rank < len(self.works):
            number, work = self.works[rank]
            if not _outcome_path(self.notes, number).exists():
                self._carry_out(number, work)
        if rank == 0:  # only this process has the job queued anew, which the others may need
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while not all(_outcome_path(self.notes, number).exists() for number, _ in self.works):
                time.sleep(_EVERY)

    def checkpoint(self) -> Any:
        """Return what submitit starts when the job is queued anew: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _carry_out(self, number: int, work: Work) -> None:
        """Carry out a run, which a notice of the job's end tells to save its state."""
        notice = signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]
        engine, usual = signal.getsignal(notice), signal.getsignal(signal.SIGTERM)
        assert callable(engine)
        told, written = threading.Event(), 0.0

        def note(*_: object) -> None:
            told.set()
            if signal.getsignal(signal.SIGTERM) == usual:  # no run listens: nothing to save yet
                engine(notice, None)
            else:
                os.kill(os.getpid(), signal.SIGTERM)

        def tell(label: str, share: float, text: str) -> None:
            nonlocal written
            if time.monotonic() - written >= _EVERY:
                written = time.monotonic()
                said = {"share": share, "text": f"{text} on {platform.node()}"}
                with suppress(TrimtabError):  # a full disk ends the run by its own files
                    atomic_write_json(_progress_path(self.notes, number), said)

        signal.signal(notice, note)
        try:
            atomic_write_json(_outcome_path(self.notes, number), attempt(work, tell))
        except Stopped:
            if told.is_set():
                engine(notice, None)  # has the job queued anew, and ends this process
            # Told by SIGTERM alone: the cluster itself starts the job once more, or cancels it.
            # Nothing is returned, because submitit would take that for the result.
            os._exit(Stopped.exit_code)
        finally:
            signal.signal(notice, engine)


@dataclass
class _Sent:
    """Runs that are handed to the cluster as one job."""

    works: Mapping[int, Work]
    job: Any = None
    tries: int = 0
    ended: float = 0.0  # when the job was first seen to have ended


class _Jobs:
    """Jobs of a cluster as a launcher."""

    def __init__(self, start: Start, told: threading.Event) -> None:
        self._start, self._told, settings = start, told, start.settings
        # Workers are runs, as they are of every launcher.
        self._size = min(settings["runs_a_job"], start.workers or settings["runs_a_job"])
        most = start.workers
        if settings["cluster"] == "local":
            most = most or os.cpu_count() or 1
        self._most = max(most // self._size, 1) if most else 0
        self._notes = start.folder.absolute() / uuid.uuid4().hex[:12]
        self._notes.mkdir(parents=True)
        self._executor = _executor(settings, self._size, self._notes)
        self._futures: dict[int, concurrent.futures.Future[Done]] = {}
        self._waiting: list[_Sent] = []  # of one run each, or submitted again
        self._sent: list[_Sent] = []
        self._not_before = 0.0

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        """Have a run carried out; it is submitted with those that are submitted besides."""
        number = len(self._futures)
        self._futures[number] = concurrent.futures.Future()
        self._waiting.append(_Sent({number: work}))
        return self._futures[number]

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        """Return those of the futures that are done, once there is one."""
        while True:
            self._hand_over()
            self._read()
            if ready := {future for future in futures if future.done()}:
                return ready
            if self._told.wait(LOOK):
                raise Stopped(STOPPED)

    def _hand_over(self) -> None:
        """Submit what waits, as one array, as far as there is room."""
        room = min(self._most - len(self._sent) if self._most else _MOST, _MOST)
        if room <= 0 or not self._waiting or time.monotonic() < self._not_before:
            return
        due = list(self._waiting[: room * self._size])
        groups = [due[i : i + self._size] for i in range(0, len(due), self._size)]
        jobs = [
            _Sent({n: w for one in group for n, w in one.works.items()}, None, group[0].tries + 1)
            for group in groups
        ]
        try:
            sent = self._executor.submit_array(
                [Job(list(one.works.items()), self._notes) for one in jobs]
            )
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            if not self._sent:
                raise TrimtabError(
                    f"launcher=slurm: nothing could be submitted: {line_of(error)}; where that is "
                    "a limit on jobs, give workers=<as many as there may be>"
                ) from error
            self._not_before = time.monotonic() + LATER
            logger.warning("nothing could be submitted, and is tried again (%s)", line_of(error))
            return
        for one, job in zip(jobs, sent, strict=True):
            one.job = job
        self._sent += jobs
        self._waiting = self._waiting[len(due) :]

    def _read(self) -> None:
        """Read how far runs are and what became of them; a job that was lost is sent again."""
        for sent in list(self._sent):
            for number, work in sent.works.items():
                if self._futures[number].done():
                    continue
                outcome = _said(_outcome_path(self._notes, number), "outcome of a run")
                if outcome is not None:
                    settle(self._futures[number], outcome)
                elif said := _said(_progress_path(self._notes, number), "progress of a run"):
                    self._start.tell(work.label, said["share"], said["text"])
            left = {n: work for n, work in sent.works.items() if not self._futures[n].done()}
            if left and not self._is_over(sent):
                continue
            self._sent.remove(sent)
            if left:
                self._lose(sent, left)

    def _is_over(self, sent: _Sent) -> bool:
        """Return whether a job has ended, and what it wrote last must have been seen."""
        if sent.job.done():
            sent.ended = sent.ended or time.monotonic()
        return bool(sent.ended) and time.monotonic() - sent.ended >= SETTLES

    def _lose(self, sent: _Sent, left: Mapping[int, Work]) -> None:
        """Send runs again whose job has ended without a word, or give them up."""
        state = str(sent.job.state).lower()
        why, log = (
            f"job {sent.job.job_id} ended ({state}) before its runs did",
            sent.job.paths.stderr,
        )
        if state.startswith("cancelled") or sent.tries > self._start.settings["retries"]:
            for number in left:
                self._futures[number].set_exception(
                    TrimtabError(f"{why}; see {log}, and run the same command to resume")
                )
            return
        logger.warning("%s; it is submitted again (%s)", why, log)
        self._waiting[:0] = [_Sent({n: work}, None, sent.tries) for n, work in left.items()]

    def end(self) -> None:
        """Have every job that is there told to end, and wait until they have saved their runs."""
        deadline = time.monotonic() + GRACE
        left = [sent.job for sent in self._sent]
        while left and time.monotonic() < deadline:
            for job in left:
                self._cancel(job)
            soon = time.monotonic() + AGAIN
            while left and time.monotonic() < soon:
                time.sleep(LOOK)
                # One forced question to the cluster is for all jobs.
                left = [job for i, job in enumerate(left) if not job.done(force_check=i == 0)]

    def _cancel(self, job: Any) -> None:
        if self._start.settings["cluster"] == "local":
            with suppress(ProcessLookupError):  # a job is known by the number of its process
                os.kill(int(job.job_id), signal.SIGTERM)
        else:
            job.cancel(check=False)


def _executor(settings: Mapping[str, Any], size: int, notes: Path) -> Any:
    """Return submitit's executor for jobs of so many runs.

    Raises:
        TrimtabError: if it does not take the settings.
    """
    import submitit

    named = {key: settings[key] for key in ("partition", "account", "qos", "constraint")}
    wanted = {"slurm_" + key: value for key, value in named.items()} | {
        "mem_gb": settings["memory_gb"] * size,
        "slurm_additional_parameters": _further(settings["more"]),
        "slurm_setup": [settings["setup"]] if settings["setup"] else None,
        "gpus_per_node": settings["gpus"],
    }
    try:
        executor = submitit.AutoExecutor(
            notes / "submitit",
            cluster=settings["cluster"],
            slurm_max_num_timeout=settings["requeues"],
            local_max_num_timeout=settings["requeues"],
        )
        executor.update_parameters(
            name="trimtab", tasks_per_node=size, cpus_per_task=settings["cpus"],
            timeout_min=settings["minutes"], slurm_signal_delay_s=settings["signal_seconds"],
            slurm_array_parallelism=_MOST,
            **{key: value for key, value in wanted.items() if value},
        )  # fmt: skip
    except (NameError, ValueError, RuntimeError, AssertionError) as error:
        raise TrimtabError(f"launcher=slurm: submitit says: {line_of(error)}") from error
    return executor


def _further(text: str) -> dict[str, Any]:
    """Return further options of sbatch.

    Raises:
        TrimtabError: if they are no mapping of names.
    """
    try:
        found = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise TrimtabError(f"launcher.more={text}: must be like '{{reservation: mine}}'")
    return found


def _said(path: Path, what: str) -> dict[str, Any] | None:
    """Return what a job has written; None where it is not there, or cannot be read just now.

    Raises:
        TrimtabError: if it is no JSON object: a job writes its files whole.
    """
    try:
        return dict(read_json(path, what))
    except TrimtabError as error:
        # On NFS a file that was replaced may be stale for a moment (ESTALE).
        if isinstance(error.__cause__, OSError):
            return None
        raise


def _check(settings: Mapping[str, Any]) -> None:
    for key in ("minutes", "cpus", "runs_a_job"):
        if not settings[key]:
            raise TrimtabError(f"launcher.{key}=0: must be 1 or more")
    _further(settings["more"])
    if settings["cluster"] not in ("slurm", "local"):
        known = nearest(settings["cluster"], ("slurm", "local"))
        raise TrimtabError(f"launcher.cluster={settings['cluster']}: {known}")
    for program in ("sbatch", "srun", "sacct") if settings["cluster"] == "slurm" else ():
        if shutil.which(program) is None:
            raise TrimtabError(
                f"launcher=slurm: {program} is not on the PATH; call it on a machine that submits "
                "to the cluster, or try it out here with launcher.cluster=local"
            )


@contextmanager
def _start(start: Start) -> Iterator[Launcher]:
    with sigterm_as_event() as told:
        jobs = _Jobs(start, told)
        try:
            yield jobs
        finally:
            jobs.end()


LAUNCHER = Kind("slurm", _start, OPTIONS, "submitit", _check)
