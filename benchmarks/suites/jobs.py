"""What a job of a cluster is: some runs, carried out in a process that only shares files with us.

The job writes how far its runs are, and what became of each, as JSON files that its launcher reads.
The engine, submitit, starts it, and is asked by it to start it once more where the cluster takes
its machine away: that costs what the runs did since they last saved their states, which is nothing
where the cluster gives notice.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from trimtab.benchmarks.suites.launch import Start, Tell, Work, attempt, launcher_kinds
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_write_json

__all__ = ["Job", "outcome_path", "progress_path"]

_EVERY = 1.0
"""Seconds between two times that a job writes how far a run is."""


def progress_path(notes: Path, number: int) -> Path:
    """Return the file that says how far a run is."""
    return notes / f"{number}.progress.json"


def outcome_path(notes: Path, number: int) -> Path:
    """Return the file that says what became of a run; it is there once that is known."""
    return notes / f"{number}.outcome.json"


class Job:
    """Some runs, as submitit carries them out: called in the main thread of a process of its own.

    Args:
        works: the runs, by the numbers that their files have; side by side if there are several.
        notes: folder of those files.
    """

    def __init__(self, works: Sequence[tuple[int, Work]], notes: Path) -> None:
        self.works, self.notes = tuple(works), notes

    def __call__(self) -> None:
        """Carry the runs out; those that an earlier start of this job has ended are passed over."""
        left = [one for one in self.works if not outcome_path(self.notes, one[0]).exists()]
        with _told_before_the_end() as requeue:
            try:
                if len(left) > 1:
                    self._side_by_side(left)
                for number, work in left[:1] if len(left) == 1 else ():
                    self._write(number, attempt(work, self._teller(left)))
            except Stopped:
                requeue()
                # Told by SIGTERM alone: the cluster itself starts the job once more, or cancels it.
                # Nothing is returned, because submitit would take that for the result.
                os._exit(Stopped.exit_code)

    def checkpoint(self) -> Any:
        """Return what submitit starts when the job is queued anew: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _side_by_side(self, left: Sequence[tuple[int, Work]]) -> None:
        """Carry out runs side by side, in processes of this machine."""
        start = Start(len(left), self._teller(left), {}, self.notes)
        with launcher_kinds()["local"].start(start) as pool:
            numbers = {pool.submit(work): number for number, work in left}
            while numbers:
                for future in pool.await_some(numbers):
                    number = numbers.pop(future)
                    try:
                        done = future.result()
                    except Stopped:
                        raise
                    except TrimtabError as error:
                        self._write(number, {"error": str(error)})
                    else:
                        self._write(number, vars(done))

    def _write(self, number: int, outcome: dict[str, Any]) -> None:
        atomic_write_json(outcome_path(self.notes, number), outcome)

    def _teller(self, left: Sequence[tuple[int, Work]]) -> Tell:
        """Return what is told how far runs are, and writes it every so often."""
        numbers = {work.label: number for number, work in left}
        written: dict[str, float] = {}

        def tell(label: str, share: float, text: str) -> None:
            now = time.monotonic()
            if now - written.get(label, float("-inf")) < _EVERY:
                return
            written[label] = now
            said = {"share": share, "text": text, "host": platform.node()}
            with suppress(TrimtabError):  # a full disk ends the run by its own files
                atomic_write_json(progress_path(self.notes, numbers[label]), said)

        return tell


@contextmanager
def _told_before_the_end() -> Iterator[Callable[[], None]]:
    """Answer the signal that a cluster sends some time before it ends a job.

    A job that listens to SIGTERM, as a run does, is told by it, and saves its state. Where none
    listens, there is no state to save yet: this process is queued anew, or ends where it was told
    by SIGTERM alone, which submitit would pass over. The function that is yielded is for
    afterwards: if the signal came, it hands over to submitit, which has the job queued anew and
    ends this process.
    """
    number = signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]
    engine, told = signal.getsignal(number), threading.Event()

    def leave(*_: object) -> None:
        if not told.is_set():  # else it is that notice, too late for a run that has just ended
            os._exit(Stopped.exit_code)

    def requeue() -> None:
        if told.is_set() and callable(engine):
            engine(number, None)

    def note(*_: object) -> None:
        told.set()
        if signal.getsignal(signal.SIGTERM) is leave:
            requeue()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    with ExitStack() as undone:
        for each, answer in ((number, note), (signal.SIGTERM, leave)):
            undone.callback(signal.signal, each, signal.signal(each, answer))
        yield requeue
