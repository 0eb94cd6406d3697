"""Chunks of actions whose entries carry the control tick that they are for.

Nothing counts entries: a tick that was dropped, or an answer that comes late, cannot shift the
rest of a plan, because an entry is looked up by its tick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Chunk"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Chunk:
    """Actions for consecutive control ticks.

    Attributes:
        tick: the control tick of the first action, counted from the reset.
        actions: ``[H, A]``, raw units.
    """

    tick: int
    actions: Array

    @property
    def end(self) -> int:
        """The first tick after the last action."""
        return self.tick + len(self.actions)

    def at(self, tick: int) -> Array | None:
        """Return the action ``[A]`` for a tick, or None if the chunk has none."""
        return self.actions[tick - self.tick] if self.tick <= tick < self.end else None
