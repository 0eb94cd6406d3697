"""A ring of transitions that forms n-step windows and action chunks when it is sampled.

Rows are stored once, as gathered. What a learner sees (how many rows are summed, where a window has
to stop) is worked out at sampling, so one buffer serves one-step, n-step and chunked learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.steps import (
    EPISODE_END,
    NO_SUCCESSOR,
    TERMINATED,
    step_flags,
    step_returns,
)
from trimtab.datasets.sources.weighting import WeightedEpisodes
from trimtab.types import Batch, Tensor, TrimtabError

__all__ = ["ReplayBuffer"]


class ReplayBuffer:
    """Ring of ``[capacity // num_envs, num_envs]`` transitions; meets ``Source``.

    A start is uniform over all stored rows. Its window ends at the first of: ``window`` rows, the
    end of its episode, the newest stored row of its column. The n-step return over the rows used is
    that of Sutton and Barto (2018), equation 7.1, with the bootstrap left to ``Batch.discount``.

    Args:
        capacity: transitions kept, over all columns; rounded down to a multiple of ``num_envs``.
        obs_dim: length O of a flat observation.
        action_shape: ``(h, A)``: one row holds a chunk of h actions (1 for single steps).
        num_envs: number of columns, one for each environment that is stepped together.
        window: most rows in a sampled window; the batch's horizon is ``window * h``.
        discount: discount for each row, or for each window where ``chunked``.
        chunked: a window is one decision, as in the chunk MDP of DPPO and DSRL (arXiv 2409.00588,
            2506.15799): its rewards are summed as they are and ``discount`` counts once. Without
            it every row is a decision of its own and the window is an n-step return.
        seed: seed of the buffer's own random generator.
        device: where sampled tensors are put.
        aux: name -> shape of further float32 values stored with each row.

    Raises:
        TrimtabError: if a size is not positive or the discount lies outside [0, 1].
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_shape: tuple[int, int],
        *,
        num_envs: int = 1,
        window: int = 1,
        discount: float = 0.99,
        chunked: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        aux: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        chunk, action_dim = action_shape
        if min(obs_dim, chunk, action_dim, num_envs, window) < 1 or capacity < num_envs:
            raise TrimtabError(
                f"replay buffer: capacity {capacity}, obs_dim {obs_dim}, action_shape "
                f"{tuple(action_shape)}, num_envs {num_envs}, window {window}: sizes must be at "
                "least 1 and capacity at least num_envs"
            )
        if not 0.0 <= discount <= 1.0:
            raise TrimtabError(f"replay buffer: discount {discount} lies outside [0, 1]")
        self.num_envs = num_envs
        self.rows = capacity // num_envs
        self.window = window
        self.discount = float(discount)
        self.chunked = chunked
        self.device = torch.device(device)
        self._chunk = chunk
        shapes: dict[str, tuple[int, ...]] = {
            "obs": (obs_dim,),
            "action": (chunk, action_dim),
            "reward": (),
            "next_obs": (obs_dim,),
        }
        self._aux_names = tuple(aux or ())
        shapes.update({f"aux/{name}": tuple(shape) for name, shape in (aux or {}).items()})
        self._shapes = {**shapes, "flags": (), "taken": ()}
        self._arrays = self._allocate(shapes)
        self._position = 0  # the row that is written next
        self._size = 0  # filled rows
        self._dataset_hash: str | None = None  # set: the rows are a dataset's and stay as they are
        self._weighted: WeightedEpisodes | None = None  # set: starts are not uniform
        self._left_out = np.empty(0, dtype=np.int64)  # rows that no batch has, oldest first
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._link()

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays ``[rows, num_envs, ...]`` of the float32 values and the flags."""
        lead = (self.rows, self.num_envs)
        return {
            **{name: np.zeros(lead + shape, dtype=np.float32) for name, shape in shapes.items()},
            "flags": np.zeros(lead, dtype=np.uint8),
            "taken": np.full(lead, self._chunk, dtype=np.uint16),  # actions of the chunk
        }

    def _link(self) -> None:
        """Keep flat views ``[rows * num_envs, ...]``, because one index gathers faster than two."""
        self._flat = {
            name: array.reshape(self.rows * self.num_envs, *array.shape[2:])
            for name, array in self._arrays.items()
        }
        self._steps = np.arange(self.window)
        exponents = np.arange(self.window + 1, dtype=np.float64)
        self._weights = self.discount ** (exponents[:-1] * (not self.chunked))
        self._discounts = self.discount ** (np.minimum(exponents, 1) if self.chunked else exponents)
        self._positions = np.arange(self._chunk)

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        window: int = 1,
        discount: float = 0.99,
        chunked: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        weights: npt.ArrayLike | None = None,
        successors: bool = True,
    ) -> ReplayBuffer:
        """Return a full, read-only buffer of a dataset's steps, episodes one after another.

        Rows are single environment steps (h = 1) and windows never join two episodes. Batches also
        carry ``mc_return``: the sum of the rewards from the row to its episode's end, discounted as
        the windows are, with nothing bootstrapped. Mix it with an online buffer by ``Mixture``.
        ``weights`` holds a weight for each episode, with which each of its steps is drawn as a
        start; None: all alike. ``successors`` says that ``next_obs`` is made use of: a last step
        whose next observation was not recorded is then in no window, and windows end before it.
        Cloning, which looks at no ``next_obs``, sets it false and has every step.

        Raises:
            TrimtabError: if the dataset has no steps, or none with a next observation where that is
                wanted, or the weights do not fit.
        """
        if dataset.num_steps < 1:
            raise TrimtabError(f"dataset {dataset.id}: it has no steps; make it again")
        episodes = dataset.episodes
        buffer = cls(
            dataset.num_steps,
            dataset.obs_dim,
            (1, dataset.action_dim),
            window=window,
            discount=discount,
            chunked=chunked,
            seed=seed,
            device=device,
        )
        buffer._shapes["mc_return"] = ()
        buffer._arrays["mc_return"] = np.zeros((buffer.rows, 1), dtype=np.float32)
        buffer._link()
        first = 0
        for episode in episodes:
            part = slice(first, first + len(episode))
            buffer._flat["obs"][part] = episode.observations[:-1]
            buffer._flat["next_obs"][part] = episode.observations[1:]
            buffer._flat["action"][part, 0] = episode.actions
            buffer._flat["reward"][part] = episode.rewards
            buffer._flat["flags"][part] = step_flags(episode)
            buffer._flat["mc_return"][part] = step_returns(
                episode, discount, window if chunked else 1
            )
            first = part.stop
        buffer._size = buffer.rows
        buffer._dataset_hash = dataset.content_hash
        lengths = np.array([len(episode) for episode in episodes])
        whole = np.array([episode.last_observed for episode in episodes]) | (not successors)
        buffer._choose_starts(lengths, whole, weights, dataset.id)
        return buffer

    def _choose_starts(
        self,
        lengths: npt.NDArray[np.int64],
        whole: npt.NDArray[np.bool_],
        weights: npt.ArrayLike | None,
        id: str,
    ) -> None:
        """Decide which of a dataset's rows are drawn as starts, and how often.

        Args:
            lengths: ``[E]`` steps of each episode.
            whole: ``[E]`` whether all of them are drawn; the last one is not where this is false.
            weights: as ``from_dataset``'s.
            id: the dataset's, for errors.

        Raises:
            TrimtabError: if no row is left, or the weights do not fit.
        """
        self._left_out = np.asarray((np.cumsum(lengths) - 1)[~whole], dtype=np.int64)
        # The k-th row that is left is row k plus the left-out rows before it.
        self._passed = self._left_out - np.arange(len(self._left_out))
        if len(self._left_out) == self._size:
            raise TrimtabError(
                f"dataset {id}: none of its steps has a recorded next observation, so that no "
                "value can be learned from it; clone it instead"
            )
        if weights is not None:
            self._weighted = WeightedEpisodes(lengths - ~whole, weights)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ReplayBuffer:
        """Return the buffer whose ``state_dict`` this is.

        Raises:
            KeyError: if a part is missing.
            TrimtabError: if it is damaged, or of a buffer that was made from a dataset.
        """
        layout = state["layout"]
        if layout["dataset"] is not None:
            raise TrimtabError("replay buffer: its rows are a dataset's and are not in its state")
        columns = layout["shapes"]["reward"][0]
        shapes = {name: tuple(shape[1:]) for name, shape in layout["shapes"].items()}
        buffer = cls(
            layout["rows"] * columns,
            shapes["obs"][0],
            shapes["action"],
            num_envs=columns,
            window=layout["window"],
            discount=layout["discount"],
            chunked=layout["chunked"],
            aux={n.removeprefix("aux/"): s for n, s in shapes.items() if n.startswith("aux/")},
        )
        buffer.load_state_dict(state)
        return buffer

    def episodes(self) -> list[Episode]:
        """Return the stored rows as episodes, one column after another, each from its oldest row.

        An episode that goes on, or whose beginning was overwritten, is kept as far as it is stored;
        one that goes on is marked as truncated.

        Raises:
            TrimtabError: if a row holds a chunk of several actions, whose observations in between
                are not stored.
        """
        if self._chunk != 1:
            raise TrimtabError(
                f"replay buffer: its rows are chunks of {self._chunk} actions, no single steps; "
                "take a run with act_steps=1"
            )
        order = (self._position - self._size + np.arange(self._size)) % self.rows
        found = []
        for column in range(self.num_envs):
            rows = {name: array[order, column] for name, array in self._arrays.items()}
            ended = rows["flags"] >= EPISODE_END
            first = 0
            for last in np.flatnonzero(ended | (np.arange(self._size) == self._size - 1)):
                part = slice(first, last + 1)
                terminated = (rows["flags"][part] & TERMINATED) > 0
                is_last = np.arange(first, last + 1) == last
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

    def __len__(self) -> int:
        return self._size * self.num_envs

    @property
    def capacity(self) -> int:
        """Most transitions that are kept."""
        return self.rows * self.num_envs

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: the buffer's memory."""
        return sum(array.nbytes for array in self._arrays.values())

    def add(
        self,
        obs: npt.ArrayLike | Tensor,
        action: npt.ArrayLike | Tensor,
        reward: npt.ArrayLike | Tensor,
        next_obs: npt.ArrayLike | Tensor,
        terminated: npt.ArrayLike | Tensor,
        truncated: npt.ArrayLike | Tensor,
        aux: Mapping[str, npt.ArrayLike | Tensor] | None = None,
        steps: npt.ArrayLike | None = None,
    ) -> None:
        """Store one row of every column, over the oldest one once the ring is full.

        Args:
            obs: ``[N, O]`` observations acted upon.
            action: ``[N, h, A]`` action chunks, raw units.
            reward: ``[N]`` reward of the chunk.
            next_obs: ``[N, O]`` true next observations (never those after a reset).
            terminated: ``[N]`` bool, the task ended.
            truncated: ``[N]`` bool, the episode was cut.
            aux: the declared further values by name, each ``[N, ...]``.
            steps: ``[N]`` how many actions of each chunk were taken, at least 1; None: all. What
                was planned after them is not kept: as in a dataset's windows the last one that was
                taken is repeated.

        Raises:
            TrimtabError: on a wrong shape, a missing or unknown ``aux`` name, or a buffer that was
                made from a dataset.
        """
        if self._dataset_hash is not None:
            raise TrimtabError(
                "replay buffer: it holds a dataset and cannot grow; mix it with another buffer"
            )
        given = aux or {}
        if set(given) != set(self._aux_names):
            raise TrimtabError(
                f"replay buffer: aux has {sorted(given)}, declared were {sorted(self._aux_names)}"
            )
        ended = _array(terminated, np.bool_), _array(truncated, np.bool_)
        values = {
            "obs": _array(obs, np.float32),
            "action": _array(action, np.float32),
            "reward": _array(reward, np.float32),
            "next_obs": _array(next_obs, np.float32),
            **{f"aux/{name}": _array(given[name], np.float32) for name in self._aux_names},
        }
        if steps is not None:
            values["taken"] = _array(steps, np.uint16)
        for name, value in (*values.items(), ("terminated", ended[0]), ("truncated", ended[1])):
            expected = self._arrays.get(name, self._arrays["flags"]).shape[1:]
            if value.shape != expected:
                raise TrimtabError(
                    f"replay buffer: '{name}' has shape {value.shape}, expected {expected}"
                )
        if steps is not None:
            values["action"] = _repeat_last(values["action"], values["taken"])
        for name, value in values.items():
            self._arrays[name][self._position] = value
        self._arrays["flags"][self._position] = (
            ended[0] * TERMINATED + (ended[0] | ended[1]) * EPISODE_END
        )
        self._position = (self._position + 1) % self.rows
        self._size = min(self._size + 1, self.rows)

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` windows with float32 tensors on the buffer's device.

        ``action`` is ``[B, window * h, A]``: after the window's end its last real action is
        repeated and ``valid`` is false. ``obs``, ``aux`` and ``mc_return`` are those of the first
        row, ``next_obs`` is that of the last row used.

        Raises:
            TrimtabError: if the buffer is empty or ``batch_size`` is not positive.
        """
        if batch_size < 1 or self._size == 0:
            raise TrimtabError(
                f"replay buffer: cannot draw {batch_size} of {len(self)} stored transitions"
            )
        # Ages count from the oldest row, so that the write head is always at the end of the range.
        if self._weighted is None:
            most = self._size * self.num_envs - len(self._left_out)
            start = self._generator.integers(most, size=batch_size)
        else:
            start = self._weighted.draw(self._generator, batch_size)
        if len(self._left_out):
            start += self._passed.searchsorted(start, side="right")
        oldest = (self._position - self._size) % self.rows * self.num_envs
        first = start + oldest
        first[first >= self.capacity] -= self.capacity
        if self.window == 1:
            return self._batch(first, first, first[:, None], np.ones(batch_size, dtype=np.int64))
        newer = self._size - 1 - start // self.num_envs  # rows of the column after the first
        offsets = np.minimum(self._steps, newer[:, None])
        index = first[:, None] + offsets * self.num_envs
        index[index >= self.capacity] -= self.capacity
        flags = self._flat["flags"].take(index)
        ends = flags >= EPISODE_END
        ends[:, -1] = True
        used = np.minimum(ends.argmax(axis=1), newer) + 1
        if len(self._left_out):  # a window ends before such a row, which is never its first
            used -= np.take_along_axis(flags, used[:, None] - 1, axis=1)[:, 0] >= NO_SUCCESSOR
        last = np.take_along_axis(index, used[:, None] - 1, axis=1)
        index = np.where(self._steps < used[:, None], index, last)
        return self._batch(first, last[:, 0], index, used)

    def _batch(
        self,
        first: npt.NDArray[np.int64],  # [B] flat index of each window's first row
        last: npt.NDArray[np.int64],  # [B] flat index of the last row used
        index: npt.NDArray[np.int64],  # [B, window] flat indices, the last one repeated at the end
        used: npt.NDArray[np.int64],  # [B] rows used
    ) -> Batch:
        chunk, gather = self._chunk, self._gather
        real = self._steps < used[:, None]
        action = gather("action", index)  # [B, window, h, A]
        if chunk > 1 and self.window > 1:  # repeat the last action, not the whole last chunk
            action = np.where(real[:, :, None, None], action, action[:, -1:, -1:])
        reward = (gather("reward", index) * real) @ self._weights
        discount = self._discounts[used] * (gather("flags", last) & TERMINATED == 0)
        size = len(first)
        taken = gather("taken", index)  # [B, window]
        valid = real[:, :, None] & (self._positions < taken[:, :, None])
        return Batch(
            obs=self._tensor(gather("obs", first)),
            action=self._tensor(action.reshape(size, self.window * chunk, -1)),
            reward=self._tensor(reward.astype(np.float32)),
            next_obs=self._tensor(gather("next_obs", last)),
            discount=self._tensor(discount.astype(np.float32)),
            valid=self._tensor(valid.reshape(size, -1)),
            mc_return=self._tensor(gather("mc_return", first))
            if "mc_return" in self._flat
            else None,
            aux={name: self._tensor(gather(f"aux/{name}", first)) for name in self._aux_names},
        )

    def _gather(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the values ``name`` of the rows at flat indices."""
        return self._flat[name].take(index, axis=0)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _layout(self) -> dict[str, Any]:
        weighted = {} if self._weighted is None else {"weights": self._weighted.digest}
        left_out = {"left_out": len(self._left_out)} if len(self._left_out) else {}
        return {
            "rows": self.rows,
            "window": self.window,
            "discount": self.discount,
            "chunked": self.chunked,
            "shapes": {name: [self.num_envs, *shape] for name, shape in self._shapes.items()},
            "dataset": self._dataset_hash,
            **weighted,
            **left_out,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the filled rows and the generator's state, JSON scalars and arrays only.

        A buffer made from a dataset leaves its rows out: they are the dataset's, whose content hash
        is kept and compared instead.
        """
        state = self._generator.bit_generator.state
        kept = {} if self._dataset_hash is not None else self._arrays
        return {
            "layout": self._layout(),
            "position": self._position,
            "size": self._size,
            "arrays": {name: array[: self._size].copy() for name, array in kept.items()},
            "generator": {
                "state": str(state["state"]["state"]),
                "inc": str(state["state"]["inc"]),
                "has_uint32": int(state["has_uint32"]),
                "uinteger": int(state["uinteger"]),
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; the next samples are then identical.

        Raises:
            TrimtabError: if the state is of a buffer of another layout or dataset, or damaged.
        """
        try:
            if dict(state["layout"]) != self._layout():
                raise TrimtabError(
                    "replay buffer: the saved state has another layout, window, discount or "
                    "dataset; resume with the settings of the saved run"
                )
            arrays, size, position = state["arrays"], int(state["size"]), int(state["position"])
            saved = state["generator"]
            words = {"state": int(saved["state"]), "inc": int(saved["inc"])}
            generator = {
                "bit_generator": "PCG64",
                "state": words,
                "has_uint32": int(saved["has_uint32"]),
                "uinteger": int(saved["uinteger"]),
            }
            kept = {} if self._dataset_hash is not None else self._arrays
            if not (
                0 <= size <= self.rows
                and 0 <= position < self.rows
                and (size == self.rows or position == size)
            ):
                raise ValueError(f"size {size} and position {position} in {self.rows} rows")
            for name, array in kept.items():
                part = arrays[name]
                if part.shape != (size, *array.shape[1:]) or part.dtype != array.dtype:
                    raise ValueError(f"'{name}' has shape {part.shape} and type {part.dtype}")
            self._generator.bit_generator.state = generator
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, TrimtabError):
                raise
            raise TrimtabError(
                f"replay buffer: the saved state is damaged ({error}); resume from another one"
            ) from error
        for name, array in kept.items():
            array[:size] = arrays[name]
        self._size, self._position = size, position


def _repeat_last(
    action: npt.NDArray[np.float32], taken: npt.NDArray[np.uint16]
) -> npt.NDArray[np.float32]:
    """Return chunks ``[N, h, A]`` with the last of the ``taken`` ``[N]`` actions after them."""
    chunk = action.shape[1]
    if int(taken.min()) >= chunk:
        return action
    places = np.minimum(np.arange(chunk), np.maximum(taken[:, None].astype(np.int64), 1) - 1)
    return np.take_along_axis(action, places[:, :, None], axis=1)


def _array(value: npt.ArrayLike | Tensor, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=dtype)
