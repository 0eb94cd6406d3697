"""Gather transitions: environments on one side, a learner and its buffer on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.algorithms.base import Algorithm
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.types import Tensor, TrimtabError


class Collector:
    """Steps the environments with what the learner wants to try, and stores what came of it.

    Args:
        envs: the run's environments; they are reset here. Where they give tensors these stay on
            their device until they are stored.
        algorithm: the learner.
        buffer: one row for each executed chunk of each environment.
        device: where observations are given to the learner.
    """

    def __init__(
        self,
        envs: EpisodeVectorEnv | TorchVectorEnv,
        algorithm: Algorithm,
        buffer: ReplayBuffer | RolloutBuffer,
        device: str,
    ) -> None:
        self.envs, self.algorithm, self.buffer, self.device = envs, algorithm, buffer, device
        self.obs: Any = envs.reset()[0]  # [N, O], an array or a tensor
        self.episodes = 0
        self.last_return = 0.0
        self.last_success = 0.0

    def step(self, *, warmup: bool) -> int:
        """Execute one chunk in every environment; return the environment steps really taken.

        Raises:
            TrimtabError: if the simulator gives an observation or a reward that is not finite.
        """
        with torch.no_grad():
            action, aux = self.algorithm.explore(
                torch.as_tensor(self.obs, device=self.device), warmup=warmup
            )
        tensors = isinstance(self.envs, TorchVectorEnv)
        chunk: Any = action if tensors else action.cpu().numpy()
        next_obs, reward, terminated, truncated, info = self.envs.step(chunk)
        library: Any = torch if tensors else np
        reached = library.where((terminated | truncated)[:, None], info["final_obs"], next_obs)
        for what, values in (("an observation", reached), ("a reward", reward)):
            if not library.isfinite(values).all():
                raise TrimtabError(f"{self.envs.id} gave {what} that is not finite")
        self.buffer.add(
            self.obs,
            chunk,
            reward,
            reached,
            terminated,
            truncated,
            {name: value.cpu() for name, value in aux.items()},
            info["steps"],
        )
        self.obs = next_obs
        ended = _array(terminated | truncated)
        if ended.any():
            final = {name: _array(values) for name, values in info["final_info"].items()}
            self.episodes += int(ended.sum())
            self.last_return = float(final["return"][ended].mean())
            self.last_success = float(final["success"][ended].mean()) if "success" in final else 0.0
        return int(info["steps"].sum())

    def state_dict(self) -> dict[str, Any]:
        """Return the environments' state and the books of finished episodes."""
        return {
            "envs": self.envs.state_dict(),
            "obs": self.obs,
            "episodes": self.episodes,
            "last_return": self.last_return,
            "last_success": self.last_success,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        self.envs.load_state_dict(state["envs"])
        self.obs = state["obs"]
        self.episodes = int(state["episodes"])
        self.last_return = float(state["last_return"])
        self.last_success = float(state["last_success"])


def _array(values: npt.NDArray[Any] | Tensor) -> npt.NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, Tensor) else values
