"""Gymnasium-Robotics' mazes for a ball and an ant, and two in which there are two ways to the goal.

A ball is pushed by a force in ``[-1, 1]^2``, 100 times a second (25 times in our own mazes),
through a maze of square cells of 1 m. The observation is ``[x, y, velocity x, velocity y, goal x,
goal y]`` (m, m/s). In the ant mazes, with cells of 4 m, Gymnasium's Ant-v5 walks, 20 actions a
second; the observation is ``[x, y]``, the 105 numbers of Ant-v5, and ``[goal x, goal y]``, and an
ant that has fallen over goes on.

The reward is 1.0 within 0.45 m of the goal and 0.0 elsewhere; in ``Dense`` tasks it is
``exp(-distance)``. Gymnasium-Robotics' mazes go on at the goal, as they are registered, so that a
return counts the steps there; with ``terminate_on_success`` an episode ends at the goal, as it does
in D4RL's ant mazes. In our own mazes it always does.

In ``PointMaze-TwoRoutes-v0`` a block stands between starts and goal, and the way round either side
is as long as the other; an action holds for 0.04 s, so that a chunk of eight commits to a side. In
``PointMaze-TwoRoutes-Blocked-v0`` the upper corridor is walled up at its far end: a policy
that knows only that way has to be steered to the other. ``two_doors.py`` draws the closed corridor
anew in each episode. With ``cost=upper`` both have a cost, beside the reward: 1 for each action
that ends above the block, so that the upper way is the dearer one. With ``dense=true`` the reward
of an action is how much nearer it brings the ball (``nearer.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

import gymnasium
import numpy as np

from trimtab.envs.core.private_files import private_temporary_files
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import RawEnv, Task
from trimtab.envs.families.robotics.goals import FlatGoalEnv, registered
from trimtab.envs.families.robotics.nearer import NearerEnv
from trimtab.errors import TrimtabError

__all__ = [
    "ANT_CELL_SIZE",
    "ANT_MAZES",
    "CELL_SIZE",
    "OWN_MAZES",
    "OWN_REPEAT",
    "POINT_MAZES",
    "TWO_ROUTES_BLOCKED_MAP",
    "TWO_ROUTES_MAP",
    "build_ant_maze",
    "build_own_maze",
    "build_point_maze",
    "cell_to_xy",
    "maze_map",
    "point_maze_of",
    "with_walls",
]

MazeMap = tuple[tuple[int | str, ...], ...]

CELL_SIZE = 1.0
"""Side of a point maze's cell in metres."""

ANT_CELL_SIZE = 4.0
"""Side of an ant maze's cell in metres."""

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
from all of them: the mean of the two ways leads into the pocket.
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

_COSTS = ("none", "upper")
_DENSE = (False, True)

OWN_REPEAT = 4
"""Steps of the 100 Hz maze for each action in our own mazes: control at 25 Hz."""

# Gymnasium-Robotics' name of the map, and the horizons that it registers for ball and ant.
_STOCK_MAPS = {
    "UMaze": ("U_MAZE", 300, 700),
    "Open": ("OPEN", 300, 700),
    "Open_Diverse_G": ("OPEN_DIVERSE_G", 300, 700),
    "Open_Diverse_GR": ("OPEN_DIVERSE_GR", 300, 700),
    "Medium": ("MEDIUM_MAZE", 600, 1000),
    "Medium_Diverse_G": ("MEDIUM_MAZE_DIVERSE_G", 600, 1000),
    "Medium_Diverse_GR": ("MEDIUM_MAZE_DIVERSE_GR", 600, 1000),
    "Large": ("LARGE_MAZE", 800, 1000),
    "Large_Diverse_G": ("LARGE_MAZE_DIVERSE_G", 800, 1000),
    "Large_Diverse_GR": ("LARGE_MAZE_DIVERSE_GR", 800, 1000),
}
_REWARDS = {"": ("sparse",), "Dense": ()}  # suffix of the name, and tags

_POINT_TAGS = ("navigation", "goal")
_ANT_TAGS = ("navigation", "locomotion", "goal")

OWN_MAZES: Mapping[str, Task] = {
    name: Task(
        100,
        "success",
        tags=(*_POINT_TAGS, "sparse", "two-routes"),
        options={"cost": _COSTS, "dense": _DENSE},
    )
    for name in _OWN_MAPS
}
POINT_MAZES: Mapping[str, Task] = {
    f"PointMaze_{name}{suffix}-v3": Task(horizon, "success", tags=(*_POINT_TAGS, *tags))
    for name, (_, horizon, _) in _STOCK_MAPS.items()
    for suffix, tags in _REWARDS.items()
}
# D4RL's table for ant mazes is that of an episode which ends at the goal: not the one of these.
ANT_MAZES: Mapping[str, Task] = {
    f"AntMaze_{name}{suffix}-v5": Task(horizon, "success", tags=(*_ANT_TAGS, *tags))
    for name, (_, _, horizon) in _STOCK_MAPS.items()
    for suffix, tags in _REWARDS.items()
}
_MAP_NAMES = {
    task.format(f"{name}{suffix}"): map_name
    for task in ("PointMaze_{}-v3", "AntMaze_{}-v5")
    for name, (map_name, _, _) in _STOCK_MAPS.items()
    for suffix in _REWARDS
}


