"""Collect transitions from simulations on a GPU, whose tensors are not read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.training.experience import batch_spec_of
from trimtab.datasets.sources.device_replay import DeviceReplayBuffer
from trimtab.datasets.sources.device_rollout import DeviceRolloutBuffer
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.errors import TrimtabError
from trimtab.types import Tensor

__all__ = ["DeviceCollector"]


class DeviceCollector:
    """Steps the environments with the method's exploratory actions; stores transitions.

    What is stored in a buffer on the device never leaves it. A ``ReplayBuffer`` is in the memory of
    this process, so each step is copied to it.

    Args:
        envs: the run's environments; they are reset here.
        algorithm: chooses the actions.
        buffer: takes one row for each executed chunk of each environment.
    """

    def __init__(
        self,
        envs: TorchVectorEnv,
        algorithm: Algorithm,
        buffer: ReplayBuffer | DeviceReplayBuffer | DeviceRolloutBuffer,
    ) -> None:
        self.envs, self.algorithm, self.buffer = envs, algorithm, buffer
        self.history = batch_spec_of(algorithm).history
        self.obs: Tensor = envs.reset()[0]
        self._read = self._repeated(self.obs)  # what the method reads: [N, O], or [N, K, O]
        self.episodes = 0
        self.returns: Tensor | None = None  # of the last episodes

    @torch.no_grad()
    def step(self, *, warmup: bool) -> int:
        """Execute one chunk in every environment; return the steps taken."""
        chunk, aux = self.algorithm.explore(self._read, warmup=warmup)
        self.obs, reward, restarted, truncated, info = self.envs.step(chunk)
        final = info["final_obs"]
        after = self._appended(self._read, final)
        if isinstance(self.buffer, DeviceRolloutBuffer):
            self.buffer.add(self._read, chunk, reward, after, restarted, truncated, aux)
        else:
            # A ring builds histories when it is sampled.
            before = self._read if self.history == 1 else self._read[:, -1]
            row = (before, chunk, reward, final, restarted)
            if isinstance(self.buffer, DeviceReplayBuffer):
                ended = bool(truncated.all())  # all episodes began together
                self.buffer.add(*row, aux, truncated=ended, steps=info["steps"])
            else:
                taken = np.full(self.envs.num_envs, info["steps"])
                stored = {name: value.cpu() for name, value in aux.items()}
                self.buffer.add(*row, truncated, stored, taken)
        over = restarted | bool(truncated.all())
        self.algorithm.on_transition(reward, restarted, over)
        if truncated.all():  # all episodes began together
            self._read = self._repeated(self.obs)
            self.algorithm.on_episode_end(range(self.envs.num_envs))
            self.episodes += self.envs.num_envs
            self.returns = info["final_info"]["return"]
        elif self.history > 1:
            again = restarted[:, None, None]
            self._read = torch.where(again, self._repeated(self.obs), after)
        else:
            self._read = self.obs
        return self.envs.num_envs * int(info["steps"])

    def _repeated(self, obs: Tensor) -> Tensor:
        """Return what is read at an episode's beginning: a history of its first observation."""
        return obs if self.history == 1 else obs[:, None].repeat(1, self.history, 1)

    def _appended(self, read: Tensor, obs: Tensor) -> Tensor:
        """Return what is read with one observation more, and the oldest dropped."""
        return obs if self.history == 1 else torch.cat([read[:, 1:], obs[:, None]], dim=1)

    def episode_metrics(self) -> dict[str, float]:
        """Return the episodes finished so far, the last ones' mean return, and the restarts."""
        restarts = {"restarted": float(self.envs.restarted)}
        if self.returns is None:
            return restarts
        return {"episodes": self.episodes, "train_return": float(self.returns.mean()), **restarts}

    def state_dict(self) -> dict[str, Any]:
        """Return the environments' state, what is read, and the last episodes' returns."""
        return {
            "envs": self.envs.state_dict(),
            "read": self._read,
            "episodes": self.episodes,
            "returns": self.returns,
            "restarted": self.envs.restarted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state``.

        Raises:
            TrimtabError: if the state is of simulations on a processor, or of other environments.
        """
        if "read" not in state:
            raise TrimtabError(
                f"{self.envs.id}: the run was saved with simulations on a processor; resume it on "
                "a machine without a GPU, or start it again"
            )
        self.envs.load_state_dict(state["envs"])
        self.envs.restarted.copy_(state["restarted"])
        self._read = state["read"].to(self.envs.device)
        self.episodes = int(state["episodes"])
        returns = state["returns"]
        self.returns = None if returns is None else returns.to(self.envs.device)
