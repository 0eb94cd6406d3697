"""A ledge beside a pit, along which gusts push the ball: a task whose chance has a step of its own.

In ``PointMaze-Gusts-v0`` the ball starts at one end of a pit, give or take 0.3 m, and the goal is 6
m away at the other end. An action holds for 0.04 s. Then a gust adds a velocity drawn from N(0,
:data:`GUST`^2) (m/s) in each direction. So a decision leads first, without chance, to a
post-decision state, and the gust from there to the next state. The observation is ``[x, y,
velocity x, velocity y]`` (m, m/s), and the same of the post-decision state that it came from: entry
4 on is the part ``post_decision``. As an episode starts, both are equal.

The reward of an action is how much shorter it makes the way round the pit (m), and 1 more at the
goal, where the episode ends. A ball in the pit ends it too, for a reward of -1. The short way is
along the edge, and how far from it pays depends on the gusts. (Wind that pushes towards a cliff is
in Sutton and Barto, "Reinforcement Learning", examples 6.5 and 6.6.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Task
from trimtab.envs.families.robotics.mazes import (
    OWN_REPEAT,
    MazeMap,
    cell_to_xy,
    point_maze_of,
    with_walls,
)
from trimtab.envs.families.robotics.nearer import Ways

__all__ = ["GUST", "GUSTS", "GustsEnv", "build_gusts", "in_pit"]

ROOM: MazeMap = (
    (1, 1, 1, 1, 1, 1, 1, 1, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 0, 1),
    (1, "r", 0, 0, 0, 0, 0, "g", 1),
    (1, 1, 1, 1, 1, 1, 1, 1, 1),
)
"""As in ``mazes.py``."""
PIT = [(4, column) for column in range(2, 7)]
"""Row and column of each cell of the pit, which has no walls."""
GOAL = np.array(cell_to_xy(ROOM, 4, 7))
"""The goal in metres."""
REACHED = 0.45
"""Distance in metres within which Gymnasium-Robotics' point mazes are solved."""
GUST = 1.0
"""Standard deviation of what a gust adds to either velocity, in metres a second."""

GUSTS: Mapping[str, Task] = {"PointMaze-Gusts-v0": Task(100, "success", tags=("navigation",))}


def in_pit(x: float, y: float) -> bool:
    """Return whether a place in metres is in the pit."""
    (left, top), (right, _) = cell_to_xy(ROOM, 3.5, 1.5), cell_to_xy(ROOM, 3.5, 6.5)
    return left < x < right and y < top


class GustsEnv(gymnasium.Env[Any, Any]):
    """The ledge, its pit and its gusts.

    Args:
        env: the bare maze, which does not end by itself.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._way = Ways(with_walls(ROOM, PIT)).to(GOAL[None])
        self._left = 0.0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float64)
        self.action_space = env.action_space
        self.obs_parts = {"observation": (0, 1, 2, 3), "post_decision": (4, 5, 6, 7)}
        self.model = env.model
        self.frame_skip = OWN_REPEAT * env.point_env.frame_skip

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        obs, _ = self._env.reset(seed=seed, options=options)
        found = obs["observation"]
        self._left = self._way(found[:2])
        return np.concatenate([found, found]), {"success": False}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        for _ in range(OWN_REPEAT):
            post = self._env.step(action)[0]["observation"]
        gust = GUST * self._env.np_random.standard_normal(2)
        self._env.point_env.data.qvel[:] += gust
        left = self._way(post[:2])
        reached = bool(np.linalg.norm(GOAL - post[:2]) <= REACHED)
        fallen = in_pit(*post[:2])
        reward, self._left = self._left - left + float(reached) - float(fallen), left
        after = np.concatenate([post[:2], post[2:] + gust, post])
        return after, reward, reached or fallen, False, {"success": reached}

    def render(self) -> Any:
        """Return a picture [H, W, 3]."""
        return self._env.render()

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()


def build_gusts(task: str, *, render: bool) -> GustsEnv:
    """Build the ledge.

    Args:
        task: its name.
        render: whether pictures are wanted.
    """
    with quiet():
        return GustsEnv(point_maze_of(ROOM, render=render, ends=False))
