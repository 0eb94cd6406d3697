"""Runs side by side on this machine, in a pool of processes."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import multiprocessing.queues
import os
import queue
import signal
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trimtab.benchmarks.core.pools import await_some, leave_worker, worker_pool
from trimtab.benchmarks.core.signals import end_with_parent, sigterm_as_event, told_to_end
from trimtab.benchmarks.core.workers import worker_context
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
from trimtab.errors import Stopped

__all__ = ["LAUNCHER"]

if TYPE_CHECKING:
    Messages = multiprocessing.queues.Queue[tuple[str, float, str]]  # label, share done, words


class _Pool:
    """A pool of processes as a launcher."""

    def __init__(self, pool: concurrent.futures.Executor, told: threading.Event) -> None:
        self._pool, self._told = pool, told

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        """Have a run carried out as soon as a process is free."""
        return self._pool.submit(_work, work)

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        """Return those of the futures that are done, once there is one."""
        return await_some(futures, self._told, STOPPED)


@contextmanager
def _start(start: Start) -> Iterator[Launcher]:
    context = worker_context()
    messages: Messages = context.Queue()
    count = start.workers or os.cpu_count() or 1
    with (
        sigterm_as_event() as told,
        _listening(messages, start.tell),
        worker_pool(
            count, context, _prepare_worker, (messages,), told=told, stopped=STOPPED
        ) as pool,
    ):
        yield _Pool(pool, told)


@contextmanager
def _listening(messages: Messages, tell: Tell) -> Iterator[None]:
    """Hand on what the workers say, in a thread of its own."""
    stop = threading.Event()

    def listen() -> None:
        while not stop.is_set():
            try:
                tell(*messages.get(timeout=0.2))
            except queue.Empty:
                continue
            except (EOFError, OSError):
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        stop.set()
        listener.join(timeout=2)


_worker_messages: Messages
"""Where a worker process says how far it is."""


def _prepare_worker(messages: Messages) -> None:
    global _worker_messages
    end_with_parent()
    # The parent decides what an interrupt means; a worker is told by being terminated.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore")
    messages.cancel_join_thread()  # a worker that ends does not wait for its last words to be read
    _worker_messages = messages


def _work(work: Work) -> Done:
    """Carry out one run in a worker process, which ends if it is told to stop."""
    if told_to_end():  # during the last steps of the run before
        leave_worker()
    try:
        done = carry_out(work, lambda *said: _worker_messages.put(said))
    except Stopped:  # its state is saved; the pool may have given it another run already
        leave_worker()
    gc.collect()  # what the run has left may be large, and the next one is in the same process
    return done


LAUNCHER = Kind("local", _start)
