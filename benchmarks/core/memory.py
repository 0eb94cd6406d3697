"""Memory: a request that the machine refuses is told in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

from trimtab.benchmarks.core.own_code import fault_of_own_code
from trimtab.errors import TrimtabError

__all__ = ["want_of_memory", "within_memory"]

REMEDY = (
    "lower what is largest among algorithm.*, policy.*, num_envs, buffer_size, history, act_steps"
)
_REFUSED = re.compile(r"can't allocate memory|out of memory|bad_alloc|Storage size calculation")
_BYTES = re.compile(r"allocate (\d+) bytes")


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
def within_memory() -> Iterator[None]:
    """Tell want of memory in one line.

    Raises:
        TrimtabError: where a request fails that no code of the user's own has made.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        told = want_of_memory(error)
        if isinstance(error, TrimtabError) or told is None or fault_of_own_code(error):
            raise
        raise TrimtabError(f"not enough memory: {told}; {REMEDY}") from error
