"""A buffer that fills with T rows of N environments, gives them away once and starts again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.sources.observed import NEXT, OBS, ObsForm, as_array
from trimtab.datasets.sources.rows import AUX, row_values
from trimtab.errors import TrimtabError
from trimtab.types import Obs, Part, Rollout, Tensor

__all__ = ["RolloutBuffer"]


class RolloutBuffer:
    """``[steps, num_envs]`` decisions in their order.

    Args:
        steps: rows T of one rollout.
        num_envs: columns N, one for each environment that is stepped together.
        obs: length O of a flat observation, or its shape where it has more axes (``(K, O)`` with a
            history), or its parts by name, each stored as its own type.
        action_shape: ``(H, A)``: one row holds a chunk of H actions.
        discount: discount for each row.
        device: where a rollout's tensors are put.
        aux: name -> shape of further float32 values stored with each row.

    Raises:
        TrimtabError: if a size is not positive or the discount lies outside [0, 1].
    """

    def __init__(
        self,
        steps: int,
        num_envs: int,
        obs: int | tuple[int, ...] | Mapping[str, Part],
        action_shape: tuple[int, int],
        *,
        discount: float = 0.99,
        device: str | torch.device = "cpu",
        aux: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        least = min(steps, num_envs, obs if isinstance(obs, int) else 1, *action_shape)
        if least < 1:
            raise TrimtabError(
                f"rollout buffer: steps {steps}, num_envs {num_envs}, obs {obs}, "
                f"action_shape {tuple(action_shape)}: sizes must be at least 1"
            )
        if not 0.0 <= discount <= 1.0:
            raise TrimtabError(f"rollout buffer: discount {discount} lies outside [0, 1]")
        self.discount = float(discount)
        self.device = torch.device(device)
        self._aux_names = tuple(aux or ())
        self._form = ObsForm.of(obs)
        values = row_values(self._form, action_shape, aux or {})
        lead = (steps, num_envs)
        self._arrays: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(lead + value.shape, dtype=value.dtype) for name, value in values.items()
        }
        self._arrays["terminated"] = np.zeros(lead, dtype=np.bool_)
        self._arrays["cut"] = np.zeros(lead, dtype=np.bool_)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether all rows are filled."""
        return self._size == len(self._arrays["reward"])

    def add(
        self,
        obs: Any,
        action: npt.NDArray[Any] | Tensor,
        reward: npt.NDArray[Any] | Tensor,
        next_obs: Any,
        terminated: npt.NDArray[Any] | Tensor,
        truncated: npt.NDArray[Any] | Tensor,
        aux: Mapping[str, npt.NDArray[Any] | Tensor] | None = None,
        steps: npt.NDArray[Any] | Tensor | None = None,
    ) -> None:
        """Store one row of every column; arguments as ``ReplayBuffer.add``.

        ``steps`` is not kept: the actions of a chunk that its episode cut short had no effect, but
        their likelihood is that of the chunk as it was planned.

        Raises:
            TrimtabError: on a wrong shape or type, other parts or ``aux`` names than declared, or a
                full buffer.
        """
        given = aux or {}
        if set(given) != set(self._aux_names):
            raise TrimtabError(
                f"rollout buffer: aux has {sorted(given)}, declared were {sorted(self._aux_names)}"
            )
        if self.full:
            raise TrimtabError("rollout buffer: it is full; take the rollout first")
        values: dict[str, Any] = {
            **self._form.named("", obs, "rollout buffer"),
            "action": action,
            "reward": reward,
            **self._form.named(NEXT, next_obs, "rollout buffer"),
            "terminated": _array(terminated).astype(np.bool_),
            "cut": np.logical_or(_array(terminated), _array(truncated)),
            **{AUX + name: given[name] for name in self._aux_names},
        }
        for name, given_value in values.items():
            value = _array(given_value)
            row = self._arrays[name][self._size]
            array = as_array(value, row.dtype, f"rollout buffer: '{name}'")
            if array.shape != row.shape:
                raise TrimtabError(
                    f"rollout buffer: '{name}' has shape {array.shape}, expected {row.shape}"
                )
            row[...] = array
        self._size += 1

    def clear(self) -> None:
        """Drop the rows and begin again."""
        self._size = 0

    def take(self) -> Rollout:
        """Return the rollout and start a new one.

        Raises:
            TrimtabError: if the buffer is not full.
        """
        if not self.full:
            raise TrimtabError(
                f"rollout buffer: {self._size} of {len(self._arrays['reward'])} rows are filled"
            )
        self._size = 0
        discount = self.discount * ~self._arrays["terminated"]
        cut = self._arrays["cut"]
        ended = np.logical_or.accumulate(cut[::-1])[::-1]
        return Rollout(
            obs=self._obs(""),
            action=self._tensor("action"),
            reward=self._tensor("reward"),
            next_obs=self._obs(NEXT),
            discount=torch.from_numpy(discount.astype(np.float32)).to(self.device),
            cut=self._tensor("cut"),
            aux={name: self._tensor(AUX + name) for name in self._aux_names},
            cut_rows=torch.from_numpy(np.flatnonzero(cut)).to(self.device),
            ended_rows=torch.from_numpy(np.flatnonzero(ended)).to(self.device),
        )

    def _obs(self, prefix: str) -> Obs:
        if self._form.is_flat:
            return self._tensor(prefix + OBS)
        names = self._form.stored
        return {name.removeprefix(f"{OBS}/"): self._tensor(prefix + name) for name in names}

    def _tensor(self, name: str) -> Tensor:
        return torch.tensor(self._arrays[name], device=self.device)  # a copy: rows are used again

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the filled rows."""
        return {
            "size": self._size,
            "arrays": {name: array[: self._size].copy() for name, array in self._arrays.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            TrimtabError: if the state is of a buffer of other sizes, or of one on a GPU.
        """
        if "arrays" not in state:
            raise TrimtabError(
                "rollout buffer: its rows were gathered with simulations on a GPU; resume the run "
                "there, or start it again"
            )
        size, arrays = int(state["size"]), state["arrays"]
        for name, array in self._arrays.items():
            expected = (size, *array.shape[1:])
            if size > len(array) or arrays[name].shape != expected:
                raise TrimtabError(
                    f"rollout buffer: the saved '{name}' has shape {arrays[name].shape}, expected "
                    f"{expected}; resume with the settings of the saved run"
                )
        for name, array in self._arrays.items():
            array[:size] = arrays[name]
        self._size = size


def _array(value: npt.NDArray[Any] | Tensor) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
