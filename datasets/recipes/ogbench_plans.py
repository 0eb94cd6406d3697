"""What to do next in OGBench's scenes: one object and where it is to be, until the task is solved.

Each scene's plan looks at what is still unsolved and names one part: the oracle that moves such an
object, and the targets that OGBench tells an oracle in ``info`` where it collects data. Targets are
those of the task instead of random ones; a part that failed is simply found unsolved again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.datasets.recipes.lights_out import presses

__all__ = ["CubePlan", "Part", "Plan", "PlanFactory", "PuzzlePlan", "ScenePlan"]

Info = Mapping[str, Any]
Vector = NDArray[np.float64]

_BESIDE = 0.06
"""Cubes nearer than this (m, in the plane) to a place take it; a cube is 0.04 wide."""
_ROOM = 0.1
"""Distance (m) that a cube which was in the way keeps from cubes and goals."""
_TRIES = 1000
"""Places that are drawn for it."""
_OPEN = -0.16
"""Where the drawer's slide (m) is open; 0 is closed."""
_OPEN_ENOUGH = -0.12
"""Where a cube goes in (m), as OGBench has it."""
_LAID = 0.03
"""How near (m, in the plane) to the open drawer's middle a cube in it lies well."""


@dataclass(frozen=True)
class Part:
    """One object and where it is to be.

    Attributes:
        oracle: OGBench's oracle for such an object.
        target: what it reads of its target in ``info``.
    """

    oracle: Any
    target: dict[str, Any]


class Plan(Protocol):
    """Names the parts of a scene's task one after the other."""

    def next_part(self, info: Info) -> Part | None:
        """Return what to do next, or None if there is nothing.

        Args:
            info: what the scene tells of its objects now.
        """
        ...


PlanFactory = Callable[[Any, np.random.Generator], Plan]
"""Makes the plan of one episode of a scene, OGBench's environment; draws from the generator."""


class CubePlan:
    """Cubes, the lowest goals first; a cube that is in the way is put aside.

    Args:
        scene: OGBench's environment.
        generator: decides where cubes are put aside.
    """

    def __init__(self, scene: Any, generator: np.random.Generator) -> None:
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle

        self.scene, self.generator = scene, generator
        self.oracle = CubeMarkovOracle(env=scene)

    def next_part(self, info: Info) -> Part | None:
        """Return the cube to move next and whereto, or None; see :class:`Plan`."""
        solved = self.scene._compute_successes()
        numbers = range(len(solved))
        places = np.array([info[f"privileged/block_{i}_pos"] for i in numbers])
        goals = self.scene._data.mocap_pos[self.scene._cube_target_mocap_ids].copy()
        left = [i for i in numbers if not solved[i]]
        if not left:
            return None
        floor = min(goals[i][2] for i in left) + 0.01
        wanted = [i for i in left if goals[i][2] < floor]
        above = {i: _at(places, places[i], places[i][2] + 0.01, i) for i in wanted}
        there = {i: _at(places, goals[i], goals[i][2] - 0.02, i) for i in wanted}
        ready = [i for i in wanted if not above[i] and not there[i]]
        if ready:
            hand = info["proprio/effector_pos"]
            i = min(ready, key=lambda i: float(np.linalg.norm(places[i] - hand)))
            return Part(self.oracle, _cube_target(i, goals[i]))
        in_the_way = {j for i in wanted for j in (*above[i], *there[i])}
        highest = max(in_the_way, key=lambda j: (places[j][2], -j))
        aside = self._aside(np.concatenate((places, goals)))
        return None if aside is None else Part(self.oracle, _cube_target(highest, aside))

    def _aside(self, taken: Vector) -> Vector | None:
        """Return a place [3] on the table that is away from the ``taken`` ones [N, 3], if any."""
        for _ in range(_TRIES):
            place = np.append(self.generator.uniform(*self.scene._target_sampling_bounds), 0.02)
            if (np.linalg.norm((taken - place)[:, :2], axis=1) > _ROOM).all():
                return place
        return None


def _at(places: Vector, place: Vector, height: float, but: int) -> list[int]:
    """Return the cubes, but for one, that are in the plane at ``place`` and above ``height``."""
    near = np.linalg.norm((places - place)[:, :2], axis=1) < _BESIDE
    return [int(j) for j in np.flatnonzero(near & (places[:, 2] > height)) if j != but]


