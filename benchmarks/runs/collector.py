"""Gather transitions: environments on one side, a learner and its buffer on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.runs.experience import wants_of
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.dict_vector import DictVectorEnv
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.observations import tree_map
from trimtab.policies.agent import Agent, ArrayObs, Reading
from trimtab.types import Tensor, TrimtabError

Array = NDArray[Any]


class Collector:
    """Steps the environments with what the learner wants to try, and stores what came of it.

    Args:
        envs: the run's environments; they are reset here.
        algorithm: the learner.
        buffer: one row for each executed chunk of each environment.
        device: where observations are given to the learner.
    """

    def __init__(
        self,
        envs: EpisodeVectorEnv | DictVectorEnv,
        algorithm: Algorithm,
        buffer: ReplayBuffer | RolloutBuffer,
        device: str,
    ) -> None:
        self.envs, self.algorithm, self.buffer, self.device = envs, algorithm, buffer, device
        self.obs: ArrayObs = envs.reset()[0]
        self.agent = Agent(
            self._explore,
            envs.num_envs,
            Reading(history=wants_of(algorithm).history),
            act_steps=envs.act_steps,
            deterministic=True,  # an algorithm draws its own noise
        )
        # A replay buffer forms histories when it is sampled; a rollout is learned from as it is.
        self._whole = bool(algorithm.rollout_steps) and wants_of(algorithm).history > 1
        self._seen: ArrayObs = self.obs
        self._warmup = False
        self._aux: dict[str, Tensor] = {}
        self.episodes = 0
        self.last_return = 0.0
        self.last_success = 0.0

    def step(self, *, warmup: bool) -> int:
        """Execute one chunk in every environment; return the environment steps really taken.

        Raises:
            TrimtabError: if the simulator gives an observation or a reward that is not finite.
        """
        self._warmup = warmup
        chunk = self.agent.act(self.obs)
        next_obs, reward, terminated, truncated, info = self.envs.step(chunk)
        ended = terminated | truncated

        def true_last(final: Array, following: Array) -> Array:
            return np.where(ended.reshape(-1, *[1] * (final.ndim - 1)), final, following)

        reached = tree_map(true_last, info["final_obs"], next_obs)
        parts = reached.values() if isinstance(reached, Mapping) else (reached,)
        if not all(np.isfinite(part).all() for part in parts):
            raise TrimtabError(f"{self.envs.id} gave an observation that is not finite")
        if not np.isfinite(reward).all():
            raise TrimtabError(f"{self.envs.id} gave a reward that is not finite")
        before, after = self.obs, reached
        if self._whole:

            def shifted(seen: Array, last: Array) -> Array:
                return np.concatenate([seen[:, 1:], last[:, None]], axis=1)

            before, after = self._seen, tree_map(shifted, self._seen, reached)
        self.buffer.add(
            before,
            chunk,
            reward,
            after,
            terminated,
            truncated,
            {name: value.cpu() for name, value in self._aux.items()},
            info["steps"],
        )
        self.obs = next_obs
        if ended.any():
            self.agent.reset(np.flatnonzero(ended).tolist())
            final = info["final_info"]
            self.episodes += int(ended.sum())
            self.last_return = float(final["return"][ended].mean())
            self.last_success = float(final["success"][ended].mean()) if "success" in final else 0.0
        return int(info["steps"].sum())

    @torch.no_grad()
    def _explore(self, obs: ArrayObs, noise: Array) -> Array:
        """Return what the learner wants to try, and keep what it wants to be stored."""
        self._seen = obs
        there = tree_map(lambda part: torch.as_tensor(part, device=self.device), obs)
        action, aux = self.algorithm.explore(there, warmup=self._warmup)
        self._aux = dict(aux)
        chosen: Array = action.cpu().numpy()
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the environments' state and the books of finished episodes."""
        return {
            "envs": self.envs.state_dict(),
            "obs": self.obs,
            "agent": self.agent.state_dict(),
            "episodes": self.episodes,
            "last_return": self.last_return,
            "last_success": self.last_success,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        self.envs.load_state_dict(state["envs"])
        self.obs = state["obs"]
        self.agent.load_state_dict(state["agent"])
        self.episodes = int(state["episodes"])
        self.last_return = float(state["last_return"])
        self.last_success = float(state["last_success"])
