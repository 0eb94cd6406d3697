"""Mazes with several equally good ways: their dense reward, and the goals that are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trimtab.envs.families.robotics.four_goals import GOALS, ROOM
from trimtab.envs.families.robotics.mazes import TWO_ROUTES_BLOCKED_MAP, TWO_ROUTES_MAP
from trimtab.envs.families.robotics.nearer import Ways
from trimtab.envs.registry import make

FOUR = "robotics/PointMaze-FourGoals-v0"
SIDES = ((1, 0), (0, 1), (-1, 0), (0, -1))


def play(env: Any, act: Callable[[Any], Any], seed: int) -> tuple[list[Any], float, bool, Any]:
    """Return an episode's observations, its sum of rewards, whether it ended, its last info."""
    obs, info = env.reset(seed=seed)
    seen, total = [obs], 0.0
    for _ in range(100):
        obs, reward, terminated, truncated, info = env.step(np.float32(act(obs)))
        seen.append(obs)
        total += reward
        if terminated or truncated:
            break
    return seen, total, terminated, info


def test_ways_in_an_open_room_are_those_of_eight_neighbours() -> None:
    way = Ways(ROOM).to(GOALS)
    for place in np.random.default_rng(0).uniform(-3, 3, (50, 2)):
        away = np.abs(GOALS - place)
        eight = (away.max(1) - away.min(1) + np.sqrt(2) * away.min(1)).min()
        assert way(place) == pytest.approx(eight, abs=0.16)  # the grid is 0.09 m fine


def test_ways_go_round_walls_and_mirrored_places_are_as_far() -> None:
    goal = np.array([[1.5, 0.0]])
    open_way, blocked = Ways(TWO_ROUTES_MAP).to(goal), Ways(TWO_ROUTES_BLOCKED_MAP).to(goal)
    for place in np.random.default_rng(1).uniform((-2.8, -1.4), (-2.2, 1.4), (20, 2)):
        # At least to a corner of the block, along it and to the goal in straight lines.
        corner = np.array([-1.0, np.copysign(2.5, place[1])])
        least = np.linalg.norm(place - corner) + 2.0 + np.linalg.norm([0.5, 2.5])
        assert least - 0.2 < open_way(place) < 1.09 * least + 0.2
        assert open_way(place) == pytest.approx(open_way(place * [1, -1]), abs=0.02)
        below = np.array([place[0], -abs(place[1])])
        assert blocked(below) == pytest.approx(open_way(below), abs=0.02)
        assert blocked(below * [1, -1]) > open_way(below) + 0.01


@pytest.mark.parametrize("goal", range(4))
def test_four_goals_are_equally_good_and_the_reward_is_the_way_that_is_gained(goal: int) -> None:
    env = make(FOUR)
    way = Ways(ROOM).to(GOALS)
    seen, total, ended, info = play(env, lambda obs: SIDES[goal], seed=0)
    assert ended and info["success"] and info["goal"] == goal
    assert np.linalg.norm(seen[-1][:2] - GOALS[goal]) <= 0.45
    assert total == pytest.approx(way(seen[0][:2]) - way(seen[-1][:2]) + 1.0, abs=1e-5)
    assert 1.8 < total < 3.2 and 6 < len(seen) < 16


@pytest.mark.parametrize("goal", range(4))
def test_a_closed_goal_is_not_reached_and_attracts_nothing(goal: int) -> None:
    env = make(FOUR, closed=("right", "up", "left", "down")[goal])
    _, total, ended, info = play(env, lambda obs: SIDES[goal], seed=0)
    assert not ended and not info["success"] and total < 0.0
    for other in {*range(4)} - {goal}:
        _, _, ended, info = play(env, lambda obs, other=other: SIDES[other], seed=0)
        assert ended and info["goal"] == other


def test_a_seed_begins_alike_whichever_goal_is_closed() -> None:
    starts = [
        [make(FOUR, closed=closed).reset(seed=seed)[0] for seed in range(3)]
        for closed in ("none", "right", "up", "left", "down")
    ]
    np.testing.assert_array_equal(starts, [starts[0]] * 5)
    assert len(np.unique(np.array(starts[0])[:, 0])) == 3


def follow(side: int) -> Callable[[Any], Any]:
    """Return actions that go round the block above (1) or below it (-1)."""
    points = [np.array(point) for point in ((-1.5, 3.0 * side), (1.5, 3.0 * side), (1.5, 0.0))]

    def act(obs: Any) -> Any:
        if len(points) > 1 and np.linalg.norm(obs[:2] - points[0]) < 0.4:
            points.pop(0)
        return np.clip(points[0] - obs[:2] - 0.3 * obs[2:4], -1, 1)

    return act


def test_both_ways_round_the_block_are_worth_the_same() -> None:
    env = make("robotics/PointMaze-TwoRoutes-v0", dense=True)
    (up, above, ended_up, _), (down, below, ended_down, _) = (
        play(env, follow(side), seed=5) for side in (1, -1)
    )
    assert ended_up and ended_down
    assert up[len(up) // 2][1] > 1 and down[len(down) // 2][1] < -1
    # The sum is what is gained of the way, whichever way was taken.
    assert above == pytest.approx(below, abs=0.3) and above > 6
    assert env.goal_reward is None


def test_the_dense_reward_leaves_the_maze_as_it_is() -> None:
    plain, dense = (
        make("robotics/PointMaze-TwoRoutes-v0", **given) for given in ({}, {"dense": True})
    )
    (seen, *_), (same, *_) = (play(env, lambda obs: (0.3, 1.0), seed=2) for env in (plain, dense))
    np.testing.assert_array_equal(np.stack(seen), np.stack(same))
