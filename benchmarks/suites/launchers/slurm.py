"""Runs as jobs of a Slurm cluster, by submitit: arrays, several runs a job, queued anew.

submitit writes the batch files, submits them, and has a job queued anew that the cluster ends
before its time. Which runs there are, what each is known by and where it goes on from stays ours:
a job only carries out words. Its outcome is read from files of JSON (``jobs.py``) and never from
submitit's own, so nothing is unpickled here. Whether a job still exists is asked of ``squeue``.
"""

from __future__ import annotations

import concurrent.futures
import logging
import subprocess
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.suites.clusters import (
    CLUSTERS,
    MOST_IN_ARRAY,
    Cluster,
    further_options,
    line_of,
)
from trimtab.benchmarks.suites.jobs import Job, outcome_path, progress_path
from trimtab.benchmarks.suites.launch import (
    STOPPED,
    Done,
    Kind,
    Launcher,
    Option,
    Start,
    Work,
    settle,
)
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import read_json

__all__ = ["LAUNCHER"]

logger = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between two looks at the files of jobs."""
AGAIN = 4.0
"""Seconds between two times that jobs are told to end: one that only begins hears nothing yet."""
FAILURES = 3
"""Submissions in a row that may fail for other reasons than too many jobs."""
LATER = 30.0
"""Seconds until jobs that were not taken are submitted again, where others are there."""
ASK = 10.0
"""Seconds between two questions to the cluster; a job that is gone in two answers has ended."""
GRACE = 60.0
"""Seconds that jobs have to save their runs' states when this process is told to end."""
_TOO_MANY = (
    *("QOSMaxSubmit", "AssocMaxSubmit", "QOSGrpSubmit", "AssocGrpSubmit", "MaxArraySize"),
    *("Invalid job array specification", "job submit limit", "job violates accounting/QOS policy"),
)
"""What ``sbatch`` says where it takes fewer jobs than these, and has taken none of them."""
_CANCELLED = ("CANCELLED", "DEADLINE", "REVOKED")
_ENDED = ("BOOT_FAIL", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")

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


@dataclass
class _Sent:
    """Runs that were handed to the cluster as one job, and what became of it."""

    works: Mapping[int, Work]
    id: str = ""
    tries: int = 0
    missing: int = 0  # answers in a row in which the job was gone
    seen: dict[int, int] = field(default_factory=dict)  # times of the files that were read


class _Jobs:
    """Jobs of a cluster as a launcher."""

    def __init__(self, start: Start, cluster: Cluster, told: Any) -> None:
        self._start, self._cluster, self._told = start, cluster, told
        # Workers are runs, as they are of every launcher.
        self._size = min(
            start.settings["runs_a_job"], start.workers or start.settings["runs_a_job"]
        )
        self._most = start.workers // self._size
        self._notes = start.folder.absolute() / uuid.uuid4().hex[:12]
        self._notes.mkdir(parents=True)
        self._executor = _executor(
            start.settings,
            cluster.parameters(start.settings, self._size, self._most),
            self._notes,
        )
        self._futures: dict[int, concurrent.futures.Future[Done]] = {}
        self._waiting: dict[int, Work] = {}
        self._again: list[_Sent] = []
        self._sent: dict[str, _Sent] = {}
        self._jobs: dict[str, Any] = {}
        self._asked = time.monotonic()
        self._accepted = MOST_IN_ARRAY  # how many jobs the cluster takes at once
        self._not_before = float("-inf")
        self._arrays = 0
        self._failures = 0  # submissions in a row that failed for another reason
        self._unknown = set[str]()  # names of arrays that may be there, by ids that nobody knows
        self._submitted = float("-inf")  # when the last array was

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        """Have a run carried out; it is submitted with those that are submitted besides."""
        number = len(self._futures)
        self._futures[number] = concurrent.futures.Future()
        self._waiting[number] = work
        return self._futures[number]

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        """Return those of the futures that are done, once there is one."""
        while True:
            self._hand_over()
            self._read()
            if time.monotonic() - self._asked >= ASK:
                self._ask()
            if ready := {future for future in futures if future.done()}:
                return ready
            if self._told.wait(LOOK):
                raise Stopped(STOPPED)

    def _hand_over(self) -> None:
        """Submit what waits, as one array."""
        numbers = list(self._waiting)
        groups = [numbers[i : i + self._size] for i in range(0, len(numbers), self._size)]
        due = [*self._again, *(_Sent({n: self._waiting[n] for n in group}) for group in groups)]
        room = self._cluster.room(self._size, self._most, len(self._sent))
        gathers = self._cluster.gathers if self._sent and room < len(due) else 0.0
        due, now = due[: max(min(room, self._accepted), 0)], time.monotonic()
        if not due or now < max(self._not_before, self._submitted + gathers):
            return
        self._submitted = now
        calls = [Job(list(sent.works.items()), self._notes) for sent in due]
        self._arrays += 1
        name = f"trimtab-{self._notes.name}-{self._arrays}"
        for lost in self._unknown:  # its runs are carried out anew: not twice at a time
            self._cluster.cancel_named(lost)
        self._unknown.add(name)
        try:
            self._executor.update_parameters(name=name)
            jobs = self._executor.submit_array(calls)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            if any(word in str(error) for word in _TOO_MANY):
                self._unknown.discard(name)  # none of it was taken
                self._refused(len(due), error)
            else:
                self._failed(name, error)
            return
        self._unknown.discard(name)
        self._accepted, self._failures = min(2 * self._accepted, MOST_IN_ARRAY), 0
        for sent, job in zip(due, jobs, strict=True):
            sent.id, sent.missing, sent.tries = job.job_id, 0, sent.tries + 1
            self._sent[job.job_id], self._jobs[job.job_id] = sent, job
            for number in sent.works:
                self._waiting.pop(number, None)
        self._again = self._again[len(due) :]

    def _refused(self, jobs: int, error: Exception) -> None:
        """Note that a cluster takes fewer jobs than these; half as many are tried next.

        While other jobs are there, that is done later: their end makes room.

        Raises:
            TrimtabError: if a single job is refused, and no other one is there.
        """
        if jobs == 1 and not self._sent:
            raise TrimtabError(
                f"launcher=slurm: nothing could be submitted: {line_of(error)}"
            ) from error
        self._accepted = max(jobs // 2, 1)
        if self._sent:
            self._not_before = time.monotonic() + LATER
        logger.warning("%d jobs were not taken, %d are tried next (%s)", jobs, self._accepted,
                       line_of(error))  # fmt: skip

    def _failed(self, name: str, error: Exception) -> None:
        """Try an array again later, where others are there; some failures are a moment's.

        It may have been taken, and only the answer was lost: so what has its name is told to end,
        now and again before the next array and at the end.

        Raises:
            TrimtabError: if nothing else is there, or this happens several times in a row.
        """
        self._cluster.cancel_named(name)
        self._failures += 1
        if not self._sent or self._failures > FAILURES:
            raise TrimtabError(
                f"launcher=slurm: nothing could be submitted: {line_of(error)}"
            ) from error
        self._not_before = time.monotonic() + LATER
        logger.warning("nothing could be submitted, and is tried again (%s)", line_of(error))

    def _read(self) -> None:
        """Read how far runs are and what became of them."""
        for id, sent in list(self._sent.items()):
            for number, work in sent.works.items():
                if self._futures[number].done():
                    continue
                outcome = _said(outcome_path(self._notes, number), "outcome of a run")
                progress = progress_path(self._notes, number)
                if outcome is not None:
                    settle(self._futures[number], outcome)
                elif (time_of := _time_of(progress)) != sent.seen.get(number, 0):
                    sent.seen[number] = time_of
                    if (said := _said(progress, "progress of a run")) is not None:
                        text = f"{said['text']} on {said['host']}"
                        self._start.tell(work.label, said["share"], text)
            if all(self._futures[number].done() for number in sent.works):
                del self._sent[id], self._jobs[id]

    def _ask(self) -> None:
        """Ask the cluster for its jobs; what has ended without a word is submitted again."""
        states = self._cluster.states(self._jobs)
        self._asked = time.monotonic()
        for id, sent in list(self._sent.items()) if states is not None else ():
            state = (states or {}).get(id, "COMPLETED")
            sent.missing = sent.missing + 1 if state in (*_CANCELLED, *_ENDED) else 0
            if sent.missing < 2:  # its last words may not be seen here yet
                continue
            why = f"job {id} ended ({state.lower()}) before its runs did"
            log = self._jobs[id].paths.stderr
            if state in _CANCELLED or sent.tries > self._start.settings["retries"]:
                told = TrimtabError(f"{why}; see {log}, and run the same command to go on")
                for number in sent.works:
                    if not self._futures[number].done():
                        self._futures[number].set_exception(told)
                continue
            logger.warning("%s; it is submitted again (%s)", why, log)
            left = {n: work for n, work in sent.works.items() if not self._futures[n].done()}
            self._again.append(_Sent(left, tries=sent.tries))
            del self._sent[id], self._jobs[id]

    def end(self) -> None:
        """Have every job that is there told to end, and wait until they have saved their runs."""
        for lost in self._unknown:
            self._cluster.cancel_named(lost)
        deadline, told = time.monotonic() + GRACE, float("-inf")
        while self._sent and time.monotonic() < deadline:
            if time.monotonic() - told >= AGAIN:
                told = time.monotonic()
                for id in self._sent:
                    self._cluster.cancel(id)
            states = self._cluster.states(self._jobs)  # None: not told, which is no end
            over = (*_CANCELLED, *_ENDED)
            if states is not None and all(states.get(id, over[0]) in over for id in self._sent):
                break
            time.sleep(LOOK)


def _executor(settings: Mapping[str, Any], parameters: Mapping[str, Any], notes: Path) -> Any:
    """Return submitit's executor.

    Raises:
        TrimtabError: if it does not take the settings.
    """
    import submitit

    try:
        executor = submitit.AutoExecutor(
            notes / "submitit",
            cluster=settings["cluster"],
            slurm_max_num_timeout=settings["requeues"],
            local_max_num_timeout=settings["requeues"],
        )
        executor.update_parameters(**parameters)
    except (NameError, ValueError, RuntimeError, AssertionError) as error:
        raise TrimtabError(f"launcher=slurm: submitit says: {line_of(error)}") from error
    return executor


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


def _time_of(path: Path) -> int:
    """Return when a file was written; 0 where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _cluster_of(settings: Mapping[str, Any]) -> Cluster:
    where = settings["cluster"]
    if where not in CLUSTERS:
        raise TrimtabError(f"launcher.cluster={where}: {nearest(where, CLUSTERS)}")
    return CLUSTERS[where]()


def _check(settings: Mapping[str, Any]) -> None:
    for key in ("minutes", "cpus", "runs_a_job"):
        if not settings[key]:
            raise TrimtabError(f"launcher.{key}=0: must be 1 or more")
    further_options(settings["more"])
    _cluster_of(settings).check()


@contextmanager
def _start(start: Start) -> Iterator[Launcher]:
    with sigterm_as_event() as told:
        jobs = _Jobs(start, _cluster_of(start.settings), told)
        try:
            yield jobs
        finally:
            jobs.end()


LAUNCHER = Kind("slurm", _start, OPTIONS, "submitit", _check)
