"""Changes of what belongs to the whole process, such as ``sys.stdout``, taken back at their end.

One thread at a time makes such changes: two would each put back what the other one has put there. A
forked process has none of the changes of other threads: each is noted before it is made, and the
forked process, which does not have the thread, puts back what was there.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

__all__ = ["as_global_generator", "in_turn", "replaced", "without_warnings"]

PutBack = Callable[[], object]

_lock = threading.RLock()
_noted: list[PutBack] = []
"""What puts back all that is changed now, in the order of the changes."""


@contextmanager
def in_turn() -> Iterator[Callable[[PutBack], None]]:
    """Wait until no other thread is in such a block; the same thread may be in several at once.

    Yields:
        what notes how a change is put back. Call it before the change. The end of the block puts
        back what was noted in it, the last change first. A fork at that moment may do it twice.
    """
    with _lock:
        before = len(_noted)
        try:
            yield _noted.append
        finally:
            _put_back_after(before)


def _put_back_after(count: int) -> None:
    """Put back all that was noted after the first ``count``, the last first.

    A change that cannot be put back keeps none of the others from it.
    """
    try:
        with ExitStack() as stack:
            for put_back in _noted[count:]:
                stack.callback(put_back)
    finally:
        del _noted[count:]


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Let ``value`` be the attribute ``name`` of a module or a class, in turn.

    Raises:
        KeyError: if it has no such attribute of its own.
    """
    with in_turn() as note:
        note(functools.partial(setattr, owner, name, vars(owner)[name]))
        setattr(owner, name, value)
        yield


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hide the warnings of the block, in turn, and those of other threads meanwhile."""
    caught = warnings.catch_warnings()
    with in_turn() as note:
        caught.__enter__()  # changes nothing yet
        note(functools.partial(caught.__exit__, None, None, None))
        warnings.simplefilter("ignore")
        yield


@contextmanager
def as_global_generator(generator: np.random.RandomState) -> Iterator[None]:
    """Let the block draw from ``generator`` where it asks numpy's one global generator, in turn.

    Afterwards the global generator stands where it stood, and ``generator`` has moved on. Another
    thread that draws from the global generator meanwhile draws from ``generator``.
    """
    with in_turn() as note:
        note(functools.partial(_put_back, np.random.get_state(legacy=False), os.getpid()))
        np.random.set_state(generator.get_state(legacy=False))
        try:
            yield
        finally:
            generator.set_state(np.random.get_state(legacy=False))


def _put_back(state: dict[str, object], process: int) -> None:
    if os.getpid() != process:  # the thread that is gone may hold the lock of the old one
        np.random.mtrand.set_bit_generator(np.random.MT19937())
    np.random.set_state(state)


def _after_a_fork() -> None:
    """Put back, in a forked process, what a thread had changed that this process does not have."""
    global _lock
    if _lock.acquire(blocking=False):  # nobody was in a block, or the thread that forked
        _lock.release()
        return
    _lock = threading.RLock()
    _put_back_after(0)


os.register_at_fork(after_in_child=_after_a_fork)
