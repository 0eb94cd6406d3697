"""Monte-Carlo returns of what is gathered, which are known once an episode has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trimtab.datasets.sources.rows import RowArrays
from trimtab.datasets.sources.steps import EPISODE_END

__all__ = ["FinishedReturns"]


class FinishedReturns:
    """Fills the column ``mc_return`` of a ring backwards, at each episode's end.

    The return of a row that was cut off by a time limit counts what was collected up to there.

    Attributes:
        known: episodes whose returns are known.

    Args:
        ring: the rows; their ``mc_return`` is NaN until it is known.
        discount: of each row.
    """

    def __init__(self, ring: RowArrays, discount: float) -> None:
        self._ring, self._discount = ring, discount
        self._begun = np.zeros(ring.columns, np.int64)  # stored rows of each column's episode
        self.known = 0

    @property
    def unknown(self) -> int:
        """How many of the newest rows have returns that are not known yet."""
        return int(self._begun.max())

    def after(self, row: int) -> None:
        """Write the returns of the episodes that end with a row that was just written."""
        arrays = self._ring.arrays
        self._begun = np.minimum(self._begun + 1, self._ring.rows)
        for column in np.flatnonzero(arrays["flags"][row] >= EPISODE_END).tolist():
            total = 0.0
            for back in range(int(self._begun[column])):
                place = (row - back) % self._ring.rows
                total = float(arrays["reward"][place, column]) + self._discount * total
                arrays["mc_return"][place, column] = total
            self._begun[column] = 0
            self.known += 1

    def state_dict(self) -> dict[str, Any]:
        """Return how long the episodes are that go on, and how many have ended."""
        return {"begun": self._begun.tolist(), "known": self.known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self._begun = np.array(state["begun"], np.int64)
        self.known = int(state["known"])
