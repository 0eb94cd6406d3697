"""Numpy's legacy generators, which older simulators draw from, seeded and kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from trimtab.envs.core.turns import in_turn

__all__ = ["as_global_generator", "legacy_generator"]

_WORD = 2**32


def legacy_generator(seed: int | None) -> np.random.RandomState:
    """Return numpy's legacy generator for ``seed``; None seeds it from the machine.

    Seeds that numpy would refuse (2^32 and more) are handed to it in words of 32 bits.
    """
    if seed is None or seed < _WORD:
        return np.random.RandomState(seed)
    words = []
    while seed:
        seed, word = divmod(seed, _WORD)
        words.append(word)
    return np.random.RandomState(words)


@contextmanager
def as_global_generator(generator: np.random.RandomState) -> Iterator[None]:
    """Let the block draw from ``generator`` where it asks numpy's one global generator.

    Afterwards the global generator stands where it stood, and ``generator`` has moved on. Another
    thread that asks for such a block waits; one that draws from the global generator by itself
    draws from ``generator``.
    """
    with in_turn():
        outside = np.random.get_state(legacy=False)
        np.random.set_state(generator.get_state(legacy=False))
        try:
            yield
        finally:
            generator.set_state(np.random.get_state(legacy=False))
            np.random.set_state(outside)
