"""Numpy's legacy generators, which older simulators draw from, seeded."""

from __future__ import annotations

import numpy as np

__all__ = ["legacy_generator"]

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
