"""Gymnasium-Robotics' kitchen, in which a Franka arm completes subtasks in any order.

Gupta et al., 2019, "Relay Policy Learning: Solving Long-Horizon Tasks via Imitation and
Reinforcement Learning". Nine joint velocities are set 12.5 times a second. The observation of 59
numbers holds positions and velocities of arm and things, with noise; the goals are the same in
every episode and not part of it, and neither is which subtasks have been completed before.

As Gymnasium-Robotics registers it, the reward of a step is the number of subtasks completed in it,
a completed one is removed and never pays again, and an episode ends when all are completed, which
is what success means. ``FrankaKitchen-v1`` has all seven subtasks; the other two tasks have four
each, those of D4RL's ``kitchen-complete`` and ``kitchen-partial``, and of its ``kitchen-mixed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import RawEnv, Task

__all__ = ["KITCHENS", "KITCHEN_SUBTASKS", "build_kitchen"]

# D4RL's two kitchens: a return counts completed subtasks, so that its table rests on no engine.
_D4RL_SUBTASKS = {
    "FrankaKitchen-MicrowaveKettleLightSlider-v1": (
        "microwave",
        "kettle",
        "light switch",
        "slide cabinet",
    ),
    "FrankaKitchen-MicrowaveKettleBurnerLight-v1": (
        "microwave",
        "kettle",
        "bottom burner",
        "light switch",
    ),
}
_D4RL = {"d4rl": (0.0, 4.0)}

KITCHEN_SUBTASKS: Mapping[str, tuple[str, ...]] = {
    "FrankaKitchen-v1": (
        "bottom burner",
        "top burner",
        "light switch",
        "slide cabinet",
        "hinge cabinet",
        "microwave",
        "kettle",
    ),
    **_D4RL_SUBTASKS,
}
"""The subtasks of each task, by Gymnasium-Robotics' names."""

KITCHENS: Mapping[str, Task] = {
    name: Task(
        280,
        "success",
        score_references=_D4RL if name in _D4RL_SUBTASKS else {},
        tags=("manipulation", "sparse"),
    )
    for name in KITCHEN_SUBTASKS
}


class _FlatKitchen(gymnasium.Env[Any, Any]):
    """The kitchen without the dictionaries of goals, which are constant, and with success.

    Args:
        env: the bare kitchen.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space = env.observation_space["observation"]
        self.action_space = env.action_space
        self.model = env.model
        self.frame_skip = env.robot_env.frame_skip

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        # Gymnasium-Robotics' lists come from a set, in another order in every process, and one of
        # them is emptied later on.
        named = {name: sorted(subtasks) for name, subtasks in info.items()}
        return {**named, "success": len(info["episode_task_completions"]) == len(self._env.goal)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [59] and info."""
        obs, info = self._env.reset(seed=seed)
        return obs["observation"], self._info(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [9]; return observation [59], reward, terminated, truncated, info."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs["observation"], reward, terminated, truncated, self._info(info)

    def render(self) -> Any:
        """Return a picture [H, W, 3]."""
        return self._env.render()

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()


def build_kitchen(task: str, *, render: bool) -> RawEnv:
    """Build the kitchen with the subtasks of a task."""
    with quiet():
        from gymnasium_robotics.envs.franka_kitchen import KitchenEnv

        return _FlatKitchen(
            KitchenEnv(
                tasks_to_complete=list(KITCHEN_SUBTASKS[task]),
                render_mode="rgb_array" if render else None,
            )
        )
