"""Windows of stored rows: where each one ends, and the batch that is made of them.

Row r of column c has the flat index ``r * columns + c``; the rows form a ring. The *start* of a
window is the position of its first row, counted in flat indices from the oldest stored row, so that
``start // columns`` older rows are stored in its column. Rows are read through ``Storage`` alone,
from memory or from disk.
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
        first: ``[B]`` flat index of the first row.
        last: ``[B]`` flat index of the last row that belongs to the window.
        indices: ``[B, length]`` flat indices of the rows; after the last one it is repeated.
        used: ``[B]`` number of rows that belong to the window.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]


class WindowRule:
    """The number of rows in a window, and their discounts.

    Args:
        window: number of rows whose actions a batch has.
        discount: discount of one row, or of one decision if ``chunked``.
        chunked: whether ``window`` rows are one decision: its rewards are summed undiscounted, and
            ``discount`` applies once.
        n_step: number of such windows whose rewards are summed before the bootstrap.

    Attributes:
        decision: number of rows in a decision.
        length: largest number of rows in a window, ``window * n_step``.
        steps: ``[length]`` numbers of a window's rows, from 0.
        weights: ``[length]`` discount of each row's reward.
        discounts: ``[length + 1]`` discount of the bootstrapped value, by the number of rows used.
    """

    def __init__(self, window: int, discount: float, chunked: bool, n_step: int = 1) -> None:
        self.window, self.discount, self.chunked, self.n_step = window, discount, chunked, n_step
        self.length = window * n_step
        self.steps = np.arange(self.length)
        self.decision = decision = window if chunked else 1
        self.weights = discount ** (self.steps // decision).astype(np.float64)
        rows = np.arange(self.length + 1)
        # Rounded up: a decision that was cut counts whole.
        self.discounts = discount ** (-(-rows // decision)).astype(np.float64)


@dataclass(frozen=True)
class View:
    """Reads windows and batches from a storage.

    Attributes:
        storage: the stored rows.
        form: how observations are stored, and in which form a batch has them.
        rule: the number of rows in a window, and their discounts.
        oldest: index of the oldest row.
        size: number of rows that each column holds.
        successors: whether a window also ends before a row whose next observation was not recorded.
            Such a row must not be the first one of a window then.
        spans: where episodes begin and end; may be None without history, sequences and goals.
        history: number of observations for each decision, the newest last.
        sequence: number of decisions in ``Batch.sequence``; 0: there is none.
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

    def windows(self, start: npt.NDArray[np.int64]) -> Windows:
        """Return the windows with the given starts.

        A window ends after ``rule.length`` rows, at the end of its episode, or at the newest row of
        its column, whichever comes first.

        Args:
            start: ``[B]`` starts, see the top of the module.
        """
        storage, rule = self.storage, self.rule
        columns = storage.columns
        capacity = storage.rows * columns
        first = start + self.oldest * columns
        if self.oldest:
            first[first >= capacity] -= capacity
        if rule.length == 1:
            return Windows(first, first, first[:, None], np.ones(len(first), dtype=np.int64))
        newer = self.size - 1 - start // columns  # rows of the column after the first one
        offsets = np.minimum(rule.steps, newer[:, None])
        index = first[:, None] + offsets * columns
        index[index >= capacity] -= capacity
        flags = storage.take("flags", index)
        ends = flags >= EPISODE_END  # or NO_SUCCESSOR, which stands only at an episode's end
        ends[:, -1] = True
        used = np.minimum(ends.argmax(axis=1), newer) + 1
        if self.successors:  # leave out a last row without a next observation
            used -= np.take_along_axis(flags, used[:, None] - 1, axis=1)[:, 0] >= NO_SUCCESSOR
        last = np.take_along_axis(index, used[:, None] - 1, axis=1)
        index = np.where(rule.steps < used[:, None], index, last)
        return Windows(first, last[:, 0], index, used)

    def following(
        self, windows: Windows, start: npt.NDArray[np.int64]
    ) -> tuple[Windows, npt.NDArray[np.bool_]]:
        """Return the window after each given one, for ``Batch.next_action``.

        It exists if its first row is stored and belongs to the same episode. After a termination
        none is needed, because ``discount`` is 0: the last row of the given window is returned in
        its place.

        Args:
            windows: the given windows.
            start: ``[B]`` their starts.

        Returns:
            Windows of one decision, and ``[B]`` whether each may be used.
        """
        columns = self.storage.columns
        flags = self.storage.take("flags", windows.last)
        next_start = start + windows.used * columns
        exists = (flags < EPISODE_END) & (next_start < self.size * columns)
        one_decision = WindowRule(self.rule.window, self.rule.discount, self.rule.chunked)
        reader = dataclasses.replace(self, rule=one_decision, successors=False)
        found = reader.windows(np.where(exists, next_start, next_start - columns))
        return found, exists | (flags & TERMINATED > 0)

    def batch(
        self,
        windows: Windows,
        start: npt.NDArray[np.int64],
        aux: Iterable[str],
        device: torch.device,
        following: Windows | None = None,
    ) -> Batch:
        """Return the batch of some windows, with tensors on ``device``.

        The return is the n-step return of Sutton and Barto (2018), equation 7.1; ``Batch.discount``
        is the factor of the value that a method bootstraps from. After the end of a window its last
        executed action is repeated, and ``valid`` is false.

        Args:
            windows: the windows.
            start: ``[B]`` their starts.
            aux: names of the values that become ``Batch.aux``.
            device: device of the tensors.
            following: the windows whose actions become ``next_action``; None: there is none.
        """
        storage, rule = self.storage, self.rule
        first, last, index, used = windows
        obs, next_obs = self._observations(windows, start)
        take, chunk = storage.take, storage.shapes["action"][0]
        real = rule.steps < used[:, None]
        goes_on = take("flags", last) & TERMINATED == 0
        if rule.length == 1:  # the same numbers in half of the time
            reward, discount = take("reward", first), rule.discounts[1] * goes_on
        else:
            reward = (take("reward", index) * real) @ rule.weights
            discount = rule.discounts[used] * goes_on
        taken = take("taken", index[:, : rule.window])  # [B, window]
        valid = real[:, : rule.window, None] & (np.arange(chunk) < taken[:, :, None])
        size = len(first)

        def tensor(array: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(device)

        return Batch(
            obs=tree_map(tensor, obs),
            action=tensor(self._actions(windows)),
            reward=tensor(np.asarray(reward, np.float32)),
            next_obs=tree_map(tensor, next_obs),
            discount=tensor(discount.astype(np.float32)),
            valid=tensor(valid.reshape(size, -1)),
            whole=bool(valid.all()),
            next_action=None if following is None else tensor(self._actions(following)),
            mc_return=tensor(take("mc_return", first)) if "mc_return" in storage.shapes else None,
            sequence=self._sequences(first, start, tensor) if self.sequence else None,
            cost=tensor(self._cost(index, real)) if "cost" in storage.shapes else None,
            aux={name: tensor(take(AUX + name, first)) for name in aux},
        )

    def _cost(
        self, index: npt.NDArray[np.int64], real: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        """Return the cost of each window ``[B]``, discounted like its rewards."""
        summed = (self.storage.take("cost", index) * real) @ self.rule.weights
        return np.asarray(summed, np.float32)

    def rows_before(
        self, first: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the number of stored rows ``[B]`` of the same episode before each first row."""
        assert self.spans is not None
        return np.minimum(self.spans.before(first), start // self.storage.columns)

    def rows_after(
        self, first: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the number of stored rows ``[B]`` of the same episode after each first row.

        With ``successors``, a last row whose next observation was not recorded does not count.
        """
        assert self.spans is not None
        newer = self.size - 1 - start // self.storage.columns
        after = self.spans.after(first)
        left = np.where(after < 0, newer, np.minimum(after, newer))
        if self.successors:
            flags = self.storage.take("flags", self.shift(first, left))
            left -= flags >= NO_SUCCESSOR
        return left

    def shift(
        self, first: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return flat indices moved by some rows within their column; negative: backwards."""
        columns = self.storage.columns
        return (first + rows * columns) % (self.storage.rows * columns)

    def _observations(self, windows: Windows, start: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Return observations and next observations, ``[B, ...]`` or ``[B, history, ...]``.

        Observations of a history are ``rule.decision`` rows apart; before the first stored row of
        an episode that row is repeated. The history of the next observation ends with the
        observation of the window's last decision, and then has the next observation itself.
        """
        read, storage = self.form.read, self.storage
        first, last, _, used = windows
        if self.history == 1:
            return read(storage, "", first), read(storage, NEXT, last)
        before = self.rows_before(first, start)[:, None]
        back = self.rule.decision * np.arange(self.history)[::-1]  # the newest last
        then = np.maximum(-back, -before)
        anchor = (used - 1) // self.rule.decision * self.rule.decision
        until = np.maximum(anchor[:, None] - back[1:], -before)
        reached = tree_map(
            lambda old, new: np.concatenate([old, new], axis=1),
            read(storage, "", self.shift(first[:, None], until)),
            read(storage, NEXT, last[:, None]),
        )
        return read(storage, "", self.shift(first[:, None], then)), reached

    def _sequences(
        self,
        first: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        tensor: Callable[[npt.NDArray[Any]], Tensor],
    ) -> Sequences:
        """Return ``sequence`` decisions from each first row on; an episode's last one repeats."""
        storage, size, window = self.storage, len(first), self.rule.window
        left = self.rows_after(first, start)[:, None]
        numbers = np.arange(self.sequence)
        begin = np.minimum(numbers, left // window) * window  # [B, L] rows after the first
        steps = np.minimum(begin[:, :, None] + np.arange(window), left[:, :, None])
        index = self.shift(first[:, None, None], steps)
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
            step=tensor(self.rows_before(first, start) // window),
            mc_return=tensor(storage.take("mc_return", starts)) if with_returns else None,
        )

    def _actions(self, windows: Windows) -> npt.NDArray[np.float32]:
        """Return the actions ``[B, window * h, A]``; after a window's end the last one repeats."""
        chunk = self.storage.shapes["action"][0]
        action = self.storage.take(
            "action", windows.indices[:, : self.rule.window]
        )  # [B, window, h, A]
        if chunk > 1 and self.rule.window > 1:  # repeat the last action, not the whole last chunk
            real = self.rule.steps[: self.rule.window] < windows.used[:, None]
            action = np.where(real[:, :, None, None], action, action[:, -1:, -1:])
        return np.asarray(action.reshape(len(action), self.rule.window * chunk, -1))
