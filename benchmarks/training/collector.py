"""Collect transitions: the method acts in the environments, a buffer stores what happens."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.training.device_collector import DeviceCollector
from trimtab.benchmarks.training.experience import batch_spec_of
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.torch_state import foreign_seed
from trimtab.datasets.sources.device_replay import DeviceReplayBuffer
from trimtab.datasets.sources.device_rollout import DeviceRolloutBuffer
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.dict_vector import DictVectorEnv
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.envs.engines.process_vector import ProcessVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.vector import make_vec, make_vec_elsewhere, simulator_device
from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.agent import Agent, PolicyInputs
from trimtab.policies.memory import state_parts
from trimtab.types import Tensor

VectorEnv = EpisodeVectorEnv | DictVectorEnv | ProcessVectorEnv
Array = NDArray[Any]


def make_training_envs(
    plan: Plan, foreign_code: AbstractContextManager[None]
) -> VectorEnv | TorchVectorEnv:
    """Make the environments that a run trains in, on its device if the simulator can.

    With ``overlap`` they live in another process, whose global generators of NumPy and torch are
    seeded as torch's are for foreign code in this one.

    Args:
        plan: the run's plan.
        foreign_code: guards the run's random states while they are made.
    """
    config, env = plan.config, plan.env
    if config["overlap"]:
        return make_vec_elsewhere(
            env.id,
            config["num_envs"],
            seed=config["seed"],
            global_seed=foreign_seed(config["seed"]),
            torch_threads=config["threads"],
            act_steps=plan.act_steps,
            observations=plan.observations,
            **env.options,
        )
    with foreign_code:
        return make_vec(
            env.id,
            config["num_envs"],
            seed=config["seed"],
            act_steps=plan.act_steps,
            device=simulator_device(env.id, config["device"], **env.options),
            observations=plan.observations,
            **env.options,
        )


def make_collector(
    envs: VectorEnv | TorchVectorEnv,
    algorithm: Algorithm,
    buffer: ReplayBuffer | RolloutBuffer | DeviceReplayBuffer | DeviceRolloutBuffer,
    device: str,
    foreign_code: AbstractContextManager[None],
) -> Collector | DeviceCollector:
    """Return what steps a run's environments, on a GPU if they are simulated there."""
    if isinstance(envs, TorchVectorEnv):
        assert not isinstance(buffer, RolloutBuffer)
        return DeviceCollector(envs, algorithm, buffer)
    assert not isinstance(buffer, DeviceReplayBuffer | DeviceRolloutBuffer)
    return Collector(envs, algorithm, buffer, device, foreign_code)


