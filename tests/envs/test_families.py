"""Each simulator family against the simulator itself."""

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.envs.core.quiet import quiet
from trimtab.envs.families.robotics.mazes import (
    TWO_ROUTES_BLOCKED_MAP,
    TWO_ROUTES_MAP,
    cell_to_xy,
    maze_map,
)
from trimtab.envs.registry import list_envs, make
from trimtab.errors import TrimtabError

GYM = [id for id in list_envs() if id.startswith("gym/")]
OPEN, BLOCKED = "robotics/PointMaze-TwoRoutes-v0", "robotics/PointMaze-TwoRoutes-Blocked-v0"


@pytest.mark.parametrize("id", GYM)
def test_gym_is_gymnasium(id: str) -> None:
    with quiet():
        theirs = gymnasium.make(id.removeprefix("gym/"))
    ours = make(id)
    assert theirs.spec is not None and theirs.spec.max_episode_steps == ours.horizon
    theirs.action_space.seed(1)
    expected, _ = theirs.reset(seed=5)
    obs, _ = ours.reset(seed=5)
    np.testing.assert_array_equal(obs, expected.astype(np.float32))
    for _ in range(25):
        action = theirs.action_space.sample()
        expected, reward, terminated, truncated, _ = theirs.step(action)
        row = ours.step(action)
        np.testing.assert_array_equal(row[0], expected.astype(np.float32))
        assert row[1:4] == (reward, terminated, truncated)
        if terminated:
            break


@pytest.mark.parametrize("task", ["push-v3", "door-lock-v3", "basketball-v3", "coffee-pull-v3"])
def test_metaworld_is_metaworld(task: str) -> None:
    """A fresh simulator, told the same seed in Meta-World's own way, plays the same episode."""
    with quiet():
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE, ENV_CLS_MAP

        theirs: Any = ENV_CLS_MAP[task]()
        reference: Any = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-goal-observable"](seed=0)
    del theirs.sawyer_observation_space
    theirs._partially_observable = reference._partially_observable
    theirs._freeze_rand_vec, theirs.seeded_rand_vec, theirs._set_task_called = False, True, True
    ours = make(f"metaworld/{task}")
    assert ours.observation_space.shape == reference.observation_space.shape == (39,)
    theirs.seed(9)
    expected, _ = theirs.reset()
    obs, _ = ours.reset(seed=9)
    np.testing.assert_array_equal(obs, expected.astype(np.float32))
    generator = np.random.default_rng(0)
    for _ in range(10):
        action = generator.uniform(-1, 1, 4).astype(np.float32)
        expected, reward, _, _, info = theirs.step(action)
        row = ours.step(action)
        np.testing.assert_array_equal(row[0], expected.astype(np.float32))
        assert row[1] == float(reward)
        assert row[4]["success"] is bool(info["success"])


def test_metaworld_shows_its_goal_and_changes_it() -> None:
    env = make("metaworld/reach-v3")
    goals = [env.reset(seed=seed)[0][-3:] for seed in range(4)]
    assert all(np.abs(goal).sum() > 0 for goal in goals)
    assert len({goal.tobytes() for goal in goals}) == 4
    unseeded = {env.reset()[0][-3:].tobytes() for _ in range(3)}
    assert len(unseeded) == 3


def test_metaworld_episode_may_be_longer_than_its_own() -> None:
    env = make("metaworld/reach-v3", horizon=502)
    env.reset(seed=0)
    ends = [env.step(np.zeros(4, np.float32))[2:4] for _ in range(502)]
    assert ends[:-1] == [(False, False)] * 501 and ends[-1] == (False, True)


def _drive(id: str, row: float, seed: int) -> tuple[int, bool, float, bool]:
    """Follow the corridor at ``row`` at up to 4 m/s; return steps, terminated, reward, success."""
    env = make(id)
    obs, _ = env.reset(seed=seed)
    corners = [np.array(cell_to_xy(maze_map(id), row, column)) for column in (1.9, 5.1)]
    steps, ended = 0, False
    while not ended:
        while corners and np.linalg.norm(corners[0] - obs[:2]) < 0.25:
            corners.pop(0)
        way = (corners[0] if corners else obs[4:6]) - obs[:2]
        action = np.clip(4.0 * way / np.linalg.norm(way) - obs[2:4], -1, 1).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        steps, ended = steps + 1, terminated or truncated
    return steps, terminated, reward, info["success"]


