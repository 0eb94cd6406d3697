"""Windows of stored rows: where each one ends, and the batch that a learner gets of them.

A window is found and gathered through ``Storage`` alone, so that it is the same wherever rows lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.sources.rows import AUX, Storage
from trimtab.datasets.sources.steps import EPISODE_END, NO_SUCCESSOR, TERMINATED
from trimtab.types import Batch, Tensor

__all__ = ["WindowRule", "Windows", "find_windows", "window_batch"]


class Windows(NamedTuple):
    """B windows in a storage.

    Attributes:
        first: ``[B]`` flat index of each window's first row.
        last: ``[B]`` flat index of the last row used.
        indices: ``[B, length]`` flat indices of all rows, the last one repeated at the end.
        used: ``[B]`` how many rows are used.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]


class WindowRule:
    """How many rows a window has and how they are discounted.

    Attributes:
        length: as below.
        discount: as below.
        chunked: as below.
        steps: ``[length]`` numbers of a window's rows.
        weights: ``[length]`` by which the rewards are summed.
        discounts: ``[length + 1]`` what a bootstrapped value counts, by the rows used.

    Args:
        length: most rows in a window.
        discount: discount for each row, or for each window where ``chunked``.
        chunked: rewards of a window are summed as they are and ``discount`` counts once.
    """

    def __init__(self, length: int, discount: float, chunked: bool) -> None:
        self.length, self.discount, self.chunked = length, discount, chunked
        self.steps = np.arange(length)
        exponents = np.arange(length + 1, dtype=np.float64)
        self.weights = discount ** (exponents[:-1] * (not chunked))
        self.discounts = discount ** (np.minimum(exponents, 1) if chunked else exponents)


def find_windows(
    storage: Storage,
    rule: WindowRule,
    age: npt.NDArray[np.int64],
    *,
    oldest: int,
    size: int,
    successors: bool,
) -> Windows:
    """Return the windows that start at some rows.

    A window ends at the first of: ``rule.length`` rows, the end of its episode, the newest stored
    row of its column.

    Args:
        storage: where the rows lie.
        rule: how many there are in a window.
        age: ``[B]`` place of each first row, counted in flat indices from the oldest row.
        oldest: number of the oldest row.
        size: how many rows of each column are stored.
        successors: windows also end before a row whose next observation was not recorded. No first
            row may be one then.
    """
    columns = storage.columns
    capacity = storage.rows * columns
    first = age + oldest * columns
    first[first >= capacity] -= capacity
    if rule.length == 1:
        return Windows(first, first, first[:, None], np.ones(len(first), dtype=np.int64))
    newer = size - 1 - age // columns  # rows of the column after the first
    offsets = np.minimum(rule.steps, newer[:, None])
    index = first[:, None] + offsets * columns
    index[index >= capacity] -= capacity
    flags = storage.take("flags", index)
    ends = flags >= EPISODE_END
    ends[:, -1] = True
    used = np.minimum(ends.argmax(axis=1), newer) + 1
    if successors:
        used -= np.take_along_axis(flags, used[:, None] - 1, axis=1)[:, 0] >= NO_SUCCESSOR
    last = np.take_along_axis(index, used[:, None] - 1, axis=1)
    index = np.where(rule.steps < used[:, None], index, last)
    return Windows(first, last[:, 0], index, used)


def window_batch(
    storage: Storage,
    rule: WindowRule,
    windows: Windows,
    aux: Iterable[str],
    device: torch.device,
) -> Batch:
    """Return what a learner gets of some windows, as float32 tensors on ``device``.

    The return is the n-step return of Sutton and Barto (2018), equation 7.1, with the bootstrap
    left to ``Batch.discount``. After a window's end its last real action is repeated and ``valid``
    is false.

    Args:
        storage: where the rows lie.
        rule: by which the windows were found.
        windows: which rows they have.
        aux: names of the further values that the batch has.
        device: where its tensors are put.
    """
    first, last, index, used = windows
    take, chunk = storage.take, storage.shapes["action"][0]
    real = rule.steps < used[:, None]
    action = take("action", index)  # [B, length, h, A]
    if chunk > 1 and rule.length > 1:  # repeat the last action, not the whole last chunk
        action = np.where(real[:, :, None, None], action, action[:, -1:, -1:])
    reward = (take("reward", index) * real) @ rule.weights
    discount = rule.discounts[used] * (take("flags", last) & TERMINATED == 0)
    taken = take("taken", index)  # [B, length]
    valid = real[:, :, None] & (np.arange(chunk) < taken[:, :, None])
    size = len(first)

    def tensor(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Batch(
        obs=tensor(take("obs", first)),
        action=tensor(action.reshape(size, rule.length * chunk, -1)),
        reward=tensor(reward.astype(np.float32)),
        next_obs=tensor(take("next_obs", last)),
        discount=tensor(discount.astype(np.float32)),
        valid=tensor(valid.reshape(size, -1)),
        mc_return=tensor(take("mc_return", first)) if "mc_return" in storage.shapes else None,
        aux={name: tensor(take(AUX + name, first)) for name in aux},
    )
