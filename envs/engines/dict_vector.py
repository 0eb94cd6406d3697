"""Many environments whose observations are dictionaries of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab.envs.core.dict_observations import space_of, split
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.engines.episodes import Bools, EpisodeVectorEnv

__all__ = ["DictVectorEnv"]


class DictVectorEnv(gymnasium.vector.VectorWrapper):
    """Many environments whose observations, also ``final_obs``, are dictionaries of [N, ...].

    Args:
        env: the flat ones.
    """

    env: EpisodeVectorEnv

    def __init__(self, env: EpisodeVectorEnv) -> None:
        super().__init__(env)
        self.parts = env.obs_parts
        self.id, self.act_steps, self.horizon = env.id, env.act_steps, env.horizon
        self.discount, self.success_key = env.discount, env.success_key
        self.single_observation_space = space_of(self.parts)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    @property
    def active(self) -> Bools:
        """Which copies go on, [N]; see :class:`EpisodeVectorEnv`."""
        return self.env.active

    @property
    def env_spec(self) -> EnvSpec:
        """What is known about the environment."""
        return self.env.env_spec

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the exact state as arrays, as the flat environments do."""
        return self.env.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state, as the flat environments do."""
        self.env.load_state_dict(state)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode everywhere, as the flat environments do."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return split(obs, self.parts), infos

    def branch(self, source: NDArray[np.intp], share: NDArray[Any]) -> Any:
        """Let copies go on from states of others' episodes, as the flat environments do."""
        return split(self.env.branch(source, share), self.parts)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Apply ``actions`` [N, act_steps, A], as the flat environments do."""
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        infos["final_obs"] = split(infos["final_obs"], self.parts)
        return split(obs, self.parts), reward, terminated, truncated, infos
