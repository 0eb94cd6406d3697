"""Limits of actions in float32, in which all policies act."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["inward"]


def inward(low: ArrayLike, high: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lowest and the highest float32 numbers between limits, elementwise.

    The nearest float32 number may lie outside: that of 0.1 is 0.100000001. A task with a limit of
    0.1 may refuse it.

    Args:
        low: lower limits, any shape and type of real numbers; infinite ones stay so.
        high: upper limits, likewise.

    Returns:
        The two limits. A lower one is above its upper one if there is no float32 number between.
    """
    below, above = np.asarray(low), np.asarray(high)
    with np.errstate(over="ignore"):
        least, most = below.astype(np.float32), above.astype(np.float32)
        least = np.where(least < below, np.nextafter(least, np.float32(np.inf)), least)
        most = np.where(most > above, np.nextafter(most, np.float32(-np.inf)), most)
    return least, most
