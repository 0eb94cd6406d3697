"""Plan a way through a maze cell by cell and follow it: the demonstrations of D4RL's point mazes.

Fu et al., 2020, "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", appendix: a planner
on the grid gives waypoints, a proportional-derivative controller follows them, with noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.settings import NonNegative

__all__ = ["MazePlanner", "shortest_path"]

Cell = tuple[int, int]
_WALL = 1
_STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0))


def shortest_path(
    cells: Sequence[Sequence[int | str]],
    start: Cell,
    goal: Cell,
    generator: np.random.Generator | None = None,
) -> list[Cell]:
    """Return the cells of a shortest way from ``start`` to ``goal``, both included.

    Args:
        cells: rows of the maze; 1 is a wall.
        start: (row, column).
        goal: (row, column).
        generator: chooses among ways of the same length; without it the first found is taken.

    Raises:
        TrimtabError: if there is no way.
    """
    steps = list(_STEPS)
    came_from: dict[Cell, Cell] = {start: start}
    waiting = deque([start])
    while waiting and goal not in came_from:
        cell = waiting.popleft()
        if generator is not None:
            generator.shuffle(steps)
        for row, column in steps:
            beside = (cell[0] + row, cell[1] + column)
            inside = 0 <= beside[0] < len(cells) and 0 <= beside[1] < len(cells[0])
            if inside and beside not in came_from and cells[beside[0]][beside[1]] != _WALL:
                came_from[beside] = cell
                waiting.append(beside)
    if goal not in came_from:
        raise TrimtabError(f"maze: there is no way from cell {start} to {goal}")
    path = [goal]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


class MazePlanner:
    """Follows a shortest way to the goal; reads Gymnasium-Robotics' point mazes.

    The observation is ``[x, y, velocity x, velocity y, goal x, goal y]`` (m, m/s), the action a
    force in ``[-1, 1]^2``.

    Args:
        task: not used.
        generator: decides the way, where there are several, and the noise.
        maze: name of the map among Gymnasium-Robotics' (``U_MAZE``, ``MEDIUM_MAZE``, ...).
        noise: standard deviation of the noise added to each force.
        noise_levels: instead of ``noise``, values of which each episode draws one: a mixture of
            competences.
        any_way: choose among the shortest ways by chance, so that the demonstrations have several
            modes; otherwise the same way is always taken.
        proportional: gain on the distance to the waypoint, per metre.
        derivative: gain on the velocity, per metre a second.
        reached: distance in metres at which the next waypoint takes over.

    Raises:
        TrimtabError: if there is no such map, or Gymnasium-Robotics is not installed.
    """

    name: ClassVar[str] = "maze_planner"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        maze: str,
        noise: NonNegative = 0.1,
        noise_levels: Sequence[NonNegative] = (),
        any_way: bool = True,
        proportional: float = 10.0,
        derivative: float = 1.0,
        reached: float = 0.35,
    ) -> None:
        try:
            from gymnasium_robotics.envs.maze import maps
        except ImportError as error:
            raise TrimtabError(
                "the maze recipe needs Gymnasium-Robotics: pip install 'trimtab[robotics]'"
            ) from error
        if not (maze.isidentifier() and hasattr(maps, maze)):
            raise TrimtabError(f"Gymnasium-Robotics has no maze {maze!r}, such as U_MAZE")
        self.cells: list[list[int | str]] = getattr(maps, maze)
        self.generator = generator
        self.noise = float(generator.choice(noise_levels)) if noise_levels else noise
        self.any_way, self.reached = any_way, reached
        self.gains = (proportional, derivative)
        self.route: list[NDArray[np.float64]] = []

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the force ``[2]`` toward the present waypoint."""
        position, velocity, goal = obs[:2], obs[2:4], obs[4:6]
        if not self.route:
            way = shortest_path(
                self.cells,
                self._cell(position),
                self._cell(goal),
                self.generator if self.any_way else None,
            )
            self.route = [*(self._centre(cell) for cell in way[1:-1]), np.asarray(goal, float)]
        while len(self.route) > 1 and np.linalg.norm(self.route[0] - position) < self.reached:
            self.route.pop(0)
        force = self.gains[0] * (self.route[0] - position) - self.gains[1] * velocity
        noise = self.noise * self.generator.standard_normal(2)
        noisy: NDArray[Any] = np.clip(force, -1, 1) + noise
        return noisy

    def _cell(self, position: NDArray[Any]) -> Cell:
        """Return the cell (row, column) of a position; cells are 1 m, the middle is the origin."""
        rows, columns = len(self.cells), len(self.cells[0])
        return (
            int(np.floor(rows / 2 - position[1])),
            int(np.floor(position[0] + columns / 2)),
        )

    def _centre(self, cell: Cell) -> NDArray[np.float64]:
        rows, columns = len(self.cells), len(self.cells[0])
        return np.array([cell[1] + 0.5 - columns / 2, rows / 2 - cell[0] - 0.5])