def with_walls(cells: MazeMap, places: Iterable[tuple[int, int]]) -> MazeMap:
    """Return a map with some of its cells walled up.

    Args:
        cells: the map.
        places: row and column of each of those cells.
    """
    closed = [list(row) for row in cells]
    for row, column in places:
        closed[row][column] = 1
    return tuple(tuple(row) for row in closed)


def maze_map(task: str) -> MazeMap:
    """Return the rows of cells of a maze, for drawing; see :func:`cell_to_xy`.

    Args:
        task: task name or whole id.

    Raises:
        TrimtabError: if there is no such maze.
    """
    task = task.removeprefix("robotics/")
    if task in _OWN_MAPS:
        return _OWN_MAPS[task]
    if task not in _MAP_NAMES:
        known = ", ".join([*_OWN_MAPS, *_MAP_NAMES])
        raise TrimtabError(f"no maze named {task!r}; there are {known}")
    with quiet():
        from gymnasium_robotics.envs.maze import maps

        return tuple(tuple(row) for row in getattr(maps, _MAP_NAMES[task]))


def cell_to_xy(
    cells: MazeMap, row: float, column: float, cell_size: float = CELL_SIZE
) -> tuple[float, float]:
    """Return the centre (x, y) in metres of a cell; the maze's middle is the origin."""
    x = (column + 0.5 - len(cells[0]) / 2) * cell_size
    y = (len(cells) / 2 - row - 0.5) * cell_size
    return x, y


def build_own_maze(
    task: str, *, render: bool, cost: str = _COSTS[0], dense: bool = False
) -> RawEnv:
    """Build one of our own point mazes.

    Args:
        task: its name.
        render: whether pictures are wanted.
        cost: ``upper``: an action costs 1 where it ends in the corridor above the block.
        dense: whether the reward is how much nearer an action brings the ball.
    """
    with quiet():
        env = point_maze_of(_OWN_MAPS[task], render=render)
        flat = FlatGoalEnv(
            env,
            achieved_at=0,
            frame_skip=env.point_env.frame_skip,
            repeat=OWN_REPEAT,
            cost=_in_upper_corridor if cost in _COSTS[1:] else None,
        )
    return NearerEnv(flat, _OWN_MAPS[task]) if dense else flat


def _in_upper_corridor(obs: Any) -> float:
    """Return 1 for an observation of our own mazes in the corridor above the block, else 0."""
    left, _ = cell_to_xy(TWO_ROUTES_MAP, 1, 2.5)
    right, middle = cell_to_xy(TWO_ROUTES_MAP, 1, 4.5)
    return float(left < obs[0] < right and obs[1] > middle - CELL_SIZE / 2)


def point_maze_of(cells: MazeMap, *, render: bool, ends: bool = True) -> Any:
    """Return Gymnasium-Robotics' point maze over a map of our own.

    Args:
        cells: the map.
        render: whether pictures are wanted.
        ends: whether an episode ends at the goal.
    """
    with private_temporary_files():
        env = _point_maze(render)(
            maze_map=[list(row) for row in cells],
            reward_type="sparse",
            continuing_task=not ends,
            render_mode="rgb_array" if render else None,
        )
    env.position_noise_range = _OWN_NOISE
    return env


def _point_maze(render: bool) -> Any:
    """Return Gymnasium-Robotics' class, or without pictures one that is faster made."""
    from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

    if render:
        return PointMazeEnv

    class Unseen(PointMazeEnv):  # type: ignore[misc]
        """A maze without its sky: a picture of 800 by 4800 pixels, which takes most of its time."""

        @property
        def tmp_xml_file_path(self) -> str:
            return str(self._model_path)

        @tmp_xml_file_path.setter
        def tmp_xml_file_path(self, path: str) -> None:
            self._model_path = path
            model = ElementTree.parse(path)
            for assets in model.iter("asset"):
                for sky in assets.findall("texture[@type='skybox']"):
                    assets.remove(sky)
            model.write(path)

    return Unseen


def build_point_maze(task: str, *, render: bool) -> RawEnv:
    """Build one of Gymnasium-Robotics' point mazes."""
    with quiet():
        with private_temporary_files():
            import gymnasium_robotics  # noqa: F401  (registers its tasks)

            mode = "rgb_array" if render else None
            env = _point_maze(render)(**gymnasium.spec(task).kwargs, render_mode=mode)
        return FlatGoalEnv(env, achieved_at=0, frame_skip=env.point_env.frame_skip)


def build_ant_maze(task: str, *, render: bool) -> RawEnv:
    """Build one of Gymnasium-Robotics' ant mazes; the ant's own generator has nothing to draw."""
    # All of the maze from above; Gymnasium's camera stands near the ant, inside the walls.
    cells = max(map(len, (maze_map(task), maze_map(task)[0])))
    camera = {
        "lookat": np.zeros(3),
        "distance": 1.25 * ANT_CELL_SIZE * cells,
        "azimuth": 90.0,
        "elevation": -80.0,
    }
    with quiet():
        with private_temporary_files():
            env = registered(task, render=render, default_camera_config=camera)
        return FlatGoalEnv(env, achieved_at=None, frame_skip=env.ant_env.frame_skip)
