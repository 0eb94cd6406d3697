"""Learning rates that change along a run."""

from __future__ import annotations

import math

__all__ = ["cosine"]


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
