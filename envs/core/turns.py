"""Blocks that change what belongs to the whole process, such as ``sys.stdout``.

One thread at a time is in such a block: two would each put back what the other one has put there.
A process is forked only while no other thread is in a block: in the fork, which does not have that
thread, nobody would put anything back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["in_turn"]

_lock = threading.RLock()


@contextmanager
def in_turn() -> Iterator[None]:
    """Wait until no other thread is in such a block; the same thread may be in several at once."""
    with _lock:
        yield


# A thread that forks inside its own block keeps its turn, and so does the forked process.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
