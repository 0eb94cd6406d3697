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

__all__ = ["Starting", "saved_batch_spec", "usable_starts"]

_MOST_DRAWS = 1000
_ALWAYS_SAVED = ("n_step", "next_action", "mc_return")


@dataclass(frozen=True)
class Starting:
    """The first rows of a batch, and what their episodes reached later.

    Attributes:
        view: the windows that rows have; its ``spans`` are there where goals are wanted.
        first: ``[B]`` flat index of each row.
        start: ``[B]`` place of each row, counted from the oldest stored one.
    """

    view: View
    first: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """Stored rows ``[B]`` of the episode from the row itself on."""
        return self.view.rows_after(self.first, self.start) + 1

    def reached(self, later: npt.NDArray[np.int64]) -> Any:
        """Return the next observations ``[B, ...]`` of the rows that lie so many ``[B]`` later."""
        index = self.view.shift(self.first, later)
        return self.view.form.read(self.view.storage, NEXT, index)


def saved_batch_spec(batch_spec: BatchSpec) -> dict[str, Any]:
    """Return a buffer's state of ``batch_spec``; fields added later only where they are in use."""
    usual = dataclasses.asdict(BatchSpec())
    return {
        name: value
        for name, value in dataclasses.asdict(batch_spec).items()
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
    """Return starts ``[count]`` that have all that is wanted; others are drawn again.

    Args:
        view: the windows that rows have.
        draw: returns that many starts, each a place counted from the oldest row.
        count: how many.
        next_action: whether something has to be known of what was done after the window.
        finished: whether the return has to be known.

    Raises:
        TrimtabError: if hardly any start has it.
    """
    start = draw(count)
    if not next_action and not finished:
        return start
    for _ in range(_MOST_DRAWS):
        windows = view.windows(start)
        there = np.ones(len(start), np.bool_)
        if next_action:
            there &= view.following(windows, start)[1]
        if finished:
            there &= ~np.isnan(view.storage.take("mc_return", windows.first))
        missing = np.flatnonzero(~there)
        if not len(missing):
            return start
        start[missing] = draw(len(missing))
    raise TrimtabError(
        f"replay buffer: hardly any of its {view.size * view.storage.columns} transitions has a "
        "next action or a finished return; gather more before learning"
    )
