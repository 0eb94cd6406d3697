"""Rows of transitions: what a storage of them offers, and one in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.observed import NEXT, ObsForm, as_array
from trimtab.datasets.sources.steps import EPISODE_END, TERMINATED
from trimtab.errors import TrimtabError
from trimtab.observations import Part
from trimtab.types import RowLog, Tensor

__all__ = ["AUX", "RowArrays", "Storage", "check_ring", "filled", "row_values"]

AUX = "aux/"
"""Begins the names of the further values that a batch has in ``aux``."""

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


def check_ring(
    capacity: int,
    obs: int | Mapping[str, Part],
    action_shape: tuple[int, int],
    num_envs: int,
    window: int,
    discount: float,
) -> None:
    """Check what a ring is made with; an observation's own sizes are looked at where it is stored.

    Raises:
        TrimtabError: if a size is not positive or the discount lies outside [0, 1].
    """
    if min(*action_shape, num_envs, window) < 1 or capacity < num_envs:
        raise TrimtabError(
            f"replay buffer: capacity {capacity}, obs {obs}, action_shape {tuple(action_shape)}, "
            f"num_envs {num_envs}, window {window}: sizes must be at least 1 and capacity at least "
            "num_envs"
        )
    if not 0.0 <= discount <= 1.0:
        raise TrimtabError(f"replay buffer: discount {discount} lies outside [0, 1]")


def filled(state: Mapping[str, Any], rows: int) -> tuple[int, int, int]:
    """Return a state's filled rows of a ring, those ever written, and the first after a clearing.

    Raises:
        ValueError: if that cannot be.
    """
    arrays, size, position = state["arrays"], int(state["size"]), int(state["position"])
    # A buffer that holds a dataset saves no rows.
    log = isinstance(arrays, RowLog)
    written = arrays.written if log else position + size // rows * rows
    cleared = arrays.cleared if log else 0
    if written % rows != position or cleared % rows or min(written - cleared, rows) != size:
        raise ValueError(f"size {size} and position {position} in {rows} rows")
    return size, written, cleared


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
    many actions of its chunk were taken.

    Attributes:
        arrays: by name.
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
        self.arrays: dict[str, npt.NDArray[Any]] = {
            **{name: np.zeros(lead + v.shape, dtype=v.dtype) for name, v in values.items()},
            "flags": np.zeros(lead, dtype=np.uint8),
            "taken": np.full(lead, values["action"].shape[0], dtype=np.uint16),
        }
        if returns:
            self.arrays["mc_return"] = np.zeros(lead, dtype=np.float32)
        self.shapes = {name: array.shape[2:] for name, array in self.arrays.items()}
        # Flat views ``[rows * columns, ...]``, because one index gathers faster than two.
        self._flat = {
            name: array.reshape(rows * columns, *array.shape[2:])
            for name, array in self.arrays.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def take(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a value's numbers ``[*index.shape, ...]`` in the rows at flat indices."""
        return self._flat[name].take(index, axis=0)

    def load(self, arrays: Arrays, size: int) -> None:
        """Restore the filled rows, or change nothing where they are not such a storage's.

        Args:
            arrays: the filled rows of each array.
            size: how many rows are filled.

        Raises:
            ValueError: naming an array that is wrong; a missing one is a KeyError.
        """
        for name, array in self.arrays.items():
            part = arrays[name]
            if part.shape != (size, *array.shape[1:]) or part.dtype != array.dtype:
                raise ValueError(f"'{name}' has shape {part.shape} and type {part.dtype}")
        for name, array in self.arrays.items():
            array[:size] = arrays[name]

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
