"""Gymnasium-Robotics' tasks as it registers them, and their dictionaries laid out as one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

__all__ = ["FlatGoalEnv", "registered"]


def registered(task: str, *, render: bool, **options: Any) -> Any:
    """Make a task that Gymnasium-Robotics registers, bare: no checkers, no time limit.

    Args:
        task: its id there.
        render: whether its ``render()`` is going to be called.
        options: what its constructor is given besides.
    """
    import gymnasium_robotics  # noqa: F401  (registers its tasks)

    mode = "rgb_array" if render else None
    return gymnasium.make(task, render_mode=mode, **options).unwrapped


class FlatGoalEnv(gymnasium.Env[Any, Any]):
    """A goal environment whose observation holds every number once.

    The order is ``observation, desired_goal`` where the achieved goal is part of the observation,
    and ``achieved_goal, observation, desired_goal`` where it is not.

    Args:
        env: the bare goal environment; it has ``model``.
        achieved_at: index in ``observation`` from which on the achieved goal stands, bit for bit;
            None where it is not in there.
        frame_skip: steps of physics for each step of ``env``.
        repeat: steps of ``env`` for each action, fewer where it ends before.
        cost: what an action costs by the observation [O] after it; None: there are no costs.
    """

    def __init__(
        self,
        env: Any,
        *,
        achieved_at: int | None,
        frame_skip: int,
        repeat: int = 1,
        cost: Callable[[Any], float] | None = None,
    ) -> None:
        self._env, self._cost, self.costly = env, cost, cost is not None
        self._repeat = repeat
        first = ("achieved_goal",) if achieved_at is None else ()
        self._order = (*first, "observation", "desired_goal")
        self.obs_parts: dict[str, tuple[int, ...]] = {}
        size = 0
        for name in self._order:
            length = env.observation_space[name].shape[0]
            self.obs_parts[name] = tuple(range(size, size + length))
            size += length
        if achieved_at is not None:
            length = env.observation_space["achieved_goal"].shape[0]
            self.obs_parts["achieved_goal"] = tuple(range(achieved_at, achieved_at + length))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = env.action_space
        self.model = env.model
        self.frame_skip = repeat * frame_skip

    def _flat(self, obs: Any) -> Any:
        return np.concatenate([obs[name] for name in self._order])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        obs, info = self._env.reset(seed=seed, options=options)
        return self._flat(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        for _ in range(self._repeat):
            obs, reward, terminated, truncated, info = self._env.step(action)
            if terminated or truncated:
                break
        if self._cost is not None:
            info["cost"] = self._cost(self._flat(obs))
        return self._flat(obs), reward, terminated, truncated, info

    def goal_reward(self, achieved: Any, desired: Any) -> Any:
        """Return the rewards [...] of achieved goals [..., G] where others are desired."""
        return self._env.compute_reward(
            np.asarray(achieved, np.float64), np.asarray(desired, np.float64), {}
        )

    def render(self) -> Any:
        """Return a picture [H, W, 3]."""
        return self._env.render()

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()