class Collector:
    """Steps the environments with the method's exploratory actions; stores transitions.

    Args:
        envs: the run's environments; they are reset here.
        algorithm: chooses the actions.
        buffer: takes one row for each executed chunk of each environment.
        device: where the method gets its observations.
        foreign_code: guards the run's random states around each call of the environments.
    """

    def __init__(
        self,
        envs: VectorEnv,
        algorithm: Algorithm,
        buffer: ReplayBuffer | RolloutBuffer,
        device: str,
        foreign_code: AbstractContextManager[None] | None = None,
    ) -> None:
        self.envs, self.algorithm, self.buffer, self.device = envs, algorithm, buffer, device
        self._foreign_code = foreign_code or contextlib.nullcontext()
        history = batch_spec_of(algorithm).history
        with self._foreign_code:
            self.obs: Any = envs.reset()[0]  # [N, O], or a mapping of parts
        assert envs.single_action_space.shape is not None
        self.agent = Agent(
            self._explore,
            envs.num_envs,
            self._inputs(history),
            act_steps=envs.single_action_space.shape[0],
            deterministic=True,  # a method draws its own noise
        )
        # A replay buffer builds histories when it is sampled; a rollout has to store them.
        self._stores_history = bool(algorithm.pace.rollout_steps) and history > 1
        self._keeps_state = bool(state_parts(algorithm.policy.spec.parts))
        self._history: Any = self.obs
        self._warmup = False
        self._chunk: Any = None  # the actions [N, act_steps, A] whose outcome is not stored yet
        self._aux: dict[str, Tensor] = {}
        self.episodes = 0
        self.last_return = 0.0
        self.last_success: float | None = 0.0  # None if the task defines none

    def _inputs(self, history: int) -> PolicyInputs:
        """Return what is read beside an observation: a history, or the state of a frozen base."""
        policy = self.algorithm.policy
        if not state_parts(policy.spec.parts):
            return PolicyInputs(history=history, every_tick=policy.spec.every_tick)
        return policy.inputs

    def step(self, *, warmup: bool) -> int:
        """Execute one chunk in every environment; return the steps taken.

        Episodes may end within a chunk.

        Raises:
            TrimtabError: if the simulator gives an observation or a reward that is not finite.
        """
        self.begin_step(warmup=warmup)
        return self.finish_step()

    def begin_step(self, *, warmup: bool) -> None:
        """Choose one chunk for every environment; those in another process begin to execute it."""
        if isinstance(self.buffer, RolloutBuffer) and not len(self.buffer):
            self._begin_rollout()
        self._warmup = warmup
        self._chunk = self.agent.act(self.obs)
        if isinstance(self.envs, ProcessVectorEnv):
            self.envs.begin_step(self._chunk)

    def _begin_rollout(self) -> None:
        """Restore the states that the method wants a rollout to start from."""
        branches = self.algorithm.branches()
        if branches is None:
            return
        assert not isinstance(self.envs, ProcessVectorEnv)  # ``overlap`` has no rollouts
        source, share = (part.cpu().numpy() for part in branches)
        with self._foreign_code:
            self.obs = self.envs.branch(source, share)

    def finish_step(self) -> int:
        """Store what came of the chunks that were begun; return the steps taken.

        Raises:
            TrimtabError: if the simulator gives an observation or a reward that is not finite.
        """
        chunk = self._chunk
        if isinstance(self.envs, ProcessVectorEnv):
            outcome = self.envs.finish_step()
        else:
            with self._foreign_code:
                outcome = self.envs.step(chunk)
        next_obs, reward, terminated, truncated, info = outcome
        ended = terminated | truncated
        observed = self._observed(next_obs, info["final_obs"], ended, reward)
        if self._keeps_state:
            before, after = self._history, self.agent.with_memories(observed)
        elif self._stores_history:
            before, after = self._history, tree_map(_append, self._history, observed)
        else:
            before, after = self.obs, observed
        self.buffer.add(
            before,
            chunk,
            reward,
            after,
            terminated,
            truncated,
            {name: value.cpu() for name, value in self._aux.items()},  # buffers are on the CPU
            info["steps"],
        )
        # In 32 bits, as a buffer stores rewards and a GPU gives them; MPS has no others.
        seen = (reward.astype(np.float32), terminated, ended)
        self.algorithm.on_transition(*(torch.as_tensor(part, device=self.device) for part in seen))
        self.obs = next_obs
        if ended.any():
            rows = np.flatnonzero(ended).tolist()
            self.agent.reset(rows)
            self.algorithm.on_episode_end(rows)
            final = info["final_info"]
            self.episodes += int(ended.sum())
            self.last_return = float(final["return"][ended].mean())
            success = final.get("success")  # a task may define none
            self.last_success = None if success is None else float(success[ended].mean())
        return int(info["steps"].sum())

    def episode_metrics(self) -> dict[str, float]:
        """Return the episodes finished so far, and the last ones' mean return and success."""
        if not self.episodes:
            return {}
        found = {"episodes": self.episodes, "train_return": self.last_return}
        return found if self.last_success is None else found | {"train_success": self.last_success}

    def _observed(self, next_obs: Any, final: Any, ended: Any, reward: Any) -> Any:
        """Return the next observations: of an ended episode its last one, not the reset's.

        Raises:
            TrimtabError: if an observation or a reward is not finite.
        """

        def choose(final_part: Array, next_part: Array) -> Array:
            shape = (-1, *[1] * (final_part.ndim - 1))
            return np.where(ended.reshape(shape), final_part, next_part)

        observed = tree_map(choose, final, next_obs)
        parts = observed.values() if isinstance(observed, Mapping) else (observed,)
        if not all(np.isfinite(part).all() for part in parts):
            raise TrimtabError(f"{self.envs.id} gave an observation that is not finite")
        if not np.isfinite(reward).all():
            raise TrimtabError(f"{self.envs.id} gave a reward that is not finite")
        return observed

    @torch.no_grad()
    def _explore(self, obs: Any, noise: Array) -> Any:
        """Return the method's exploratory action; keep its auxiliary values for the buffer.

        The agent calls this with the history, and with noise that is not used.
        """
        self._history = obs
        on_device = tree_map(lambda part: torch.as_tensor(part, device=self.device), obs)
        action, aux = self.algorithm.explore(on_device, warmup=self._warmup)
        self._aux = dict(aux)
        return action.cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return the environments' state and the counters of finished episodes."""
        return {
            "envs": self.envs.state_dict(),
            "obs": self.obs,
            "agent": self.agent.state_dict(),
            "episodes": self.episodes,
            "last_return": self.last_return,
            "last_success": self.last_success,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state``.

        Raises:
            TrimtabError: if the state is of simulations on a GPU, or of other environments.
        """
        if "read" in state:
            raise TrimtabError(
                "the run was saved with simulations on a GPU; resume it on a machine where JAX "
                "sees one, or start it again"
            )
        with self._foreign_code:
            self.envs.load_state_dict(state["envs"])
        self.obs = state["obs"]
        if "agent" in state:  # a checkpoint of an earlier version has none
            self.agent.load_state_dict(state["agent"])
        self.episodes = int(state["episodes"])
        self.last_return = float(state["last_return"])
        success = state["last_success"]
        self.last_success = None if success is None else float(success)


def _append(history: Array, last: Array) -> Array:
    """Return histories ``[N, K, ...]`` with one observation more and the oldest dropped."""
    return np.concatenate([history[:, 1:], last[:, None]], axis=1)
