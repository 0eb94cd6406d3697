"""A rollout on the device of the simulations, which is learned from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.errors import TrimtabError
from trimtab.types import Rollout, Tensor

__all__ = ["DeviceRolloutBuffer"]


class DeviceRolloutBuffer:
    """``[steps, num_envs]`` decisions in their order, as tensors on a device.

    Nothing is read back from the device: which episodes ran out of time is known without it.

    Args:
        steps: rows T of one rollout.
        num_envs: columns N.
        obs: shape of a flat observation, ``(O,)``, or ``(K, O)`` with a history.
        action_shape: ``(H, A)``: one row holds a chunk of H actions.
        discount: discount for each row.
        device: where the tensors are.
        aux: name -> shape of further float32 values stored with each row.
    """

    def __init__(
        self,
        steps: int,
        num_envs: int,
        obs: tuple[int, ...],
        action_shape: tuple[int, int],
        *,
        discount: float,
        device: str,
        aux: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.discount, self.device = discount, torch.device(device)
        shapes = {"obs": obs, "action": action_shape, "reward": (), "next_obs": obs}
        shapes |= {"terminated": (), **{f"aux/{name}": shape for name, shape in aux.items()}}
        self._tensors = {
            name: torch.zeros(steps, num_envs, *shape, device=self.device)
            for name, shape in shapes.items()
        }
        self._truncated: npt.NDArray[np.bool_] = np.zeros((steps, num_envs), np.bool_)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether all rows are filled."""
        return self._size == len(self._truncated)

    def add(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        truncated: npt.NDArray[np.bool_],
        aux: Mapping[str, Tensor],
    ) -> None:
        """Store one row of every column.

        Args:
            obs: ``[N, ...]`` acted upon.
            action: ``[N, H, A]``, raw units.
            reward: ``[N]``.
            next_obs: true next observations, as ``obs`` (never those after a time limit).
            terminated: ``[N]`` bool.
            truncated: ``[N]`` bool, whose time was up.
            aux: the declared further values by name.

        Raises:
            TrimtabError: if the buffer is full.
        """
        if self.full:
            raise TrimtabError("rollout buffer: it is full; take the rollout first")
        values = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        values |= {"terminated": terminated, **{f"aux/{n}": value for n, value in aux.items()}}
        for name, tensor in self._tensors.items():
            tensor[self._size] = values[name]
        self._truncated[self._size] = truncated
        self._size += 1

    def clear(self) -> None:
        """Drop the rows and begin again."""
        self._size = 0

    def take(self) -> Rollout:
        """Return the rollout and start a new one, which is written over it."""
        self._size = 0
        found = self._tensors
        truncated = self._truncated
        time_is_up = torch.from_numpy(truncated.copy()).to(self.device)
        ended = np.logical_or.accumulate(truncated[::-1])[::-1]
        return Rollout(
            obs=found["obs"],
            action=found["action"],
            reward=found["reward"],
            next_obs=found["next_obs"],
            discount=self.discount * (1.0 - found["terminated"]),
            cut=time_is_up | (found["terminated"] > 0),
            aux={n.removeprefix("aux/"): t for n, t in found.items() if n.startswith("aux/")},
            # After a termination no value is asked for, so those rows need not be known.
            cut_rows=torch.from_numpy(np.flatnonzero(truncated)).to(self.device),
            ended_rows=torch.from_numpy(np.flatnonzero(ended)).to(self.device),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the filled rows."""
        filled = slice(self._size)
        tensors = {name: tensor[filled].clone() for name, tensor in self._tensors.items()}
        return {"tensors": tensors, "truncated": self._truncated[filled].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            TrimtabError: if the rollout was gathered with simulations on a processor.
        """
        if "tensors" not in state:
            raise TrimtabError(
                "rollout buffer: its rows were gathered with simulations on a processor; resume "
                "the run on a machine without a GPU, or start it again"
            )
        self._size = len(state["truncated"])
        for name, tensor in self._tensors.items():
            tensor[: self._size] = state["tensors"][name]
        self._truncated[: self._size] = state["truncated"]
