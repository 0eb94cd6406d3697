"""The ledge beside a pit: its post-decision states, its gusts, its rewards and its ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.envs.families.robotics.gusts import GOAL, GUST, PIT, ROOM, build_gusts, in_pit
from trimtab.envs.families.robotics.mazes import cell_to_xy
from trimtab.envs.registry import make

LEDGE = "robotics/PointMaze-Gusts-v0"


def along(height: float) -> Any:
    """Return actions that go along the pit at a height (m) and then down to the goal."""

    def act(obs: Any) -> Any:
        x, y = obs[:2]
        target = np.array([x + 1.0, height]) if x < GOAL[0] - 0.5 else GOAL
        if x < -2.6 and y < height - 0.3:
            target = np.array([-3.0, height])
        return np.clip(2 * (target - obs[:2]) - 0.3 * obs[2:4], -1, 1)

    return act


def play(env: Any, act: Any, seed: int) -> tuple[np.ndarray[Any, Any], list[float], bool, Any]:
    """Return an episode's observations, its rewards, whether it ended, its last info."""
    obs, info = env.reset(seed=seed)
    seen, rewards, ended = [obs], [], False
    while not ended and len(rewards) < 100:
        obs, reward, ended, _, info = env.step(np.float32(act(obs)))
        seen.append(obs)
        rewards.append(float(reward))
    return np.stack(seen), rewards, ended, info


def test_a_gust_alone_stands_between_the_post_decision_state_and_the_next_one() -> None:
    env = make(LEDGE)
    assert env.obs_parts == {"observation": (0, 1, 2, 3), "post_decision": (4, 5, 6, 7)}
    gusts = []
    for seed in range(20):
        seen, *_ = play(env, along(0.5), seed)
        np.testing.assert_array_equal(seen[0, :4], seen[0, 4:])
        np.testing.assert_array_equal(seen[:, :2], seen[:, 4:6])  # a gust changes velocities
        gusts.append(seen[1:, 2:4] - seen[1:, 6:8])
    found = np.concatenate(gusts)
    assert len(found) > 500
    assert np.abs(found.mean(0)).max() < 4 * GUST / np.sqrt(len(found))
    assert found.std(0) == pytest.approx(GUST, rel=4 / np.sqrt(2 * len(found)))
    assert abs(np.corrcoef(found.T)[0, 1]) < 4 / np.sqrt(len(found))


def test_a_decision_leads_to_its_post_decision_state_without_chance() -> None:
    # Where the ball starts with the same place and velocity, so it is before the first gust.
    one, other = (build_gusts("PointMaze-Gusts-v0", render=False) for _ in range(2))
    for env in (one, other):
        env.reset(seed=3)
    other._env.np_random.standard_normal(7)  # another gust is the next one
    (first, *_), (second, *_) = (env.step(np.float32([1.0, 0.4])) for env in (one, other))
    np.testing.assert_array_equal(first[4:], second[4:])
    assert np.abs(first[2:4] - second[2:4]).min() > 1e-3


def test_the_seed_decides_the_gusts() -> None:
    env = make(LEDGE)
    once, again, different = (play(env, along(0.5), seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once[:10], different[:10])


def test_the_reward_is_the_way_round_the_pit_and_falling_ends_it() -> None:
    env = make(LEDGE)
    ends = {}
    for height in (-0.9, 0.5):
        played = [play(env, along(height), seed) for seed in range(12)]
        for seen, rewards, ended, info in played:
            place = seen[-1, :2]
            assert ended and info["success"] == (np.linalg.norm(GOAL - place) <= 0.45)
            assert info["success"] != in_pit(*place)
            if info["success"]:
                assert 6.0 < sum(rewards) < 8.0  # way and 1
            else:
                assert rewards[-1] < -0.5
        ends[height] = [info["success"] for *_, info in played]
    assert np.mean(ends[0.5]) == 1.0 and np.mean(ends[-0.9]) < 0.6  # the edge is the worse way


def test_the_pit_is_its_cells() -> None:
    for row in range(1, 5):
        for column in range(1, 8):
            x, y = cell_to_xy(ROOM, row, column)
            for away in (-0.49, 0.49):
                assert in_pit(x + away, y) is in_pit(x, y + away) is ((row, column) in PIT)
