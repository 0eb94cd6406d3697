"""Which of the drawn starts a batch can be formed of, and where in their episodes they lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.observed import NEXT
from trimtab.datasets.sources.windows import View
from trimtab.errors import TrimtabError
from trimtab.types import BatchSpec

__all__ = ["Starting", "saved_wants", "usable_starts"]

_MOST_DRAWS = 1000
_ALWAYS_SAVED = ("n_step", "next_action", "mc_return")


@dataclass(frozen=True)
class Starting:
    """The first rows of a batch, and what their episodes reached later.

    Attributes:
        view: the windows that rows have; its ``spans`` are there where goals are wanted.
        first: ``[B]`` flat index of each row.
        age: ``[B]`` of each row.
    """

    view: View
    first: npt.NDArray[np.int64]
    age: npt.NDArray[np.int64]

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """Stored rows ``[B]`` of the episode from the row itself on."""
        return self.view.rows_after(self.first, self.age) + 1

    def reached(self, later: npt.NDArray[np.int64]) -> Any:
        """Return the next observations ``[B, ...]`` of the rows that lie so many ``[B]`` later."""
        index = self.view.shift(self.first, later)
        return self.view.form.read(self.view.storage, NEXT, index)


def saved_wants(wants: BatchSpec) -> dict[str, Any]:
    """Return what a buffer's state says of ``wants``; what came later only where it is in use."""
    usual = dataclasses.asdict(BatchSpec())
    return {
        name: value
        for name, value in dataclasses.asdict(wants).items()
        if name in _ALWAYS_SAVED or value != usual[name]
    }


def usable_starts(
    view: View,
    draw: Callable[[int], npt.NDArray[np.int64]],
    count: int,
    *,
    next_action: bool,
    finished: bool,
) -> npt.NDArray[np.int64]:
    """Return ages ``[count]`` of starts that have all that is wanted; others are drawn again.

    Args:
        view: the windows that rows have.
        draw: returns ages of that many starts.
        count: how many.
        next_action: whether something has to be known of what was done after the window.
        finished: whether the return has to be known.

    Raises:
        TrimtabError: if hardly any start has it.
    """
    age = draw(count)
    if not next_action and not finished:
        return age
    for _ in range(_MOST_DRAWS):
        windows = view.windows(age)
        there = np.ones(len(age), np.bool_)
        if next_action:
            there &= view.following(windows, age)[1]
        if finished:
            there &= ~np.isnan(view.storage.take("mc_return", windows.first))
        missing = np.flatnonzero(~there)
        if not len(missing):
            return age
        age[missing] = draw(len(missing))
    raise TrimtabError(
        f"replay buffer: hardly any of its {view.size * view.storage.columns} transitions has a "
        "next action or a finished return; gather more before learning"
    )
