"""Rows of transitions: what a storage of them offers, and one in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.observed import NEXT, ObsForm, as_array
from trimtab.datasets.sources.steps import EPISODE_END, TERMINATED
from trimtab.datasets.sources.stored_once import StoredOnce, apart_of
from trimtab.errors import TrimtabError
from trimtab.observations import Part
from trimtab.types import RowLog, Tensor

__all__ = ["AUX", "RowArrays", "Storage", "filled", "row_values"]

AUX = "aux/"
"""Begins the names of the further values that a batch has in ``aux``."""

_APART = "apart"  # in a state: which rows have their next observation apart

Arrays = Mapping[str, npt.NDArray[Any]]


def row_values(
    form: ObsForm, action_shape: tuple[int, int], aux: Mapping[str, tuple[int, ...]]
) -> dict[str, Part]:
    """Return shape and type of each value that a row of gathered decisions has.

    Args:
        form: of its observations.
        action_shape: ``(h, A)`` of its action chunk.
        aux: shapes of further values by name.
    """
    return {
        **form.stored,
        **{NEXT + name: part for name, part in form.stored.items()},
        **{"action": Part(action_shape), "reward": Part(())},
        **{AUX + name: Part(tuple(shape)) for name, shape in aux.items()},
    }


def filled(state: Mapping[str, Any], rows: int) -> tuple[int, int]:
    """Return how many of a ring's rows a state has filled, and how many were ever written.

    Raises:
        ValueError: if that cannot be.
    """
    arrays, size, position = state["arrays"], int(state["size"]), int(state["position"])
    # Arrays alone were saved by earlier versions; how often their ring went round is lost.
    whole = size // rows * rows
    written = arrays.written if isinstance(arrays, RowLog) else position + whole
    if written % rows != position or min(written, rows) != size:
        raise ValueError(f"size {size} and position {position} in {rows} rows")
    return size, written


class Storage(Protocol):
    """Rows of transitions in columns, one column for each environment.

    Row r of column c has the flat index ``r * columns + c``. The row after a column's last one is
    its first one.
    """

    @property
    def rows(self) -> int:
        """Number of rows of each column."""

    @property
    def columns(self) -> int:
        """Number of columns."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each value in a row, by name; ``action`` is ``(h, A)``."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""

    def take(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a value's numbers ``[*index.shape, ...]`` in the rows at flat indices."""


class RowArrays:
    """Arrays ``[rows, columns, ...]``; meets ``Storage``.

    Besides the values that are named there are always ``flags``, how a row ends, and ``taken``, how
    many actions of its chunk were taken. An observation is stored once (``StoredOnce``).

    Attributes:
        arrays: by name, without what was observed after each row.
        observed: the observations.
        shapes: shape of each value in a row.

    Args:
        rows: number of rows of each column.
        columns: number of columns.
        values: shape and type in a row of each value; ``action`` is ``(h, A)``.
        returns: whether there is a Monte-Carlo return, ``mc_return``, too.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        values: Mapping[str, Part],
        *,
        returns: bool = False,
    ) -> None:
        self.rows, self.columns = rows, columns
        self._values = dict(values)
        lead = (rows, columns)
        seen = {name: value for name, value in values.items() if NEXT + name in values}
        others = {n: v for n, v in values.items() if n.removeprefix(NEXT) not in seen}
        self.observed = StoredOnce(rows, columns, seen)
        self.arrays: dict[str, npt.NDArray[Any]] = {
            **self.observed.arrays,
            **{name: np.zeros(lead + v.shape, dtype=v.dtype) for name, v in others.items()},
            "flags": np.zeros(lead, dtype=np.uint8),
            "taken": np.full(lead, values["action"].shape[0], dtype=np.uint16),
        }
        if returns:
            self.arrays["mc_return"] = np.zeros(lead, dtype=np.float32)
        stored = {name: array.shape[2:] for name, array in self.arrays.items()}
        self.shapes = {**stored, **{NEXT + name: part.shape for name, part in seen.items()}}
        self._next = {NEXT + name: name for name in seen}
        # Flat views ``[rows * columns, ...]``, because one index gathers faster than two.
        self._flat = {
            name: array.reshape(rows * columns, *array.shape[2:])
            for name, array in self.arrays.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        seen = self.observed.arrays
        others = sum(array.nbytes for name, array in self.arrays.items() if name not in seen)
        return others + self.observed.nbytes

    def take(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a value's numbers ``[*index.shape, ...]`` in the rows at flat indices."""
        seen = self._next.get(name)
        if seen is not None:
            return self.observed.take_next(seen, index)
        return self._flat[name].take(index, axis=0)

    @property
    def kept(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays whose filled rows are part of a state; what lies apart belongs to them."""
        return {**self.arrays, _APART: self.observed.lies_apart}

    def load(self, arrays: Arrays, apart: Arrays | None, size: int, row: int) -> None:
        """Restore the filled rows, or change nothing where they are not such a storage's.

        Args:
            arrays: the filled rows of ``kept``.
            apart: what ``observed.apart`` returned. None: the arrays have what was observed after
                each row, as they once had.
            size: how many rows are filled.
            row: which one is written next.

        Raises:
            ValueError: naming an array that is wrong; a missing one is a KeyError.
        """
        named = {n: a.dtype for n, a in self.arrays.items()}
        if apart is None:
            named |= {following: self.arrays[name].dtype for following, name in self._next.items()}
        else:
            named[_APART] = np.dtype(np.bool_)
        for name, dtype in named.items():
            part, shape = arrays[name], (size, self.columns, *self.shapes.get(name, ()))
            if part.shape != shape or part.dtype != dtype:
                raise ValueError(f"'{name}' has shape {part.shape} and type {part.dtype}")
        newest = (row - 1) % self.rows if size else None
        if apart is None:
            following = {name: arrays[NEXT + name] for name in self.observed.arrays}
            seen = {name: arrays[name] for name in following}
            where, apart = apart_of(seen, following, newest)
        else:
            where = arrays[_APART]
            self.observed.check(where, apart, newest)
        for name, array in self.arrays.items():
            array[:size] = arrays[name]
        self.observed.lay_apart(where, apart, newest)

    def write(
        self,
        row: int,
        values: Mapping[str, npt.ArrayLike | Tensor],
        terminated: npt.ArrayLike | Tensor,
        truncated: npt.ArrayLike | Tensor,
        steps: npt.ArrayLike | None,
    ) -> None:
        """Write one row of every column, or none of it where a shape is wrong.

        Args:
            row: which one.
            values: ``[columns, ...]`` of each value.
            terminated: ``[columns]`` bool, the task ended.
            truncated: ``[columns]`` bool, the episode was cut.
            steps: ``[columns]`` how many actions of each chunk were taken; None: all, which is what
                a row has where nothing else was ever written.

        Raises:
            TrimtabError: on a wrong shape or type.
        """
        arrays = {
            name: as_array(values[name], value.dtype, f"replay buffer: '{name}'")
            for name, value in self._values.items()
        }
        if steps is not None:
            arrays["taken"] = _array(steps, np.uint16)
        ended = {
            "terminated": _array(terminated, np.bool_),
            "truncated": _array(truncated, np.bool_),
        }
        for name, array in (*arrays.items(), *ended.items()):
            expected = (self.columns, *self.shapes.get(name, ()))
            if array.shape != expected:
                raise TrimtabError(
                    f"replay buffer: '{name}' has shape {array.shape}, expected {expected}"
                )
        if steps is not None:
            arrays["action"] = _repeat_last(arrays["action"], arrays["taken"])
        seen = {name: arrays.pop(name) for name in self.observed.arrays}
        self.observed.write(row, seen, {name: arrays.pop(NEXT + name) for name in seen})
        for name, array in arrays.items():
            self.arrays[name][row] = array
        if "mc_return" in self.arrays:  # unknown until the episode has ended
            self.arrays["mc_return"][row] = np.nan
        self.arrays["flags"][row] = (
            ended["terminated"] * TERMINATED
            + (ended["terminated"] | ended["truncated"]) * EPISODE_END
        )


def _repeat_last(
    action: npt.NDArray[np.float32], taken: npt.NDArray[np.uint16]
) -> npt.NDArray[np.float32]:
    """Return chunks ``[N, h, A]`` with the last of the ``taken`` ``[N]`` actions after them."""
    chunk = action.shape[1]
    if int(taken.min()) >= chunk:
        return action
    places = np.minimum(np.arange(chunk), np.maximum(taken[:, None].astype(np.int64), 1) - 1)
    return np.take_along_axis(action, places[:, :, None], axis=1)


def _array(value: npt.ArrayLike | Tensor, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=dtype)
