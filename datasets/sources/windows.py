"""Windows of stored rows: where each one ends, and the batch that a learner gets of them.

A window is found and gathered through ``Storage`` alone, so that it is the same wherever rows lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.sources.observed import NEXT, ObsForm
from trimtab.datasets.sources.rows import AUX, Storage
from trimtab.datasets.sources.spans import Spans
from trimtab.datasets.sources.steps import EPISODE_END, NO_SUCCESSOR, TERMINATED
from trimtab.observations import tree_map
from trimtab.types import Batch, Sequences, Tensor

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
        decision: rows of one decision.
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
        self.decision = decision = window if chunked else 1
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
        spans: where episodes begin and end; None: nothing is asked that needs it.
        history: observations that a batch has of each decision, the newest last.
        sequence: decisions of a batch's sequences; 0: it has none.
    """

    storage: Storage
    form: ObsForm
    rule: WindowRule
    oldest: int
    size: int
    successors: bool
    spans: Spans | None = None
    history: int = 1
    sequence: int = 0

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
        age: npt.NDArray[np.int64],
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
            age: ``[B]`` of their first rows.
            aux: names of the further values that the batch has.
            device: where its tensors are put.
            following: the windows whose actions are ``next_action``; None: the batch has none.
        """
        storage, rule = self.storage, self.rule
        first, last, index, used = windows
        obs, next_obs = self._observations(windows, age)
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
            obs=tree_map(tensor, obs),
            action=tensor(self._actions(windows)),
            reward=tensor(reward.astype(np.float32)),
            next_obs=tree_map(tensor, next_obs),
            discount=tensor(discount.astype(np.float32)),
            valid=tensor(valid.reshape(size, -1)),
            whole=bool(valid.all()),
            next_action=None if following is None else tensor(self._actions(following)),
            mc_return=tensor(take("mc_return", first)) if "mc_return" in storage.shapes else None,
            sequence=self._sequences(first, age, tensor) if self.sequence else None,
            cost=tensor(self._cost(index, real)) if "cost" in storage.shapes else None,
            aux={name: tensor(take(AUX + name, first)) for name in aux},
        )

    def _cost(
        self, index: npt.NDArray[np.int64], real: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        """Return the costs ``[B]`` of windows, summed as their rewards are."""
        summed = (self.storage.take("cost", index) * real) @ self.rule.weights
        return np.asarray(summed, np.float32)

    def earlier(
        self, first: npt.NDArray[np.int64], age: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return how many rows ``[B]`` of its episode are stored before each first row."""
        assert self.spans is not None
        return np.minimum(self.spans.before(first), age // self.storage.columns)

    def later(
        self, first: npt.NDArray[np.int64], age: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return how many rows ``[B]`` of its episode are stored after each first row.

        Where windows end before a row whose next observation was not recorded, it does not count.
        """
        assert self.spans is not None
        newer = self.size - 1 - age // self.storage.columns
        after = self.spans.after(first)
        left = np.where(after < 0, newer, np.minimum(after, newer))
        if self.successors:
            flags = self.storage.take("flags", self.moved(first, left))
            left -= flags >= NO_SUCCESSOR
        return left

    def moved(
        self, first: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the flat indices of those so many rows after (or before) some."""
        columns = self.storage.columns
        return (first + rows * columns) % (self.storage.rows * columns)

    def _observations(self, windows: Windows, age: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Return observations and next ones, ``[B, ...]`` or ``[B, history, ...]``.

        The decision before a row is ``rule.decision`` rows older; before an episode's first stored
        row there is that row again. Before the next observation comes the window's last decision.
        """
        read, storage = self.form.read, self.storage
        first, last, _, used = windows
        if self.history == 1:
            return read(storage, "", first), read(storage, NEXT, last)
        before = self.earlier(first, age)[:, None]
        back = self.rule.decision * np.arange(self.history)[::-1]  # the newest last
        then = np.maximum(-back, -before)
        anchor = (used - 1) // self.rule.decision * self.rule.decision
        until = np.maximum(anchor[:, None] - back[1:], -before)
        reached = tree_map(
            lambda old, new: np.concatenate([old, new], axis=1),
            read(storage, "", self.moved(first[:, None], until)),
            read(storage, NEXT, last[:, None]),
        )
        return read(storage, "", self.moved(first[:, None], then)), reached

    def _sequences(
        self,
        first: npt.NDArray[np.int64],
        age: npt.NDArray[np.int64],
        tensor: Callable[[npt.NDArray[Any]], Tensor],
    ) -> Sequences:
        """Return the decisions from some rows on; the last one is repeated after its episode."""
        storage, size, window = self.storage, len(first), self.rule.window
        left = self.later(first, age)[:, None]
        numbers = np.arange(self.sequence)
        begin = np.minimum(numbers, left // window) * window  # [B, L] rows after the first
        steps = np.minimum(begin[:, :, None] + np.arange(window), left[:, :, None])
        index = self.moved(first[:, None, None], steps)
        used = np.minimum(left - begin + 1, window)  # [B, L] rows of each decision
        real = np.arange(window) < used[:, :, None]
        starts, rows = index[:, :, 0], index.reshape(-1, window)
        actions = self._actions(Windows(rows[:, 0], rows[:, -1], rows, used.reshape(-1)))
        reward = (storage.take("reward", index) * real).sum(axis=-1, dtype=np.float64)
        with_returns = "mc_return" in storage.shapes
        return Sequences(
            obs=tree_map(tensor, self.form.read(storage, "", starts)),
            action=tensor(actions.reshape(size, self.sequence, *actions.shape[1:])),
            reward=tensor(reward.astype(np.float32)),
            valid=tensor(numbers <= left // window),
            step=tensor(self.earlier(first, age) // window),
            mc_return=tensor(storage.take("mc_return", starts)) if with_returns else None,
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
