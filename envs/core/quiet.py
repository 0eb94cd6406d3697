"""Imports and constructors of simulators, without their chatter."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

__all__ = ["quiet"]

_lock = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and prints of the block, which say nothing that a user could act on.

    Simulators announce deprecated tasks on import, and Gymnasium warns about every float64 limit
    that becomes float32. Errors pass through. Streams and warnings belong to the whole process, so
    one thread at a time is in such a block, and what other threads print meanwhile is hidden, too.
    """
    with (
        _lock,
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        yield
