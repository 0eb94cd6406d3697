"""Observations of rows, each stored once: the next one of a row is that of the row after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.observed import NEXT
from trimtab.observations import Part

__all__ = ["StoredOnce", "apart_of"]

Arrays = Mapping[str, npt.NDArray[Any]]


class StoredOnce:
    """Observations ``[rows, columns, ...]`` of a ring, and what was observed after each row.

    That is the observation of the row after it in its column. Where it is another one (an episode
    ended there, or the next row began elsewhere), and for the newest row, it lies apart, in a slot.
    Slots are used again when their row is overwritten.

    Attributes:
        arrays: observations by their name in the storage.

    Args:
        rows: number of rows of each column.
        columns: number of columns.
        parts: shape and type of an observation by its name.
    """

    def __init__(self, rows: int, columns: int, parts: Mapping[str, Part]) -> None:
        self._rows, self._columns = rows, columns
        self.arrays: dict[str, npt.NDArray[Any]] = {
            name: np.zeros((rows, columns, *part.shape), part.dtype) for name, part in parts.items()
        }
        # Flat views ``[rows * columns, ...]``, because one index gathers faster than two.
        self._flat = {name: _flat(array) for name, array in self.arrays.items()}
        self._slot = np.zeros((rows, columns), np.int32)  # 0: the row after it
        self._slot_flat = self._slot.reshape(-1)
        # Slot 0 is never used.
        self._apart = {
            name: np.zeros((columns + 1, *part.shape), part.dtype) for name, part in parts.items()
        }
        self._free = list(range(columns, 0, -1))  # slots; the last one is taken first
        self._newest: int | None = None  # row that was written last

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (*self.arrays.values(), *self._apart.values(), self._slot)
        return sum(array.nbytes for array in arrays)

    def take_next(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return what was observed ``[*index.shape, ...]`` after the rows at flat indices."""
        found = self._flat[name].take(index + self._columns, axis=0, mode="wrap")
        slot = self._slot_flat.take(index)
        apart = slot.nonzero()
        if len(apart[0]):
            found[apart] = self._apart[name].take(slot[apart], axis=0)
        return found

    def write(self, row: int, obs: Arrays, following: Arrays) -> None:
        """Write one row of every column, the one after that which was written last.

        Args:
            row: which one.
            obs: ``[columns, ...]`` by name.
            following: what was observed next, ``[columns, ...]`` by the same names.
        """
        before = self._slot[row if self._newest is None else self._newest]
        ends = np.ones(self._columns, np.bool_)  # what lies apart of the row before stays there
        if self._newest is not None:
            ends = self._differ(before, obs)
        slots = before.copy()
        before[~ends] = 0
        overwritten = self._slot[row]
        if overwritten.any():
            self._free += overwritten[overwritten > 0].tolist()
        if ends.any():
            slots[ends] = self._taken(int(ends.sum()))
        self._slot[row] = slots
        for name, array in self.arrays.items():
            array[row] = obs[name]
            self._apart[name][slots] = following[name]
        self._newest = row

    def _differ(self, slots: npt.NDArray[np.int32], obs: Arrays) -> npt.NDArray[np.bool_]:
        """Return ``[columns]`` whether observations are others than those in some slots."""
        found = np.zeros(self._columns, np.bool_)
        for name, array in obs.items():
            found |= ~_same_rows(self._apart[name].take(slots, axis=0), array)
        return found

    def _taken(self, count: int) -> list[int]:
        """Return slots that are free; there are made more where they do not suffice."""
        if len(self._free) < count:
            made = next(len(array) for array in self._apart.values())
            more = max(made, count)
            for name, array in self._apart.items():
                added = np.zeros((more, *array.shape[1:]), array.dtype)
                self._apart[name] = np.concatenate([array, added])
            self._free = [*range(made + more - 1, made - 1, -1), *self._free]
        taken = self._free[: -count - 1 : -1]
        del self._free[-count:]
        return taken

    @property
    def lies_apart(self) -> npt.NDArray[np.bool_]:
        """Whether the next observation of each row lies apart, ``[rows, columns]``."""
        return np.asarray(self._slot > 0)

    def apart(self, size: int) -> dict[str, npt.NDArray[Any]]:
        """Return copies of what lies apart of the first ``size`` rows, ``[n, ...]`` by name.

        The order is that of the rows' flat indices.
        """
        slot = self._slot[:size]
        return {name: array[slot[slot > 0]] for name, array in self._apart.items()}

    def lay_apart(self, where: npt.NDArray[np.bool_], values: Arrays, newest: int | None) -> None:
        """Put aside what ``apart`` returned.

        Args:
            where: of which rows, ``[size, columns]``.
            values: ``[n, ...]`` by name.
            newest: row that was written last; None: none was.
        """
        count = int(where.sum())
        made = count + self._columns  # so that the next row finds room
        self._slot[:] = 0
        self._slot[: len(where)][where] = np.arange(1, count + 1)
        for name, array in self.arrays.items():
            self._apart[name] = np.zeros((made + 1, *array.shape[2:]), array.dtype)
            self._apart[name][1 : count + 1] = values[name]
        self._free = list(range(made, count, -1))
        self._newest = newest

    def check(self, where: npt.NDArray[np.bool_], values: Arrays, newest: int | None) -> None:
        """Say whether these are what ``lay_apart`` takes.

        Raises:
            ValueError: if they are not; a missing one is a KeyError.
        """
        if newest is not None and not where[newest].all():
            raise ValueError("it lacks the newest observations")
        for name, array in self.arrays.items():
            part, wanted = values[name], (int(where.sum()), *array.shape[2:])
            if part.shape != wanted or part.dtype != array.dtype:
                raise ValueError(f"'{NEXT}{name}' has shape {part.shape} and type {part.dtype}")


def apart_of(
    obs: Arrays, following: Arrays, newest: int | None
) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[Any]]]:
    """Return what has to lie apart of rows that have both observations.

    Args:
        obs: ``[size, columns, ...]`` of each row by name.
        following: what was observed next, by the same names.
        newest: row that was written last.

    Returns:
        ``[size, columns]`` which rows, and ``[n, ...]`` their next observations by name.
    """
    first = next(iter(obs.values()))
    where = np.zeros(first.shape[:2], np.bool_)
    for name, array in obs.items():
        after = np.roll(array, -1, axis=0)
        where |= ~_same_rows(_flat(after), _flat(following[name])).reshape(where.shape)
    if newest is not None:
        where[newest] = True
    return where, {name: array[where] for name, array in following.items()}


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _same_rows(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return ``[N]`` whether rows ``[N, ...]`` of one type are equal to the bit."""
    bits = [np.ascontiguousarray(array).reshape(len(array), -1) for array in (one, other)]
    if one.dtype != np.uint8:  # a number that is none equals itself here, and -0 is not 0
        bits = [array.view(np.int32) for array in bits]
    return np.asarray((bits[0] == bits[1]).all(axis=1))
