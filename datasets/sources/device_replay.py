"""A ring of transitions on the device of the simulations, which is sampled there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trimtab.datasets.sources.drawing import saved_batch_spec
from trimtab.datasets.sources.observed import ObsForm
from trimtab.datasets.sources.rows import AUX, check_ring, filled, row_values
from trimtab.datasets.sources.steps import EPISODE_END, TERMINATED
from trimtab.datasets.sources.windows import WindowRule
from trimtab.errors import TrimtabError
from trimtab.types import Batch, BatchSpec, RowLog, Tensor

__all__ = ["DeviceReplayBuffer", "fits_device"]

_USUAL = BatchSpec()


def fits_device(batch_spec: BatchSpec) -> bool:
    """Return whether a ring on a device has all fields: those of n steps and of a history alone."""
    return replace(batch_spec, n_step=1, history=1) == _USUAL


class DeviceReplayBuffer:
    """Ring of ``[capacity // num_envs, num_envs]`` transitions on a device; meets ``Source``.

    Rows, windows and batches are those of ``ReplayBuffer``. Nothing is read back from the device,
    and a batch takes nothing from this process but its size: its starts are drawn on the device.

    Args:
        capacity: transitions kept, over all columns; rounded down to a multiple of ``num_envs``.
        obs: length O of a flat observation.
        action_shape: ``(h, A)``: one row holds a chunk of h actions.
        device: where the tensors are.
        num_envs: columns N, whose episodes all begin together.
        window: as ``ReplayBuffer``'s, with those that follow.
        discount: as there.
        chunked: as there.
        seed: as there.
        aux: as there.
        batch_spec: as there; ``n_step`` and ``history`` are the only ones that may be asked for.

    Raises:
        TrimtabError: if a size is not positive, the discount lies outside [0, 1], another field is
            asked for, or the device has no room.
    """

    def __init__(
        self,
        capacity: int,
        obs: int,
        action_shape: tuple[int, int],
        *,
        device: str | torch.device,
        num_envs: int = 1,
        window: int = 1,
        discount: float = 0.99,
        chunked: bool = False,
        seed: int = 0,
        aux: Mapping[str, tuple[int, ...]] | None = None,
        batch_spec: BatchSpec = _USUAL,
    ) -> None:
        check_ring(capacity, obs, action_shape, num_envs, window, discount)
        if not fits_device(batch_spec):
            raise TrimtabError(
                f"replay buffer: on a device it has n_step and history alone, got {batch_spec}; "
                "use ReplayBuffer"
            )
        self.num_envs, self.rows = num_envs, capacity // num_envs
        self.device = torch.device(device)
        self._batch_spec = batch_spec
        self._rule = rule = WindowRule(window, float(discount), chunked, batch_spec.n_step)
        self._aux_names = tuple(aux or ())
        values = row_values(ObsForm.of(obs), action_shape, aux or {})
        shapes = {name: part.shape for name, part in values.items()}
        types = {"flags": torch.uint8, "taken": torch.int32, "age": torch.int32}
        shapes |= {"flags": (), "taken": ()}
        self._shapes = dict(shapes)
        if batch_spec.history > 1:  # rows of the episode before each one
            shapes["age"] = ()
        try:
            self._tensors = {
                name: torch.zeros(
                    self.rows, num_envs, *shape, dtype=types.get(name), device=self.device
                )
                for name, shape in shapes.items()
            }
        except RuntimeError as error:  # which torch's error of a full GPU is, too
            raise TrimtabError(
                f"replay buffer: {self.device} has no room for {capacity:,} transitions; use a "
                "smaller buffer_size"
            ) from error
        # Flat views ``[rows * columns, ...]``, because one index gathers faster than two.
        self._flat = {name: tensor.flatten(0, 1) for name, tensor in self._tensors.items()}
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._written, self._size = 0, 0  # rows ever written, and those that are stored
        self._cleared = 0  # as there
        self._whole = True  # whether all actions were taken of each row that was ever written

        def placed(array: Any) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array), device=self.device)

        self._steps, self._numbers = placed(rule.steps), placed(np.arange(action_shape[0]))
        self._weights, self._discounts = placed(rule.weights), placed(rule.discounts)
        self._back = placed(rule.decision * np.arange(batch_spec.history)[::-1])  # newest last

    def __len__(self) -> int:
        return self._size * self.num_envs

    def clear(self) -> None:
        """Empty the ring; numbers of rows go on, as in ``ReplayBuffer.clear``."""
        self._cleared = self._written = -(-self._written // self.rows) * self.rows
        self._size = 0
        if "age" in self._tensors:
            self._tensors["age"].zero_()

    @property
    def ready(self) -> bool:
        """Whether ``sample`` can draw a batch."""
        return self._size > 0

    def add(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        aux: Mapping[str, Tensor],
        *,
        truncated: bool,
        steps: int,
    ) -> None:
        """Store one row of every column, over the oldest one once the ring is full.

        Args:
            obs: ``[N, O]`` observations acted upon.
            action: ``[N, h, A]`` action chunks, raw units.
            reward: ``[N]`` reward of the chunk.
            next_obs: ``[N, O]`` true next observations (never those after a time limit).
            terminated: ``[N]`` bool, nothing follows: no value is asked for behind this row.
            aux: the declared further values by name, each ``[N, ...]``.
            truncated: whether the time of all episodes is up.
            steps: how many actions of each chunk were taken, at least 1. Later ones are replaced by
                the last one that was taken.

        Raises:
            TrimtabError: on a wrong shape, or a missing or unknown ``aux`` name.
        """
        if set(aux) != set(self._aux_names):
            raise TrimtabError(
                f"replay buffer: aux has {sorted(aux)}, declared were {sorted(self._aux_names)}"
            )
        values = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        values |= {"flags": terminated, **{AUX + name: aux[name] for name in self._aux_names}}
        for name, value in values.items():
            if value.shape != (expected := self._tensors[name].shape[1:]):
                raise TrimtabError(
                    f"replay buffer: '{name}' has shape {tuple(value.shape)}, expected "
                    f"{tuple(expected)}"
                )
        if (cut := action.shape[1] - steps) > 0:
            last = action[:, steps - 1 : steps].expand(-1, cut, -1)
            values["action"] = torch.cat([action[:, :steps], last], dim=1)
            self._whole = False
        flags = terminated.to(torch.uint8) * (TERMINATED | EPISODE_END)
        values["flags"] = flags | EPISODE_END if truncated else flags
        row = self._written % self.rows
        if self._size and "age" in self._tensors:  # of the first row it is 0 already
            before = (row - 1) % self.rows
            goes_on = self._tensors["flags"][before] < EPISODE_END
            values["age"] = (self._tensors["age"][before] + 1) * goes_on
        for name, value in values.items():
            self._tensors[name][row] = value
        self._tensors["taken"][row] = steps
        self._written += 1
        self._size = min(self._size + 1, self.rows)

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` windows, as ``ReplayBuffer.sample`` does.

        Raises:
            TrimtabError: if the buffer is empty or ``batch_size`` is not positive.
        """
        if batch_size < 1 or not self.ready:
            raise TrimtabError(
                f"replay buffer: cannot draw {batch_size} of {len(self)} stored transitions"
            )
        size = (batch_size,)
        return self.batch(
            torch.randint(len(self), size, generator=self._generator, device=self.device)
        )

    def batch(self, start: Tensor) -> Batch:
        """Return the windows with the given starts; ``windows.View`` has the same in arrays.

        Args:
            start: ``[B]`` int64 places of first rows, counted from the oldest stored one: row by
                row, and in a row column by column.
        """
        rule, steps, columns = self._rule, self._steps, self.num_envs
        older = start // columns
        newer = self._size - 1 - older  # rows of the column after the first one
        oldest = (self._written - self._size) % self.rows
        first = (start + oldest * columns) % (self.rows * columns)
        index = self._shift(first[:, None], torch.minimum(steps, newer[:, None]))
        going = (self._take("flags", index) < EPISODE_END).cumprod(1)
        used = torch.minimum(going[:, :-1].sum(1), newer) + 1
        last = index.gather(1, used[:, None] - 1)
        real = steps < used[:, None]
        index = torch.where(real, index, last)
        last = last[:, 0]
        terminated = self._take("flags", last) & TERMINATED
        rows, real_rows = index[:, : rule.window], real[:, : rule.window, None]
        valid = real_rows & (self._numbers < self._take("taken", rows)[:, :, None])
        action = self._take("action", rows)
        action = torch.where(real_rows[..., None], action, action[:, -1:, -1:])
        obs, next_obs = self._observations(first, older, last, used)
        return Batch(
            obs=obs,
            action=action.flatten(1, 2),
            reward=((self._take("reward", index) * real).double() @ self._weights).float(),
            next_obs=next_obs,
            discount=(self._discounts.index_select(0, used) * (1 - terminated)).float(),
            valid=valid.flatten(1),
            whole=self._whole and rule.window == 1,
            aux={name: self._take(AUX + name, first) for name in self._aux_names},
        )

    def _observations(
        self, first: Tensor, older: Tensor, last: Tensor, used: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return observations and next observations, ``[B, O]`` or ``[B, history, O]``.

        Args:
            first: ``[B]`` flat index of each window's first row.
            older: ``[B]`` stored rows of its column before it.
            last: ``[B]`` flat index of the last row.
            used: ``[B]`` rows of the window.
        """
        if self._batch_spec.history == 1:
            return self._take("obs", first), self._take("next_obs", last)
        back, decision = self._back, self._rule.decision
        beginning = -torch.minimum(self._take("age", first), older)[:, None]
        anchor = (used - 1) // decision * decision
        then = torch.maximum(-back, beginning)
        until = torch.maximum(anchor[:, None] - back[1:], beginning)
        reached = [
            self._take("obs", self._shift(first[:, None], until)),
            self._take("next_obs", last[:, None]),
        ]
        return self._take("obs", self._shift(first[:, None], then)), torch.cat(reached, dim=1)

    def _take(self, name: str, index: Tensor) -> Tensor:
        """Return a value's numbers ``[*index.shape, ...]`` in the rows at flat indices."""
        taken: Tensor = self._flat[name].index_select(0, index.flatten())
        return taken.reshape(*index.shape, *taken.shape[1:])

    def _shift(self, first: Tensor, rows: Tensor) -> Tensor:
        """Return flat indices moved by some rows within their column; negative: backwards."""
        return (first + rows * self.num_envs) % (self.rows * self.num_envs)

    def _layout(self) -> dict[str, Any]:
        """Return what the layout of a ``ReplayBuffer`` with the same rows is."""
        spec = {"batch_spec": saved_batch_spec(self._batch_spec)}
        return {
            "rows": self.rows,
            "window": self._rule.window,
            "discount": self._rule.discount,
            "chunked": self._rule.chunked,
            "shapes": {name: [self.num_envs, *shape] for name, shape in self._shapes.items()},
            "dataset": None,
            **({} if self._batch_spec == _USUAL else spec),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the filled rows as arrays, and copies of all else.

        ``ReplayBuffer.from_state`` reads it, too, to give its episodes.
        """
        arrays = {
            name: tensor[: self._size].cpu().numpy() for name, tensor in self._tensors.items()
        }
        arrays["taken"] = arrays["taken"].astype(np.uint16)
        return {
            "layout": self._layout(),
            "position": self._written % self.rows,
            "size": self._size,
            "arrays": RowLog(arrays, self.rows, self._written, self._written, self._cleared),
            "device_generator": self._generator.get_state(),
            "returns": None,
            "whole": self._whole,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; the next batches are then identical.

        Raises:
            TrimtabError: if the state is of another layout, damaged, or of rows that were gathered
                with simulations on a processor.
        """
        if "device_generator" not in state:
            raise TrimtabError(
                "replay buffer: its rows were kept in this process's memory, as with simulations "
                "on a processor; resume the run there, or start it again"
            )
        try:
            if dict(state["layout"]) != self._layout():
                raise TrimtabError(
                    "replay buffer: the saved state has another layout, window or discount; resume "
                    "with the settings of the saved run"
                )
            size, written, cleared = filled(state, self.rows)
            tensors = {
                name: torch.as_tensor(state["arrays"][name]).to(tensor)
                for name, tensor in self._tensors.items()
            }
            for name, tensor in tensors.items():
                if tensor.shape != (size, *self._tensors[name].shape[1:]):
                    raise ValueError(f"'{name}' has shape {tuple(tensor.shape)}")
            whole = bool(state["whole"])
            self._generator.set_state(state["device_generator"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, TrimtabError):
                raise
            raise TrimtabError(
                f"replay buffer: the saved state is damaged ({error}); resume from another one"
            ) from error
        for name, tensor in tensors.items():
            self._tensors[name][:size] = tensor
        self._size, self._written, self._whole = size, written, whole
        self._cleared = cleared
