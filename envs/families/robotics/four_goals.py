"""A room with several equally good goals, for what a learner from nothing keeps of them.

In ``PointMaze-FourGoals-v0`` the ball starts in the middle of an open room, give or take 0.3 m, and
there is a goal 2 m away in the direction of either axis: four best actions. The observation is
``[x, y, velocity x, velocity y]`` (m, m/s), an action holds for 0.04 s, the reward is that of
``nearer.py``. With ``closed=right`` (up, left, down) that goal is walled up and counts no more: a
policy of the open room that kept several goals still reaches one, and a policy that kept this one
alone does not. (Haarnoja et al., "Reinforcement Learning with Deep Energy-Based
Policies", arXiv 1702.08165, have such a room for the same question.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import RawEnv, Task
from trimtab.envs.families.robotics.mazes import (
    OWN_REPEAT,
    MazeMap,
    cell_to_xy,
    point_maze_of,
    with_walls,
)
from trimtab.envs.families.robotics.nearer import Ways

__all__ = ["FOUR_GOALS", "GOALS", "FourGoalsEnv", "build_four_goals"]

ROOM: MazeMap = (
    (1, 1, 1, 1, 1, 1, 1, 1, 1),
    (1, "g", 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, "r", 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 1, 1, 1, 1, 1, 1, 1, 1),
)
"""As in ``mazes.py``; Gymnasium-Robotics needs a goal of its own, which counts for nothing here.

It stands where nothing is ever walled up: without it a goal would be drawn, and a seed would begin
an episode elsewhere.
"""
GOAL_CELLS = {"right": (4, 6), "up": (2, 4), "left": (4, 2), "down": (6, 4)}
"""Row and column of each goal."""
GOALS = np.array([cell_to_xy(ROOM, *cell) for cell in GOAL_CELLS.values()])
"""The goals [4, 2] in metres."""
REACHED = 0.45
"""Distance in metres within which Gymnasium-Robotics' point mazes are solved."""

_CLOSED = ("none", *GOAL_CELLS)
FOUR_GOALS: Mapping[str, Task] = {
    "PointMaze-FourGoals-v0": Task(
        100, "success", tags=("navigation", "four-goals"), options={"closed": _CLOSED}
    )
}


class FourGoalsEnv(gymnasium.Env[Any, Any]):
    """The room with four goals, or those of them that are open.

    ``info`` of a step that reaches a goal has its number in ``goal``, counted from the right one
    against the clock.

    Args:
        env: the bare maze, which does not end by itself.
        cells: its map.
        goals: those that are open, by their numbers.
    """

    def __init__(self, env: Any, cells: MazeMap, goals: Sequence[int]) -> None:
        self._env, self._open = env, list(goals)
        self._way = Ways(cells).to(GOALS[self._open])
        self._left = 0.0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = env.action_space
        self.model = env.model
        self.frame_skip = OWN_REPEAT * env.point_env.frame_skip

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        obs, _ = self._env.reset(seed=seed, options=options)
        found = obs["observation"]
        self._left = self._way(found[:2])
        return found, {"success": False}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        for _ in range(OWN_REPEAT):
            obs = self._env.step(action)[0]["observation"]
        left = self._way(obs[:2])
        away = np.linalg.norm(GOALS[self._open] - obs[:2], axis=1)
        reached = bool(away.min() <= REACHED)
        reward, self._left = self._left - left + float(reached), left
        info = {"success": reached, **({"goal": self._open[int(away.argmin())]} if reached else {})}
        return obs, reward, reached, False, info

    def render(self) -> Any:
        """Return a picture [H, W, 3]."""
        return self._env.render()

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()


def build_four_goals(task: str, *, render: bool, closed: str = _CLOSED[0]) -> RawEnv:
    """Build the room.

    Args:
        task: its name.
        render: whether pictures are wanted.
        closed: the goal that is walled up, or ``none``.
    """
    cells = with_walls(ROOM, [cell for name, cell in GOAL_CELLS.items() if name == closed])
    goals = [number for number, name in enumerate(GOAL_CELLS) if name != closed]
    with quiet():
        env = point_maze_of(cells, render=render, ends=False)
    env.model.site("target").rgba[3] = 0.0  # that of Gymnasium-Robotics is not seen
    return FourGoalsEnv(env, cells, goals)
