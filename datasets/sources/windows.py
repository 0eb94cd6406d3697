"""Windows of stored rows: where each one ends, and the batch that a learner gets of them.

A window is found and gathered through ``Storage`` alone, so that it is the same wherever rows lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.sources.observed import NEXT, ObsForm
from trimtab.datasets.sources.rows import AUX, Storage
from trimtab.datasets.sources.steps import EPISODE_END, NO_SUCCESSOR, TERMINATED
from trimtab.observations import tree_map
from trimtab.types import Batch, Tensor

__all__ = ["View", "WindowRule", "Windows"]


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
        window: as below.
        discount: as below.
        chunked: as below.
        n_step: as below.
        length: most rows in a window: ``window * n_step``.
        steps: ``[length]`` numbers of a window's rows.
        weights: ``[length]`` by which the rewards are summed.
        discounts: ``[length + 1]`` what a bootstrapped value counts, by the rows used.

    Args:
        window: rows whose actions a batch has.
        discount: discount for each row, or for each ``window`` rows where ``chunked``.
        chunked: ``window`` rows are one decision: their rewards are summed as they are, and
            ``discount`` counts once.
        n_step: how many times ``window`` rows are summed before the bootstrap.
    """

    def __init__(self, window: int, discount: float, chunked: bool, n_step: int = 1) -> None:
        self.window, self.discount, self.chunked, self.n_step = window, discount, chunked, n_step
        self.length = window * n_step
        self.steps = np.arange(self.length)
        decision = window if chunked else 1
        self.weights = discount ** (self.steps // decision).astype(np.float64)
        rows = np.arange(self.length + 1)
        self.discounts = discount ** (-(-rows // decision)).astype(np.float64)


@dataclass(frozen=True)
class View:
    """The windows that the rows of a storage have by a rule.

    Attributes:
        storage: where the rows lie.
        form: what a batch gets of their observations.
        rule: how many there are in a window.
        oldest: number of the oldest row.
        size: how many rows of each column are stored.
        successors: windows also end before a row whose next observation was not recorded. No first
            row may be one then.
    """

    storage: Storage
    form: ObsForm
    rule: WindowRule
    oldest: int
    size: int
    successors: bool

    def windows(self, age: npt.NDArray[np.int64]) -> Windows:
        """Return the windows that start at some rows.

        A window ends at the first of: ``rule.length`` rows, the end of its episode, the newest
        stored row of its column.

        Args:
            age: ``[B]`` place of each first row, counted in flat indices from the oldest row.
        """
        storage, rule = self.storage, self.rule
        columns = storage.columns
        capacity = storage.rows * columns
        first = age + self.oldest * columns
        first[first >= capacity] -= capacity
        if rule.length == 1:
            return Windows(first, first, first[:, None], np.ones(len(first), dtype=np.int64))
        newer = self.size - 1 - age // columns  # rows of the column after the first
        offsets = np.minimum(rule.steps, newer[:, None])
        index = first[:, None] + offsets * columns
        index[index >= capacity] -= capacity
        flags = storage.take("flags", index)
        ends = flags >= EPISODE_END
        ends[:, -1] = True
        used = np.minimum(ends.argmax(axis=1), newer) + 1
        if self.successors:
            used -= np.take_along_axis(flags, used[:, None] - 1, axis=1)[:, 0] >= NO_SUCCESSOR
        last = np.take_along_axis(index, used[:, None] - 1, axis=1)
        index = np.where(rule.steps < used[:, None], index, last)
        return Windows(first, last[:, 0], index, used)

    def following(
        self, windows: Windows, age: npt.NDArray[np.int64]
    ) -> tuple[Windows, npt.NDArray[np.bool_]]:
        """Return the windows that follow on some, for what was done next.

        One follows if its first row is stored and of the same episode. After a true end none has
        to; the last row of the window before stands in for it.

        Args:
            windows: those that others follow on.
            age: ``[B]`` of their first rows.

        Returns:
            Windows of one decision, and ``[B]`` whether each may be used.
        """
        columns = self.storage.columns
        flags = self.storage.take("flags", windows.last)
        behind = age + windows.used * columns
        follows = (flags < EPISODE_END) & (behind < self.size * columns)
        once = WindowRule(self.rule.window, self.rule.discount, self.rule.chunked)
        alone = dataclasses.replace(self, rule=once, successors=False)
        found = alone.windows(np.where(follows, behind, behind - columns))
        return found, follows | (flags & TERMINATED > 0)

    def batch(
        self,
        windows: Windows,
        aux: Iterable[str],
        device: torch.device,
        following: Windows | None = None,
    ) -> Batch:
        """Return what a learner gets of some windows, as tensors on ``device``.

        The return is the n-step return of Sutton and Barto (2018), equation 7.1, with the bootstrap
        left to ``Batch.discount``. After a window's end its last real action is repeated and
        ``valid`` is false.

        Args:
            windows: which rows they have.
            aux: names of the further values that the batch has.
            device: where its tensors are put.
            following: the windows whose actions are ``next_action``; None: the batch has none.
        """
        storage, rule = self.storage, self.rule
        first, last, index, used = windows
        take, chunk = storage.take, storage.shapes["action"][0]
        real = rule.steps < used[:, None]
        reward = (take("reward", index) * real) @ rule.weights
        discount = rule.discounts[used] * (take("flags", last) & TERMINATED == 0)
        taken = take("taken", index[:, : rule.window])  # [B, window]
        valid = real[:, : rule.window, None] & (np.arange(chunk) < taken[:, :, None])
        size = len(first)

        def tensor(array: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(device)

        return Batch(
            obs=tree_map(tensor, self.form.read(storage, "", first)),
            action=tensor(self._actions(windows)),
            reward=tensor(reward.astype(np.float32)),
            next_obs=tree_map(tensor, self.form.read(storage, NEXT, last)),
            discount=tensor(discount.astype(np.float32)),
            valid=tensor(valid.reshape(size, -1)),
            whole=bool(valid.all()),
            next_action=None if following is None else tensor(self._actions(following)),
            mc_return=tensor(take("mc_return", first)) if "mc_return" in storage.shapes else None,
            aux={name: tensor(take(AUX + name, first)) for name in aux},
        )

    def _actions(self, windows: Windows) -> npt.NDArray[np.float32]:
        """Return the actions ``[B, window * h, A]`` of some windows, the last real one repeated."""
        chunk = self.storage.shapes["action"][0]
        action = self.storage.take(
            "action", windows.indices[:, : self.rule.window]
        )  # [B, window, h, A]
        if chunk > 1 and self.rule.window > 1:  # repeat the last action, not the whole last chunk
            real = self.rule.steps[: self.rule.window] < windows.used[:, None]
            action = np.where(real[:, :, None, None], action, action[:, -1:, -1:])
        return np.asarray(action.reshape(len(action), self.rule.window * chunk, -1))
