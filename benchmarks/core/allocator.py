"""The memory of tensors that were freed."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names of two of its settings, in ``malloc.h``."""
_LARGEST = 32 << 20
"""The largest block, in bytes, for which glibc can be told to keep the memory."""


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensors; return whether this process has glibc.

    Otherwise it gives each large block back to the system, and the next one begins with a page
    fault for every 4 KiB: on Intel's processors 700 to 960 faults in an update of SAC, a tenth of
    its time. Up to 256 MiB more than is in use stay with the process.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, 8 * _LARGEST))
