"""What the steps of an episode are to a learner: where they end and what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Episode

__all__ = [
    "EPISODE_END",
    "NO_SUCCESSOR",
    "TERMINATED",
    "episodes_of_columns",
    "step_flags",
    "step_returns",
]

TERMINATED = 1
"""The task ended: nothing follows, the value afterwards is 0."""

EPISODE_END = 2
"""The episode ended for any reason: a window stops here."""

NO_SUCCESSOR = 4
"""The next observation was not recorded: nothing can be bootstrapped from it."""


def step_flags(episode: Episode) -> npt.NDArray[np.uint8]:
    """Return how each step ``[T]`` of an episode ends, as a buffer stores it."""
    ends = _ends(episode)
    flags = (episode.terminations * TERMINATED + ends * EPISODE_END).astype(np.uint8)
    flags[episode.num_transitions :] |= NO_SUCCESSOR
    return flags


def episodes_of_rows(rows: Mapping[str, npt.NDArray[Any]]) -> list[Episode]:
    """Return the episodes of a column's stored rows, oldest first.

    An episode that goes on after the last row is marked as truncated there.

    Args:
        rows: ``[T, ...]`` values of each row by name; ``action`` is ``[T, 1, A]``.
    """
    steps = np.arange(len(rows["flags"]))
    ended = rows["flags"] >= EPISODE_END
    found = []
    first = 0
    for last in np.flatnonzero(ended | (steps == len(steps) - 1)):
        part = slice(first, last + 1)
        terminated = (rows["flags"][part] & TERMINATED) > 0
        is_last = steps[part] == last
        found.append(
            Episode(
                observations=np.concatenate([rows["obs"][part], rows["next_obs"][[last]]]),
                actions=rows["action"][part, 0],
                rewards=rows["reward"][part],
                terminations=terminated,
                truncations=is_last & ~terminated,
                last_observed=not rows["flags"][last] & NO_SUCCESSOR,
            )
        )
        first = last + 1
    return found


def episodes_of_columns(
    take: Callable[[str, npt.NDArray[np.int64]], npt.NDArray[Any]],
    names: Iterable[str],
    order: npt.NDArray[np.int64],
    columns: int,
) -> list[Episode]:
    """Return the episodes of all columns, one column after another.

    Args:
        take: returns a value's numbers in the rows at flat indices.
        names: of the values.
        order: ``[T]`` rows of each column, oldest first.
        columns: how many there are.
    """
    found = []
    for column in range(columns):
        index = order * columns + column
        found += episodes_of_rows({name: take(name, index) for name in names})
    return found


def step_returns(episode: Episode, discount: float, rows: int) -> npt.NDArray[np.float32]:
    """Return the Monte-Carlo return ``[T]`` of each step, discounted once for every ``rows``."""
    return _returns(episode.rewards, _ends(episode), discount, rows).astype(np.float32)


def _ends(episode: Episode) -> npt.NDArray[np.bool_]:
    ends = episode.terminations | episode.truncations
    ends[-1] = True  # some files mark nothing where recording stopped
    return ends


def _returns(
    rewards: npt.NDArray[np.float32], ends: npt.NDArray[np.bool_], discount: float, rows: int
) -> npt.NDArray[np.float64]:
    """Return the discounted Monte-Carlo return ``[T]`` of each step, afresh after each end.

    ``discount`` counts once for every ``rows`` steps from the step on.
    """
    steps = len(rewards)
    values, last = rewards.tolist(), ends.tolist()  # a loop over lists is several times as fast
    returns = [0.0] * steps
    sums = [0.0] * (steps + rows)  # of rewards, to the episode's end
    left = 0  # steps from the next one to its episode's end
    for step in range(steps - 1, -1, -1):
        left = 1 if last[step] else left + 1
        total = values[step] + (0.0 if left == 1 else sums[step + 1])
        sums[step] = total
        if left > rows:  # this decision's rewards, then the return of the next one
            later = step + rows
            total += -sums[later] + discount * returns[later]
        returns[step] = total
    return np.array(returns, dtype=np.float64)
