"""A simulator's temporary files in a folder of their own, removed when it has read them."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["private_temporary_files"]

_lock = threading.RLock()


@contextmanager
def private_temporary_files() -> Iterator[None]:
    """Let temporary files of the block lie in a folder that its end removes.

    Gymnasium-Robotics writes a maze's model beside a temporary folder, under a name made of the
    time alone, so that two processes may read each other's; OGBench leaves its file behind. The
    folder of temporary files belongs to the whole process: one thread at a time has its own.
    """
    with _lock, tempfile.TemporaryDirectory(prefix="trimtab-maze-") as folder:
        before = tempfile.tempdir
        tempfile.tempdir = os.path.realpath(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before
