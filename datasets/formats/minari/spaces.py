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
_MOST_NUMBERS = 1 << 12  # of a vector
_ADVICE = "make the dataset again or fetch a fresh copy"


@dataclass(frozen=True)
class Part:
    """One array of the observations.

    Attributes:
        path: below ``observations``; empty where the observations are this one array.
        shape: of a row as it is stored.
        vector: whether it is read: it holds numbers and is no picture.
    """

    path: str
    shape: tuple[int, ...]
    vector: bool = True

    @property
    def width(self) -> int:
        """How many numbers it is in a flat observation."""
        return math.prod(self.shape)

    def rows(self, stored: npt.NDArray[Any], place: str) -> npt.NDArray[Any]:
        """Return stored rows ``[T+1, ...]`` as vectors ``[T+1, D]``, flat as Gymnasium has them.

        Raises:
            TrimtabError: if the rows are not of the space's shape.
        """
        if stored.shape[1:] != self.shape or not stored.ndim:
            raise TrimtabError(
                f"{place}: shape {stored.shape}, but 'observation_space' says rows of "
                f"{self.shape}; {_ADVICE}"
            )
        return stored.reshape(len(stored), self.width)


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
            box = space["type"] == "Box"  # neither a text nor a choice
            return [_box(space, path) if box else Part(path, (), vector=False)]
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
    return Part(path, shape, vector=not picture and 0 < math.prod(shape) <= _MOST_NUMBERS)
