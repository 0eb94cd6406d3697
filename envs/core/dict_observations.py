"""Observations as a dictionary of their parts, with goals apart from the rest.

Everything inside the suite is flat. A task says which entries of its flat observation are what
(``EnvSpec.obs_parts``), so that a dictionary holds the same numbers, and a part may share entries
with another: where a position is in the observation already, the achieved goal is read from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.spec import FloatArray
from trimtab.envs.core.task_env import TaskEnv

__all__ = ["DictEnv", "GoalDictEnv", "Parts", "dict_env", "space_of", "split"]

Parts = Mapping[str, tuple[int, ...]]
"""Names of parts, and the entries of the flat observation that they consist of, in order."""
DictObs = dict[str, FloatArray]


def split(obs: FloatArray, parts: Parts) -> DictObs:
    """Return the parts of flat observations [..., O] by name, each [..., its length]."""
    return {name: obs[..., list(entries)] for name, entries in parts.items()}


def space_of(parts: Parts) -> gymnasium.spaces.Dict:
    """Return the space of such a dictionary."""
    boxes: dict[str, gymnasium.Space[Any]] = {
        name: gymnasium.spaces.Box(-np.inf, np.inf, (len(entries),), np.float32)
        for name, entries in parts.items()
    }
    return gymnasium.spaces.Dict(boxes)


class DictEnv(gymnasium.Wrapper[Any, FloatArray, FloatArray, FloatArray]):
    """A single environment whose observations are dictionaries.

    Args:
        env: the flat one.
    """

    env: TaskEnv

    def __init__(self, env: TaskEnv) -> None:
        super().__init__(env)
        self.parts = env.obs_parts
        self.observation_space = space_of(self.parts)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[DictObs, dict[str, Any]]:
        """Start an episode. Returns the parts of its observation and info."""
        obs, info = self.env.reset(seed=seed, options=options)
        return split(obs, self.parts), info

    def step(self, action: FloatArray) -> tuple[DictObs, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return the parts of the observation and the rest as it is."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return split(obs, self.parts), reward, terminated, truncated, info


class GoalDictEnv(DictEnv):
    """One whose reward follows from the achieved and the desired goal, as relabelling needs it."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> NDArray[Any]:
        """Return what a step is worth that ends at ``achieved_goal``, as Gymnasium-Robotics does.

        It is the reward of the environment up to the rounding of goals to float32, which decides a
        sparse one only where the distance is the threshold itself.

        Args:
            achieved_goal: [..., G].
            desired_goal: [..., G].
            info: not used.

        Returns:
            [...].
        """
        assert self.env.goal_reward is not None
        return np.asarray(self.env.goal_reward(achieved_goal, desired_goal), np.float64)


def dict_env(env: TaskEnv) -> DictEnv:
    """Return the environment with dictionaries; ``compute_reward`` too where goals decide it."""
    return DictEnv(env) if env.goal_reward is None else GoalDictEnv(env)
