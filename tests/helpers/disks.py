"""Disks that are full, for this process."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

__all__ = ["files_of_at_most"]


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file grows beyond ``size`` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
