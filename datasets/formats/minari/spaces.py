"""The observations that a space of Gymnasium describes, laid out as Minari stores them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.formats.own import is_picture
from trimtab.errors import TrimtabError

__all__ = ["Part", "parts_of"]

_DEEPEST = 4  # HDF5's groups are read no deeper
_MOST_NUMBERS = 1 << 12  # of a vector, also of one that stands for choices
_ADVICE = "make the dataset again or fetch a fresh copy"


@dataclass(frozen=True)
class Part:
    """One array of the observations.

    Attributes:
        path: below ``observations``; empty where the observations are this one array.
        shape: of a row as it is stored.
        choices: first value and number of values of each entry that is a choice; empty for others.
        vector: whether it is read: it holds numbers and is no picture.
    """

    path: str
    shape: tuple[int, ...]
    choices: tuple[tuple[int, int], ...] = ()
    vector: bool = True

    @property
    def width(self) -> int:
        """How many numbers it is in a flat observation."""
        return sum(count for _, count in self.choices) or math.prod(self.shape)

    def rows(self, stored: npt.NDArray[Any], place: str) -> npt.NDArray[Any]:
        """Return stored rows ``[T+1, ...]`` as vectors ``[T+1, D]``, flat as Gymnasium has them.

        A choice of n becomes n numbers, one of which is 1.

        Raises:
            TrimtabError: if the rows are not of the space's shape, or a choice is none of it.
        """
        if stored.shape[1:] != self.shape or not stored.ndim:
            raise TrimtabError(
                f"{place}: shape {stored.shape}, but 'observation_space' says rows of "
                f"{self.shape}; {_ADVICE}"
            )
        flat = stored.reshape(len(stored), math.prod(self.shape))
        columns = []
        for column, (start, count) in zip(flat.T, self.choices, strict=False):
            if not np.isin(column, np.arange(start, start + count)).all():
                raise TrimtabError(
                    f"{place}: values beyond the {count} from {start} on that 'observation_space' "
                    f"says; {_ADVICE}"
                )
            columns.append(column[:, None] == np.arange(start, start + count))
        return np.concatenate(columns, axis=1) if columns else flat


def parts_of(space: Mapping[str, Any], where: str, path: str = "", depth: int = 0) -> list[Part]:
    """Return the arrays that hold the observations of a space, in its order.

    Args:
        space: as Minari describes it.
        where: opens the message.
        path: below ``observations``.
        depth: of the nesting.

    Raises:
        TrimtabError: if it is not a description of a space, or nested too deeply.
    """
    try:
        if space["type"] not in ("Dict", "Tuple"):
            return [_KINDS.get(space["type"], _other)(space, path)]
        below = space["subspaces"]
        named = (
            below.items()
            if space["type"] == "Dict"
            else [(f"_index_{index}", inside) for index, inside in enumerate(below)]
        )
        if depth == _DEEPEST:
            raise ValueError("nested too deeply")
        inside = [
            parts_of(subspace, where, f"{path}/{name}" if path else name, depth + 1)
            for name, subspace in named
        ]
    except TrimtabError:  # of a space below
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TrimtabError(
            f"{where}: 'observation_space' is not readable ({type(error).__name__}: {error}); "
            f"{_ADVICE}"
        ) from error
    return [part for parts in inside for part in parts]


def _box(space: Mapping[str, Any], path: str) -> Part:
    shape = tuple(int(size) for size in space["shape"])
    for key in ("low", "high"):
        if (limits := np.shape(space.get(key, 0))) not in ((), shape):
            raise ValueError(f"'{key}' of shape {limits} for numbers of shape {shape}")
    picture = is_picture(len(shape) + 1, floats=str(space["dtype"]).startswith("float"))
    return Part(path, shape, vector=not picture and _fits(math.prod(shape)))


def _switches(space: Mapping[str, Any], path: str) -> Part:
    shape = tuple(np.atleast_1d(np.array(space["n"], dtype=np.int64)).tolist())
    return Part(path, shape, vector=_fits(math.prod(shape)))


def _choices(space: Mapping[str, Any], path: str) -> Part:
    counts = np.array(space["nvec"] if "nvec" in space else space["n"], dtype=np.int64)
    starts = np.broadcast_to(np.array(space.get("start", 0), np.int64), counts.shape)
    choices = tuple(zip(starts.ravel().tolist(), counts.ravel().tolist(), strict=True))
    fits = counts.size and counts.min() > 0 and _fits(counts.sum(dtype=np.float64))
    return Part(path, counts.shape, choices, vector=bool(fits))


def _other(space: Mapping[str, Any], path: str) -> Part:
    return Part(path, (), vector=False)  # such as a text


def _fits(numbers: float) -> bool:
    return 0 < numbers <= _MOST_NUMBERS


_KINDS = {"Box": _box, "MultiBinary": _switches, "Discrete": _choices, "MultiDiscrete": _choices}
