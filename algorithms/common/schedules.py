"""Learning rates that change along a run."""

from __future__ import annotations

import math

__all__ = ["cosine", "rising"]


def cosine(start: float, end: float, updates: int, length: int) -> float:
    """Return a rate that falls from ``start`` to ``end`` by half a cosine, and stays there.

    Args:
        start: the rate of the first update.
        end: the rate after ``length`` updates.
        updates: how many were made.
        length: of the fall.
    """
    progress = min(updates / max(length, 1), 1.0)
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))


def rising(highest: float, updates: int, length: int) -> float:
    """Return a rate that rises evenly to ``highest`` and stays there.

    The first of ``length`` updates has one part in ``length`` of it, the last one has all of it.

    Args:
        highest: the rate after the rise.
        updates: how many were made.
        length: updates of the rise; 0: there is none.
    """
    return highest * min((updates + 1) / max(length, 1), 1.0)
