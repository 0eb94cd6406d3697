"""Runs side by side on this machine, in worker processes."""

from __future__ import annotations

import concurrent.futures
import gc
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trimtab.benchmarks.core.pools import Workers, worker_pool
from trimtab.benchmarks.suites.launch import (
    STOPPED,
    Done,
    Kind,
    Launcher,
    Start,
    Tell,
    Work,
    carry_out,
)
from trimtab.child import say

__all__ = ["LAUNCHER"]


class _Processes:
    """Worker processes as a launcher."""

    def __init__(self, workers: Workers, tell: Tell) -> None:
        self._workers, self._tell = workers, tell

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        """Have a run carried out as soon as a process is free."""
        return self._workers.threads.submit(self._done, work)

    def _done(self, work: Work) -> Done:
        return Done(**self._workers.call(_carry_out, work.label, work.words, tell=self._tell))

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        """Return those of the futures that are done, once there is one."""
        return self._workers.await_some(futures)


@contextmanager
def _start(start: Start) -> Iterator[Launcher]:
    with worker_pool(start.workers or os.cpu_count() or 1, STOPPED) as workers:
        yield _Processes(workers, start.tell)


def _carry_out(label: str, words: Sequence[str]) -> dict[str, Any]:
    """Carry out one run in a worker process."""
    done = carry_out(Work(label, tuple(words)), say)
    gc.collect()  # what the run has left may be large, and the next one is in the same process
    return vars(done)


LAUNCHER = Kind("local", _start)
