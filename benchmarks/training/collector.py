"""Gather transitions: environments on one side, a learner and its buffer on the other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.training.experience import wants_of
from trimtab.benchmarks.training.plan import Plan
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.dict_vector import DictVectorEnv
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.vector import make_vec, simulator_device
from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.agent import Agent, Reading
from trimtab.types import Tensor

VectorEnv = EpisodeVectorEnv | DictVectorEnv | TorchVectorEnv
Array = NDArray[Any]


def training_envs(plan: Plan, others: AbstractContextManager[None]) -> VectorEnv:
    """Return the environments that a run gathers in, on its device where they can be.

    Args:
        plan: what the run is made of.
        others: around what makes them.
    """
    config, env = plan.config, plan.env
    with others:
        return make_vec(
            env.id,
            config["num_envs"],
            seed=config["seed"],
            act_steps=plan.act_steps,
            device=simulator_device(env.id, config["device"], **env.options),
            observations=plan.observations,
            **env.options,
        )


class Collector:
    """Steps the environments with what the learner wants to try, and stores what came of it.

    Args:
        envs: the run's environments, in numpy arrays or torch tensors; they are reset here.
        algorithm: the learner.
        buffer: one row for each executed chunk of each environment.
        device: where observations are given to the learner.
        others: around each call of the environments.

    Raises:
        TrimtabError: if the learner reads a history, and the simulations are on a GPU.
    """

    def __init__(
        self,
        envs: VectorEnv,
        algorithm: Algorithm,
        buffer: ReplayBuffer | RolloutBuffer,
        device: str,
        others: AbstractContextManager[None] | None = None,
    ) -> None:
        self.envs, self.algorithm, self.buffer, self.device = envs, algorithm, buffer, device
        self._others = others or contextlib.nullcontext()
        with self._others:
            self.obs: Any = envs.reset()[0]  # [N, O], an array or a tensor, or parts
        self._tensors = isinstance(envs, TorchVectorEnv)
        history = wants_of(algorithm).history
        assert envs.single_action_space.shape is not None
        if self._tensors and history > 1:
            raise TrimtabError(f"history={history}: needs simulations on the CPU; use device=cpu")
        self.agent = Agent(
            self._explore,
            envs.num_envs,
            Reading(history=history),
            act_steps=envs.single_action_space.shape[0],
            deterministic=True,  # an algorithm draws its own noise
        )
        # A replay buffer forms histories when it is sampled; a rollout is learned from as it is.
        self._whole = bool(algorithm.pace.rollout_steps) and history > 1
        self._seen: Any = self.obs
        self._warmup = False
        self._aux: dict[str, Tensor] = {}
        self.episodes = 0
        self.last_return = 0.0
        self.last_success: float | None = 0.0

    def step(self, *, warmup: bool) -> int:
        """Execute one chunk in every environment; return the environment steps really taken.

        Raises:
            TrimtabError: if the simulator gives an observation or a reward that is not finite.
        """
        self._warmup = warmup
        chunk: Any = self.agent.act(self.obs)
        with self._others:
            next_obs, reward, terminated, truncated, info = self.envs.step(chunk)
        reached = self._reached(next_obs, info["final_obs"], terminated | truncated, reward)
        before, after = self.obs, reached
        if self._whole:
            before, after = self._seen, tree_map(_shifted, self._seen, reached)
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
        ended = _array(terminated | truncated)
        if ended.any():
            rows = np.flatnonzero(ended).tolist()
            self.agent.reset(rows)
            self.algorithm.ended(rows)
            final = {name: _array(values) for name, values in info["final_info"].items()}
            self.episodes += int(ended.sum())
            self.last_return = float(final["return"][ended].mean())
            success = final.get("success")  # which a task may lack
            self.last_success = None if success is None else float(success[ended].mean())
        return int(info["steps"].sum())

    def books(self) -> dict[str, float]:
        """Return what there is to log of finished episodes: their number, the last ones' scores."""
        if not self.episodes:
            return {}
        books = {"episodes": self.episodes, "train_return": self.last_return}
        return books if self.last_success is None else books | {"train_success": self.last_success}

    def _reached(self, next_obs: Any, final: Any, ended: Any, reward: Any) -> Any:
        """Return what was really observed next: where an episode ended, its last observation."""
        library: Any = torch if self._tensors else np

        def chosen(last: Any, following: Any) -> Any:
            return library.where(ended.reshape(-1, *[1] * (last.ndim - 1)), last, following)

        reached = tree_map(chosen, final, next_obs)
        parts = reached.values() if isinstance(reached, Mapping) else (reached,)
        if not all(library.isfinite(part).all() for part in parts):
            raise TrimtabError(f"{self.envs.id} gave an observation that is not finite")
        if not library.isfinite(reward).all():
            raise TrimtabError(f"{self.envs.id} gave a reward that is not finite")
        return reached

    @torch.no_grad()
    def _explore(self, obs: Any, noise: Array) -> Any:
        """Return what the learner wants to try, and keep what it wants to be stored."""
        self._seen = obs
        there = tree_map(lambda part: torch.as_tensor(part, device=self.device), obs)
        action, aux = self.algorithm.explore(there, warmup=self._warmup)
        self._aux = dict(aux)
        return action if self._tensors else action.cpu().numpy()

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
        with self._others:
            self.envs.load_state_dict(state["envs"])
        self.obs = state["obs"]
        if "agent" in state:  # earlier versions knew no histories
            self.agent.load_state_dict(state["agent"])
        self.episodes = int(state["episodes"])
        self.last_return = float(state["last_return"])
        success = state["last_success"]
        self.last_success = None if success is None else float(success)


def _shifted(seen: Array, last: Array) -> Array:
    """Return a history ``[N, K, ...]`` with one more observation, without its oldest."""
    return np.concatenate([seen[:, 1:], last[:, None]], axis=1)


def _array(values: Array | Tensor) -> Array:
    return values.cpu().numpy() if isinstance(values, Tensor) else values
