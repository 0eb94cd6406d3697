"""Blocks that change what belongs to the whole process, such as ``sys.stdout``.

One thread at a time is in such a block: two would each put back what the other one has put there.
A process that is forked meanwhile undoes the changes of the thread that it does not have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["in_turn"]

_lock: Any = threading.RLock()
_open: list[ExitStack] = []


@contextmanager
def in_turn() -> Iterator[ExitStack]:
    """Wait until no other thread is in such a block; yield what undoes the changes at its end."""
    with _lock:
        undone = ExitStack()
        _open.append(undone)
        try:
            with undone:
                yield undone
        finally:
            if undone in _open:
                _open.remove(undone)


def _after_fork() -> None:
    """Undo in a forked process what a thread that it does not have has changed."""
    global _lock
    if not _lock._is_owned():
        while _open:
            _open.pop().close()
        _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
