"""A dense reward for point mazes: how much nearer an action brings the ball to the nearest goal.

The distance (m) is that of the shortest way round the walls, and there is 1 more at the goal, where
the episode ends. So the sum over an episode does not depend on the way, and no detour earns
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import scipy  # which imports its parts when they are used; every process that lists tasks is here
from numpy.typing import NDArray

from trimtab.envs.families.robotics.goals import FlatGoalEnv

__all__ = ["NearerEnv", "Ways"]

Places = NDArray[np.float64]
_POINTS = 11
"""Points of the grid along the side of a cell; odd, so that a cell has one in its middle."""


class Ways:
    """Lengths of the shortest ways through a maze, over a grid of eleven points a cell.

    A way goes from a point to one of its eight neighbours, so it is up to 8 percent longer than in
    a straight line; the same in mirrored directions.

    Args:
        cells: the maze's map, in which 1 is a wall; a cell has a side of 1 m.
    """

    def __init__(self, cells: Sequence[Sequence[int | str]]) -> None:
        free = np.array([[cell != 1 for cell in row] for row in cells])
        self._free = free = free.repeat(_POINTS, axis=0).repeat(_POINTS, axis=1)
        height, width = free.shape
        self._x = (np.arange(width) + 0.5 - width / 2) / _POINTS
        self._y = (height / 2 - np.arange(height) - 0.5) / _POINTS
        number = np.arange(free.size).reshape(free.shape)
        edges = []
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            beside = np.roll(number, (-down, -right), axis=(0, 1))  # the rim is wall: none wraps
            both = free & np.roll(free, (-down, -right), axis=(0, 1))
            length = np.full(both.sum(), np.hypot(down, right) / _POINTS)
            edges.append((number[both], beside[both], length))
        first, second, lengths = (np.concatenate(part) for part in zip(*edges, strict=True))
        size = free.size, free.size
        self._graph = scipy.sparse.coo_array((lengths, (first, second)), shape=size).tocsr()

    def to(self, goals: Places) -> Callable[[Places], float]:
        """Return a function of a place ``[2]``: the way in metres to the nearest of ``[G, 2]``.

        It is interpolated between the grid's points. A wall has the value of the free point that is
        nearest to it.
        """
        rows = np.abs(self._y[:, None] - goals[:, 1]).argmin(0)
        columns = np.abs(self._x[:, None] - goals[:, 0]).argmin(0)
        starts = np.ravel_multi_index((rows, columns), self._free.shape)
        length = scipy.sparse.csgraph.dijkstra(
            self._graph, directed=False, indices=starts, min_only=True
        )
        nearest = scipy.ndimage.distance_transform_edt(
            ~self._free, return_distances=False, return_indices=True
        )
        everywhere = length.reshape(self._free.shape)[tuple(nearest)]
        at = scipy.interpolate.RegularGridInterpolator((self._y[::-1], self._x), everywhere[::-1])
        return lambda place: float(at(place[::-1])[0])


class NearerEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A maze of ours whose reward is how much nearer an action brings the ball, and 1 at the goal.

    It has no ``goal_reward``: a reward follows from two places, not from one.

    Args:
        env: the maze.
        cells: its map.
    """

    def __init__(self, env: FlatGoalEnv, cells: Sequence[Sequence[int | str]]) -> None:
        super().__init__(env)
        self.model, self.frame_skip, self.costly = env.model, env.frame_skip, env.costly
        self.obs_parts = env.obs_parts
        self._goal = list(env.obs_parts["desired_goal"])
        self._ways = Ways(cells)
        self._way: Callable[[Places], float] = lambda place: 0.0
        self._left = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._way = self._ways.to(obs[None, self._goal])
        self._left = self._way(obs[:2])
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        obs, _, terminated, truncated, info = self.env.step(action)
        left = self._way(obs[:2])
        reward, self._left = self._left - left + float(terminated), left
        return obs, reward, terminated, truncated, info
