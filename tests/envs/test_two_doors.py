"""The maze of which one door is closed: drawn in each episode, told by the lamp, else as it was."""

from typing import Any

import numpy as np
import pytest

from trimtab.datasets.recipes.waypoints import WaypointController
from trimtab.envs.registry import make

DOORS, OPEN = "robotics/PointMaze-TwoDoors-v0", "robotics/PointMaze-TwoDoors-Open-v0"
UPPER = [[-0.7, 2.9], [0.8, 3.0], [1.5, 0.0]]
LOWER = [[x, -y] for x, y in UPPER]
SEEDS = range(8)


def drive(env: Any, route: list[list[float]], seed: int) -> tuple[float, bool, Any]:
    """Drive one episode along a route; return its lamp, its success and where it ended."""
    controller = WaypointController("", np.random.default_rng(seed), routes=[route], noise=0.0)
    obs, _ = env.reset(seed=seed)
    lamp, ended = obs[6], False
    while not ended:
        obs, _, terminated, truncated, info = env.step(controller.act(obs).astype(np.float32))
        assert obs[6] == lamp
        ended = terminated or truncated
    return float(lamp), bool(info["success"]), obs[:2]


def test_the_lamp_tells_which_door_is_closed() -> None:
    env = make(DOORS)
    lamps = set()
    for seed in SEEDS:
        lamp, upper, stopped = drive(env, UPPER, seed)
        _, lower, _ = drive(env, LOWER, seed)
        assert (upper, lower) == (lamp == -1, lamp == 1)
        if not upper:
            assert stopped[0] < 1 and stopped[1] > 2  # before the upper door
        lamps.add(lamp)
    assert lamps == {-1.0, 1.0}


def test_the_lamp_means_nothing_where_both_are_open() -> None:
    env = make(OPEN)
    drives = [drive(env, route, seed) for seed in SEEDS for route in (UPPER, LOWER)]
    assert {lamp for lamp, *_ in drives} == {-1.0, 1.0}
    assert all(success for _, success, _ in drives)


@pytest.mark.parametrize("seed", SEEDS)
def test_starts_and_goals_are_those_of_the_maze_with_two_ways(seed: int) -> None:
    here, _ = make(DOORS).reset(seed=seed)
    there, _ = make("robotics/PointMaze-TwoRoutes-v0").reset(seed=seed)
    np.testing.assert_array_equal(here[:6], there)
    assert make(DOORS).obs_parts["lamp"] == (6,)


def test_an_episode_leaves_no_door_closed_behind() -> None:
    """The same seed after any other one plays the same episode."""
    env = make(DOORS)
    first = [drive(env, UPPER, seed)[1] for seed in SEEDS]
    assert [drive(env, UPPER, seed)[1] for seed in reversed(SEEDS)] == first[::-1]
