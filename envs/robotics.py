"""Gymnasium-Robotics' point mazes, and two of our own in which there are two ways to the goal.

A ball is pushed by a force in ``[-1, 1]^2``, 100 times a second (25 times in our own mazes),
through a maze of square cells of 1 m. The observation is ``[x, y, velocity x, velocity y, goal x,
goal y]`` (m, m/s), the reward 1.0 within 0.45 m of the goal and 0.0 elsewhere, and an episode ends
at the goal.

In ``PointMaze-TwoRoutes-v0`` a block stands between starts and goal, and the way round either side
is as long as the other; an action holds for 0.04 s, so that a chunk of eight commits to a side. In
``PointMaze-TwoRoutes-Blocked-v0`` the upper corridor is walled up at its far end: who knows only
that way has to be steered to the other.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, cast

import numpy as np

from trimtab.envs.mujoco_frames import mujoco_frames
from trimtab.envs.quiet import quiet
from trimtab.envs.spec import Family, RawEnv, Task
from trimtab.errors import TrimtabError

__all__ = [
    "CELL_SIZE",
    "FAMILY",
    "TWO_ROUTES_BLOCKED_MAP",
    "TWO_ROUTES_MAP",
    "cell_to_xy",
    "maze_map",
]

MazeMap = tuple[tuple[int | str, ...], ...]

CELL_SIZE = 1.0
"""Side of a maze cell in metres."""

TWO_ROUTES_MAP: MazeMap = (
    (1, 1, 1, 1, 1, 1, 1, 1),
    (1, 0, 0, 0, 0, 0, 0, 1),
    (1, 0, 0, 1, 1, 0, 0, 1),
    (1, "r", 0, 1, 1, 0, 0, 1),
    (1, "r", 0, 0, 1, "g", 0, 1),
    (1, "r", 0, 1, 1, 0, 0, 1),
    (1, 0, 0, 1, 1, 0, 0, 1),
    (1, 0, 0, 0, 0, 0, 0, 1),
    (1, 1, 1, 1, 1, 1, 1, 1),
)
"""1 is a wall, 0 is free, "r" a start, "g" the goal; row 0 has the greatest y.

The block between starts and goal has a pocket that faces the starts, and each way round is taken
from all of them: who averages the two ways drives into the pocket.
"""

TWO_ROUTES_BLOCKED_MAP: MazeMap = (
    TWO_ROUTES_MAP[0],
    (1, 0, 0, 0, 1, 0, 0, 1),
    *TWO_ROUTES_MAP[2:],
)
"""The same, with the upper corridor closed at its far end."""

_OWN_MAPS = {
    "PointMaze-TwoRoutes-v0": TWO_ROUTES_MAP,
    "PointMaze-TwoRoutes-Blocked-v0": TWO_ROUTES_BLOCKED_MAP,
}
_OWN_NOISE = 0.3  # of a cell: starts and goals vary, and stay clear of the walls
_OWN_REPEAT = 4  # steps of the 100 Hz maze for each action: control at 25 Hz

# Gymnasium-Robotics' maps by task, as it registers them (there, the task goes on at the goal).
_STOCK_MAPS = {
    "PointMaze-UMaze-v3": ("U_MAZE", 300),
    "PointMaze-Medium-v3": ("MEDIUM_MAZE", 600),
    "PointMaze-Large-v3": ("LARGE_MAZE", 800),
}


def maze_map(task: str) -> MazeMap:
    """Return the rows of cells of a point maze, for drawing; see :func:`cell_to_xy`.

    Args:
        task: task name or whole id.

    Raises:
        TrimtabError: if there is no such maze.
    """
    task = task.removeprefix("robotics/")
    if task in _OWN_MAPS:
        return _OWN_MAPS[task]
    if task not in _STOCK_MAPS:
        known = ", ".join([*_OWN_MAPS, *_STOCK_MAPS])
        raise TrimtabError(f"no maze named {task!r}; there are {known}")
    with quiet():
        from gymnasium_robotics.envs.maze import maps

        return tuple(tuple(row) for row in getattr(maps, _STOCK_MAPS[task][0]))


def cell_to_xy(cells: MazeMap, row: float, column: float) -> tuple[float, float]:
    """Return the centre (x, y) in metres of a cell; the maze's middle is the origin."""
    x = (column + 0.5 - len(cells[0]) / 2) * CELL_SIZE
    y = (len(cells) / 2 - row - 0.5) * CELL_SIZE
    return x, y


def _build(task: str, *, render: bool) -> RawEnv:
    own = task in _OWN_MAPS
    repeat = _OWN_REPEAT if own else 1
    cells = [list(row) for row in maze_map(task)]
    with quiet():
        import gymnasium
        from gymnasium_robotics.envs.maze import maze_v4
        from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

        env = _construct(PointMazeEnv, maze_v4, cells, continuing=not own, render=render)
        if own:
            env.position_noise_range = _OWN_NOISE

    class _FlatPointMaze(gymnasium.Env[Any, Any]):
        """The maze with its dictionary of observations laid out as one array of six."""

        def __init__(self) -> None:
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float64)
            self.action_space = env.action_space
            self.model = env.model
            self.frame_skip = repeat * env.point_env.frame_skip
            self.obs_parts = {
                "observation": (0, 1, 2, 3),
                "achieved_goal": (0, 1),
                "desired_goal": (4, 5),
            }

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            obs, info = env.reset(seed=seed, options=options)
            return np.concatenate((obs["observation"], obs["desired_goal"])), info

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            for _ in range(repeat):
                obs, reward, terminated, truncated, info = env.step(action)
                if terminated or truncated:
                    break
            flat = np.concatenate((obs["observation"], obs["desired_goal"]))
            return flat, reward, terminated, truncated, info

        def render(self) -> Any:
            return env.render()

        def close(self) -> None:
            env.close()

    return _FlatPointMaze()


def _construct(
    maker: Any, module: Any, cells: list[list[int | str]], *, continuing: bool, render: bool
) -> Any:
    """Construct the maze with its model's file in a folder of its own, removed afterwards.

    Gymnasium-Robotics writes the file beside a temporary folder under a name made of the time
    alone, and leaves it there: two processes may read each other's maze.
    """
    with tempfile.TemporaryDirectory(prefix="trimtab-maze-") as folder:
        original = module.tempfile
        module.tempfile = cast(Any, _PrivateTemporaryFiles(folder))
        try:
            return maker(
                maze_map=cells,
                reward_type="sparse",
                continuing_task=continuing,
                render_mode="rgb_array" if render else None,
            )
        finally:
            module.tempfile = original


class _PrivateTemporaryFiles:
    """Stands for the module ``tempfile`` while a maze is constructed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def TemporaryDirectory(self) -> tempfile.TemporaryDirectory[str]:  # noqa: N802
        return tempfile.TemporaryDirectory(dir=os.path.realpath(self._folder))


FAMILY = Family(
    name="robotics",
    install="trimtab[robotics]",
    packages=("mujoco", "gymnasium", "gymnasium-robotics"),
    tasks={
        **{
            name: Task(100, "success", tags=("navigation", "goal", "sparse", "two-routes"))
            for name in _OWN_MAPS
        },
        **{
            name: Task(steps, "success", tags=("navigation", "goal", "sparse"))
            for name, (_, steps) in _STOCK_MAPS.items()
        },
    },
    build=_build,
    frames=mujoco_frames,
)
