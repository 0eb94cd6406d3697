"""How many threads torch uses in this process, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as in the processes of a pool.

    More can move last bits, and small networks are slower with more: where other processes keep
    the cores busy, a decision that takes a millisecond takes a hundred.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
