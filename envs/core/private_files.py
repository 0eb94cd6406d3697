"""A simulator's temporary files in a folder of their own, removed when it has read them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trimtab.turns import replaced

__all__ = ["private_temporary_files"]


@contextmanager
def private_temporary_files(module: Any) -> Iterator[None]:
    """Let what ``module`` writes by its ``tempfile`` lie in a folder that the block's end removes.

    Gymnasium-Robotics writes a maze's model beside a temporary folder, under a name made of the
    time alone, so that two processes may read each other's; OGBench leaves its file behind.

    Args:
        module: a simulator's module that has imported ``tempfile``.
    """
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-maze-") as folder,
        replaced(module, "tempfile", _Inside(os.path.realpath(folder))),
    ):
        yield


class _Inside:
    """Stands for the module ``tempfile``: what simulators use of it, in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def TemporaryDirectory(self) -> tempfile.TemporaryDirectory[str]:  # noqa: N802
        return tempfile.TemporaryDirectory(dir=self._folder)

    def mkstemp(self, *, text: bool, suffix: str) -> tuple[int, str]:
        handle, path = tempfile.mkstemp(suffix, dir=self._folder, text=text)
        os.close(handle)  # the file is opened by its name, and this would never be closed
        return handle, path
