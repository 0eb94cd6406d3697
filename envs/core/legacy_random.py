"""Numpy's legacy generators, which older simulators draw from, seeded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["as_global_generator", "legacy_generator", "legacy_seed"]

_WORD = 2**32
_lock = threading.RLock()


def legacy_seed(seed: int) -> int | list[int]:
    """Return a seed as numpy's legacy generators take it: from 2^32 on, in words of 32 bits."""
    if seed < _WORD:
        return seed
    words = []
    while seed:
        seed, word = divmod(seed, _WORD)
        words.append(word)
    return words


def legacy_generator(seed: int | None) -> np.random.RandomState:
    """Return numpy's legacy generator for ``seed``; None seeds it from the machine."""
    return np.random.RandomState(None if seed is None else legacy_seed(seed))


@contextmanager
def as_global_generator(generator: np.random.RandomState) -> Iterator[None]:
    """Let the block draw from ``generator`` where it asks numpy's one global generator.

    Afterwards the global generator stands where it stood, and ``generator`` has moved on. One
    thread at a time is in such a block.
    """
    with _lock:
        before = np.random.get_state(legacy=False)
        np.random.set_state(generator.get_state(legacy=False))
        try:
            yield
        finally:
            generator.set_state(np.random.get_state(legacy=False))
            np.random.set_state(before)
