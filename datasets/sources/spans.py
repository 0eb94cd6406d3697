"""How much of its episode lies before and after a stored row."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.rows import RowArrays, Storage
from trimtab.datasets.sources.steps import EPISODE_END
from trimtab.types import BatchSpec

__all__ = ["DatasetSpans", "RingSpans", "Spans", "needs_spans"]

_BLOCK = 1 << 20

Indices = npt.NDArray[np.int64]


class Spans(Protocol):
    """Knows where episodes begin and end, as windows see it: by the rows' flags."""

    def before(self, index: Indices) -> Indices:
        """Return how many rows the episode has before those at flat indices, stored or not."""
        ...

    def after(self, index: Indices) -> Indices:
        """Return how many rows it has after them; -1: it has not ended yet."""
        ...


def needs_spans(batch_spec: BatchSpec) -> bool:
    """Whether batches need to know where episodes begin and end."""
    return batch_spec.history > 1 or batch_spec.sequence > 0 or batch_spec.goal is not None


class DatasetSpans:
    """Of rows that stay as they are, in one column; the last of them ends an episode.

    Args:
        storage: the rows.
    """

    def __init__(self, storage: Storage) -> None:
        ends = []
        for first in range(0, storage.rows, _BLOCK):
            rows = np.arange(first, min(first + _BLOCK, storage.rows))
            ends.append(rows[storage.take("flags", rows) >= EPISODE_END])
        self._last = np.concatenate(ends)
        self._first = np.append(0, self._last[:-1] + 1)

    def before(self, index: Indices) -> Indices:
        """Return how many rows the episode has before those at the indices."""
        return np.asarray(index - self._first.take(self._last.searchsorted(index)))

    def after(self, index: Indices) -> Indices:
        """Return how many rows it has after them."""
        return np.asarray(self._last.take(self._last.searchsorted(index)) - index)


class RingSpans:
    """Of rows that are added; told of each.

    Args:
        ring: the rows.
    """

    def __init__(self, ring: RowArrays) -> None:
        self._ring = ring
        lead = (ring.rows, ring.columns)
        self._before, self._after = np.zeros(lead, np.int32), np.zeros(lead, np.int32)
        self._begun = np.zeros(ring.columns, np.int64)  # rows of each column's episode so far

    def before(self, index: Indices) -> Indices:
        """Return how many rows the episode has before those at the indices, stored or not."""
        return self._before.reshape(-1).take(index).astype(np.int64)

    def after(self, index: Indices) -> Indices:
        """Return how many rows it has after them; -1: it has not ended yet."""
        return self._after.reshape(-1).take(index).astype(np.int64)

    def added(self, row: int) -> None:
        """Take in a row that was just written."""
        self._before[row], self._after[row] = self._begun, -1
        self._begun += 1
        for column in np.flatnonzero(self._ring.arrays["flags"][row] >= EPISODE_END).tolist():
            back = np.arange(min(int(self._begun[column]), self._ring.rows))
            self._after[(row - back) % self._ring.rows, column] = back
            self._begun[column] = 0

    def restore(self, size: int, oldest: int) -> None:
        """Tell all of ``size`` rows anew, from the row ``oldest`` on."""
        self._begun[:] = 0
        for row in (oldest + np.arange(size)) % self._ring.rows:
            self.added(int(row))
