"""Which of the drawn starts a batch can be formed of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.windows import View
from trimtab.errors import TrimtabError

__all__ = ["usable_starts"]

_MOST_DRAWS = 1000


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