UPPER, LOWER = 1.0, 7.0


@pytest.mark.parametrize("seed", range(3))
def test_both_routes_are_open_and_alike(seed: int) -> None:
    lengths = []
    for row in (UPPER, LOWER):
        steps, terminated, reward, success = _drive(OPEN, row, seed)
        assert terminated and success and reward == 1.0
        lengths.append(steps)
    assert all(40 < length < 75 for length in lengths)
    assert abs(lengths[0] - lengths[1]) < 20


@pytest.mark.parametrize("seed", range(3))
def test_blocked_maze_leaves_one_route(seed: int) -> None:
    assert _drive(BLOCKED, UPPER, seed) == (100, False, 0.0, False)
    assert _drive(BLOCKED, LOWER, seed) == _drive(OPEN, LOWER, seed)


def test_straight_at_the_goal_ends_in_the_pocket() -> None:
    env = make(OPEN)
    obs, _ = env.reset(seed=0)
    ended = False
    while not ended:
        way = obs[4:6] - obs[:2]
        action = np.clip(4.0 * way / np.linalg.norm(way) - obs[2:4], -1, 1).astype(np.float32)
        obs, _, terminated, ended, _ = env.step(action)
        assert not terminated
    row, column = 4, 3
    assert np.abs(obs[:2] - cell_to_xy(TWO_ROUTES_MAP, row, column)).max() < 0.5


def test_two_routes_maps_are_mirror_images_but_for_one_cell() -> None:
    assert tuple(reversed(TWO_ROUTES_MAP)) == TWO_ROUTES_MAP
    cells = [(r, c) for r in range(9) for c in range(8)]
    changed = [(r, c) for r, c in cells if TWO_ROUTES_MAP[r][c] != TWO_ROUTES_BLOCKED_MAP[r][c]]
    assert changed == [(1, 4)]


@pytest.mark.parametrize("id", [OPEN, BLOCKED, "robotics/PointMaze_UMaze-v3"])
def test_maze_map_is_where_the_walls_are(id: str) -> None:
    cells = maze_map(id)
    model = make(id).raw.unwrapped.model
    walls = {
        (r, c): cell_to_xy(cells, r, c)
        for r, row in enumerate(cells)
        for c, cell in enumerate(row)
        if cell == 1
    }
    assert model.ngeom == len(walls) + 2
    for (r, c), xy in walls.items():
        np.testing.assert_allclose(model.geom(f"block_{r}_{c}").pos[:2], xy)
    with pytest.raises(TrimtabError, match="no maze named"):
        maze_map("robotics/PointMaze-Nowhere-v0")


def test_mazes_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = make(OPEN)
    env.reset(seed=0)
    assert list(tmp_path.iterdir()) == []
    assert tempfile.tempdir == str(tmp_path)


def test_start_and_goal_vary_a_little() -> None:
    env = make(OPEN)
    rows = np.array([env.reset(seed=seed)[0] for seed in range(20)])
    cells = [(r, c) for r in range(9) for c in range(8)]
    for xy, letter in ((rows[:, :2], "r"), (rows[:, 4:], "g")):
        centres = np.array(
            [cell_to_xy(TWO_ROUTES_MAP, r, c) for r, c in cells if TWO_ROUTES_MAP[r][c] == letter]
        )
        away = np.abs(xy[:, None] - centres).max(axis=-1)  # [20, cells of that letter]
        assert away.min(axis=1).max() <= 0.3 + 1e-6
        assert set(away.argmin(axis=1)) == set(range(len(centres)))
        assert (xy.std(axis=0) > 0.06).all()
    np.testing.assert_array_equal(rows[:, 2:4], 0.0)


@pytest.mark.parametrize("terminate", [False, True])
def test_sparse_reward_and_end_on_success(terminate: bool) -> None:
    """A hand that moves straight to the goal and stays there."""
    env = make("metaworld/reach-v3", reward="sparse", terminate_on_success=terminate, horizon=150)
    obs, _ = env.reset(seed=0)
    rewards, successes = [], []
    for _ in range(150):
        action = np.append(np.clip(10 * (obs[-3:] - obs[:3]), -1, 1), 0).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        successes.append(info["success"])
        if terminated or truncated:
            break
    assert rewards == [1.0 if success else 0.0 for success in successes]
    assert successes[-1] and not successes[0]
    assert (terminated, truncated) == ((True, False) if terminate else (False, True))
    assert (sum(successes) == 1) == terminate
