"""Worker processes side by side; at the end, or at an error, no worker is left behind."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.child import Child, ChildDied, end_children
from trimtab.errors import Stopped, TrimtabError

__all__ = ["Workers", "call_elsewhere", "worker_pool"]

_LOOK = 0.2
"""Seconds between two looks at whether to stop."""
_Result = TypeVar("_Result")


class Workers:
    """Processes that carry out functions side by side.

    A process is started when no other is free, and is kept for the next function.

    Args:
        count: processes at most.
        told: when set, this process stops.
        stopped: the line that it then ends with.

    Attributes:
        threads: as many as there may be processes; each calls :meth:`call`.
    """

    def __init__(self, count: int, told: threading.Event, stopped: str) -> None:
        self.threads = concurrent.futures.ThreadPoolExecutor(count)
        self._told, self._stopped = told, stopped
        self._lock, self._ended = threading.Lock(), False
        self._all: list[Child] = []
        self._free: list[Child] = []

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        tell: Callable[..., None] = lambda *said: None,
    ) -> Any:
        """Return what a function returns in one of the processes.

        Args:
            function: as :meth:`trimtab.child.Child.call` takes it.
            arguments: of the function.
            tell: called with what it says.

        Raises:
            Stopped: if the process is told to end, or all are.
            TrimtabError: if the function raises it, or the process ends by itself.
            RuntimeError: if the function raises another exception.
        """
        with self._lock:
            if self._ended:
                raise Stopped(self._stopped)
            if not self._free:
                self._all.append(Child())
                self._free.append(self._all[-1])
            child = self._free.pop()
        try:
            result = child.call(function, *arguments, tell=tell)
        except Stopped:
            self._ended = True
            raise
        except ChildDied as died:
            if self._ended or died.code == -signal.SIGTERM:
                self._ended = True
                raise Stopped(self._stopped) from died
            raise TrimtabError(
                f"a worker process ended before its work was done ({died}), such as for want of "
                "memory; run the same command to resume, with fewer workers if it happens again"
            ) from died
        except TrimtabError:
            self._free.append(child)
            raise
        self._free.append(child)
        return result

    def await_some(
        self, futures: Collection[concurrent.futures.Future[_Result]]
    ) -> set[concurrent.futures.Future[_Result]]:
        """Return those of the futures that are done, once there is one.

        Raises:
            Stopped: if this process is told to stop.
        """
        ready: set[concurrent.futures.Future[_Result]] = set()
        while not ready:
            ready, _ = concurrent.futures.wait(
                futures, timeout=_LOOK, return_when=concurrent.futures.FIRST_COMPLETED
            )
            if self._told.is_set():
                raise Stopped(self._stopped)
        return ready

    def end(self) -> None:
        """End all processes; those that are at work save their states first."""
        with self._lock:
            self._ended = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        end_children(self._all)
        self.threads.shutdown()


@contextmanager
def worker_pool(count: int, stopped: str) -> Iterator[Workers]:
    """Yield worker processes; afterwards none of them is left, whatever happened.

    Args:
        count: processes at most.
        stopped: the line that this process ends with when it is told to stop.
    """
    with sigterm_as_event() as told:
        workers = Workers(count, told, stopped)
        try:
            yield workers
        finally:
            workers.end()


def call_elsewhere(function: Callable[..., Any], *arguments: Any, stopped: str) -> Any:
    """Return what a function of a module returns in a process of its own.

    Args:
        function: what to call.
        arguments: of it: JSON values.
        stopped: the line with which this process ends when it is told to stop meanwhile.

    Raises:
        Stopped: if it is.
        TrimtabError: if the function raises it, or the other process ends by itself.
    """
    with worker_pool(1, stopped) as workers:
        future = workers.threads.submit(workers.call, function, *arguments)
        workers.await_some([future])
        return future.result()
