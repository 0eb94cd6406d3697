"""Memory: what asks for more than the machine has is refused at once, and in one line.

Linux promises more memory than there is, and ends the process that comes to use it, without a word
and maybe after minutes of work. A limit of the process's own lets the request itself fail.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.benchmarks.core.own_code import fault_of_own_code
from trimtab.errors import TrimtabError

__all__ = ["memory_of_the_machine", "want_of_memory", "within_memory"]

REMEDY = (
    "lower what is largest among algorithm.*, policy.*, num_envs, buffer_size, history, act_steps"
)
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_REFUSED = re.compile(r"can't allocate memory|out of memory|bad_alloc|Storage size calculation")
_BYTES = re.compile(r"allocate (\d+) bytes")


def memory_of_the_machine() -> int:
    """Return the bytes that this machine, or the container around this process, has in all."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group in _GROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
            found.append(int(Path(group).read_text()))
    return min(found)


def want_of_memory(error: Exception) -> str | None:
    """Return in a few words what an exception says of memory; None if it is of something else."""
    told = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and not _REFUSED.search(told):
        return None
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    asked = _BYTES.search(told)
    if asked is not None:
        return f"{math.ceil(int(asked[1]) / 2**30)} GiB were asked for at once"
    return told[:200].rstrip(".") or "a request was refused"


@contextmanager
def within_memory(device: str = "cpu") -> Iterator[None]:
    """Let this process have no more memory than the machine, and tell its want in one line.

    Args:
        device: where tensors live; drivers of others map more than they use, and set no limit here.

    Raises:
        TrimtabError: where a request fails that no code of the user's own has made.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory_of_the_machine()
    used = _data_in_use() if device == "cpu" else None
    given = before[0] if before[0] != resource.RLIM_INFINITY else math.inf
    limited = used is not None and used + most < given
    try:
        if used is not None and limited:
            resource.setrlimit(resource.RLIMIT_DATA, (used + most, before[1]))
        yield
    except (MemoryError, RuntimeError) as error:
        told = want_of_memory(error)
        if isinstance(error, TrimtabError) or told is None or fault_of_own_code(error):
            raise
        raise TrimtabError(
            f"not enough memory: {told}, and this machine has {most / 2**30:.1f} GiB; {REMEDY}"
        ) from error
    finally:
        if limited:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_in_use() -> int | None:
    """Return the bytes that count for the limit now; None where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