def _cube_target(number: int, place: Vector) -> dict[str, Any]:
    return {
        "privileged/target_block": number,
        "privileged/target_block_pos": place,
        "privileged/target_block_yaw": np.zeros(1),
    }


def _press(scene: Any, oracle: Any, number: int) -> Part:
    """Return the press of a button."""
    states, values = scene._cur_button_states, scene._num_button_states
    top = scene._data.site_xpos[scene._button_site_ids[number]].copy()
    target = {
        "privileged/target_button": number,
        "privileged/target_button_state": (states[number] + 1) % values,
        "privileged/target_button_top_pos": top,
    }
    return Part(oracle, target)


class PuzzlePlan:
    """Of the fewest buttons that solve the puzzle as it stands, the nearest.

    Args:
        scene: OGBench's environment.
        generator: not used.
    """

    def __init__(self, scene: Any, generator: np.random.Generator) -> None:
        from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle

        self.scene = scene
        self.oracle = ButtonMarkovOracle(env=scene, gripper_always_closed=True)

    def next_part(self, info: Info) -> Part | None:
        """Return the button to press next, or None; see :class:`Plan`."""
        differing = self.scene._cur_button_states != self.scene._target_button_states
        way = presses(self.scene._num_rows, self.scene._num_cols, differing)
        if way is None or not way.any():
            return None
        tops = self.scene._data.site_xpos[self.scene._button_site_ids]
        distances = np.linalg.norm((tops - info["proprio/effector_pos"])[:, :2], axis=1)
        return _press(self.scene, self.oracle, int(np.argmin(np.where(way, distances, np.inf))))


class ScenePlan:
    """The cube, then drawer and window, then their locks; what is locked is unlocked first.

    Args:
        scene: OGBench's environment.
        generator: not used.
    """

    def __init__(self, scene: Any, generator: np.random.Generator) -> None:
        from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle
        from ogbench.manipspace.oracles.markov.drawer_markov import DrawerMarkovOracle
        from ogbench.manipspace.oracles.markov.window_markov import WindowMarkovOracle

        self.scene = scene
        self.button, self.cube = ButtonMarkovOracle(env=scene), CubeMarkovOracle(env=scene)
        self.drawer, self.window = DrawerMarkovOracle(env=scene), WindowMarkovOracle(env=scene)

    def next_part(self, info: Info) -> Part | None:
        """Return what to move or press next, or None; see :class:`Plan`."""
        scene = self.scene
        (cube_solved,), buttons_solved, drawer_solved, window_solved = scene._compute_successes()
        if not cube_solved:
            part = self._next_of_cube(info)
            if part is not None:
                return part
        if not drawer_solved:
            return self._slide(info, "drawer", 0, self.drawer, scene._target_drawer_pos)
        if not window_solved:
            return self._slide(info, "window", 1, self.window, scene._target_window_pos)
        wrong = [i for i, solved in enumerate(buttons_solved) if not solved]
        return _press(scene, self.button, wrong[0]) if wrong else None

    def _next_of_cube(self, info: Info) -> Part | None:
        scene = self.scene
        goal = scene._data.mocap_pos[scene._cube_target_mocap_ids[0]].copy()
        into = goal[1] < scene._object_sampling_bounds[0][1]  # only the drawer is out there
        place = info["privileged/block_0_pos"]
        inside = scene._is_in_drawer(place)
        if (into or inside) and info["privileged/drawer_pos"][0] > _OPEN_ENOUGH:
            return self._slide(info, "drawer", 0, self.drawer, _OPEN)
        if into:
            goal = scene._drawer_center
            if inside and np.linalg.norm((place - goal)[:2]) < _LAID:
                return None  # the closing drawer takes it to its goal
        return Part(self.cube, _cube_target(0, goal))

    def _slide(self, info: Info, what: str, lock: int, oracle: Any, wanted: float) -> Part:
        """Return the way of the drawer or the window to ``wanted`` (m), or to its lock before."""
        if self.scene._cur_button_states[lock] == 0:
            return _press(self.scene, self.button, lock)
        axis = self.scene._data.joint(f"{what}_slide").xaxis
        place = info[f"privileged/{what}_handle_pos"]
        place = place + axis * (wanted - info[f"privileged/{what}_pos"][0])
        return Part(oracle, {f"privileged/target_{what}_handle_pos": place})
