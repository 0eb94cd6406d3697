"""How much of its episode lies before and after a stored row."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.rows import RowArrays, Storage
from trimtab.datasets.sources.steps import EPISODE_END
from trimtab.types import BatchSpec

__all__ = ["DatasetSpans", "EpisodeOf", "RingSpans", "Spans", "wants_spans"]

_LEAST_SHIFT = 4  # a block of 16 steps takes half a byte of memory a step
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


class EpisodeOf:
    """Finds the episode of a step by a table of blocks; a binary search took a third of a batch.

    Args:
        lengths: ``[E]`` steps of each episode.
    """

    def __init__(self, lengths: Indices) -> None:
        self._ends = np.cumsum(lengths)
        self._shift = max(_LEAST_SHIFT, int(lengths.min()).bit_length() - 1)
        blocks = np.arange(0, self._ends[-1], 1 << self._shift)
        self._table = self._ends.searchsorted(blocks, side="right")
        last = np.append(self._table[1:], len(lengths) - 1)
        self._most = int((last - self._table).max())  # episodes that end within one block

    def __call__(self, index: Indices) -> Indices:
        """Return the episode of each step."""
        episode = self._table.take(index >> self._shift)
        for _ in range(self._most):
            episode += self._ends.take(episode) <= index
        return np.asarray(episode)


def wants_spans(wants: BatchSpec) -> bool:
    """Whether batches need to know where episodes begin and end."""
    return wants.history > 1 or wants.sequence > 0 or wants.goal is not None


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
        lengths = np.diff(self._last, prepend=-1)
        self._first = self._last + 1 - lengths
        self._episode_of = EpisodeOf(lengths)

    def before(self, index: Indices) -> Indices:
        """Return how many rows the episode has before those at the indices."""
        return np.asarray(index - self._first.take(self._episode_of(index)))

    def after(self, index: Indices) -> Indices:
        """Return how many rows it has after them."""
        return np.asarray(self._last.take(self._episode_of(index)) - index)


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
