"""A maze with two ways to the goal; one is closed, drawn in each episode, and a lamp says which.

The maze is that of ``PointMaze-TwoRoutes-v0`` (``mazes.py``), with a door at the far end of either
corridor. The observation is ``[x, y, velocity x, velocity y, goal x, goal y, lamp]``; the lamp is 1
or -1, drawn with equal chance when an episode starts, and stays.

In ``PointMaze-TwoDoors-v0`` the upper door is closed where the lamp is 1, the lower one where it is
-1. In ``PointMaze-TwoDoors-Open-v0`` both are open and the lamp means nothing: a policy from there
has seen the lamp and never had to look. No constant choice of a side solves the first, so that a
policy that is steered there has to be steered by what it sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import RawEnv, Task
from trimtab.envs.families.robotics.goals import FlatGoalEnv
from trimtab.envs.families.robotics.mazes import (
    OWN_REPEAT,
    TWO_ROUTES_MAP,
    MazeMap,
    point_maze_of,
    with_walls,
)

__all__ = ["DOORS", "TWO_DOORS", "build_two_doors", "map_by_lamp"]

_CLOSES = {"PointMaze-TwoDoors-v0": True, "PointMaze-TwoDoors-Open-v0": False}
TWO_DOORS: Mapping[str, Task] = {
    name: Task(100, "success", tags=("navigation", "goal", "sparse", "two-routes"))
    for name in _CLOSES
}
DOORS = {1: (1, 4), -1: (7, 4)}
"""Row and column of the door that a lamp of 1 or -1 stands for."""


def map_by_lamp(task: str, lamp: int) -> MazeMap:
    """Return the rows of cells of a maze as they are in episodes with a lamp of 1 or -1.

    Args:
        task: name of one of the two tasks, or whole id.
        lamp: 1 or -1.
    """
    closes = _CLOSES[task.removeprefix("robotics/")]
    return with_walls(TWO_ROUTES_MAP, [DOORS[lamp]] if closes else [])


class TwoDoorsEnv(FlatGoalEnv):
    """The maze as one array, with the lamp at its end.

    Args:
        env: the bare maze, both of its doors closed.
        closes: whether the lamp's door is closed; else both are open.
    """

    def __init__(self, env: Any, *, closes: bool) -> None:
        super().__init__(env, achieved_at=0, frame_skip=env.point_env.frame_skip, repeat=OWN_REPEAT)
        self._closes = closes
        self._lamp = 1
        size = 1 + max(entry for part in self.obs_parts.values() for entry in part)
        self.obs_parts["lamp"] = (size,)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size + 1,), np.float64)

    def _flat(self, obs: Any) -> Any:
        return np.append(super()._flat(obs), float(self._lamp))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode and draw its lamp. Returns the observation [O] and info."""
        obs, info = self._env.reset(seed=seed, options=options)
        self._lamp = 1 if self._env.np_random.integers(2) else -1
        for lamp, (row, column) in DOORS.items():
            self._set_door(f"block_{row}_{column}", closed=self._closes and lamp == self._lamp)
        return self._flat(obs), info

    def _set_door(self, name: str, *, closed: bool) -> None:
        """Let a block be passed through and not be seen, or stand as a wall."""
        block = self.model.geom(name)
        block.contype[:] = block.conaffinity[:] = int(closed)
        block.rgba[3] = float(closed)


def build_two_doors(task: str, *, render: bool) -> RawEnv:
    """Build one of the two tasks."""
    with quiet():
        env = point_maze_of(with_walls(TWO_ROUTES_MAP, DOORS.values()), render=render)
        return TwoDoorsEnv(env, closes=_CLOSES[task])
