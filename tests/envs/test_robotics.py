"""Every task of Gymnasium-Robotics against Gymnasium-Robotics, and what is ours in them."""

import re
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.envs.core.quiet import quiet
from trimtab.envs.families.robotics.four_goals import FOUR_GOALS
from trimtab.envs.families.robotics.gusts import GUSTS
from trimtab.envs.families.robotics.kitchen import KITCHEN_SUBTASKS
from trimtab.envs.families.robotics.mazes import OWN_MAZES
from trimtab.envs.families.robotics.two_doors import TWO_DOORS
from trimtab.envs.registry import get_spec, list_tasks, make

TASKS = {
    id.removeprefix("robotics/"): task
    for id, task in list_tasks().items()
    if id.startswith("robotics/")
    and id.removeprefix("robotics/") not in {*OWN_MAZES, *TWO_DOORS, *FOUR_GOALS, *GUSTS}
}
STEPS = 20


def _theirs(task: str) -> Any:
    with quiet():
        import gymnasium_robotics  # noqa: F401

        if task in KITCHEN_SUBTASKS:
            subtasks = list(KITCHEN_SUBTASKS[task])
            name, more = "FrankaKitchen-v1", {"tasks_to_complete": subtasks}
            return gymnasium.make(name, disable_env_checker=True, **more)
        return gymnasium.make(task, disable_env_checker=True)


def _same(flat: Any, parts: Any, expected: Any) -> None:
    """Compare what Gymnasium-Robotics returns with the flat observation, in float64."""
    if not isinstance(expected, dict):
        expected = {"observation": expected}
    for name, entries in parts.items():
        np.testing.assert_array_equal(flat[list(entries)], expected[name], err_msg=name)
    assert {entry for entries in parts.values() for entry in entries} == set(range(len(flat)))


@pytest.mark.parametrize("task", TASKS)
def test_robotics_is_gymnasium_robotics(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # their mazes leave files behind
    ours, theirs = make(f"robotics/{task}"), _theirs(task)
    assert theirs.spec.max_episode_steps == ours.horizon
    action_space = ours.action_space
    assert isinstance(action_space, gymnasium.spaces.Box)
    np.testing.assert_array_equal(action_space.low, theirs.action_space.low)
    np.testing.assert_array_equal(action_space.high, theirs.action_space.high)
    expected, _ = theirs.reset(seed=5)
    flat, _ = ours.raw.reset(seed=5)
    _same(flat, ours.obs_parts, expected)
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        action = generator.uniform(action_space.low, action_space.high).astype(np.float32)
        expected, reward, terminated, _, info = theirs.step(action)
        flat, *row, named = ours.raw.step(action)
        _same(flat, ours.obs_parts, expected)
        assert row == [reward, terminated, False]
        assert bool(named[ours.success_key]) == bool(info.get(ours.success_key, False))
    ours.close()
    theirs.close()


def test_every_task_of_these_kinds_is_ours() -> None:
    with quiet():
        import gymnasium_robotics  # noqa: F401
    kinds = r"Fetch\w+-v4|PointMaze_\w+-v3|AntMaze_\w+-v5|AdroitHand\w+-v1|FrankaKitchen-v1"
    theirs = {id for id in gymnasium.registry if re.fullmatch(kinds, id)}
    own = set(KITCHEN_SUBTASKS) - {"FrankaKitchen-v1"}
    assert len(theirs) == 57 and set(TASKS) == theirs | own


def test_tags_and_parts_agree() -> None:
    for task, declared in TASKS.items():
        dense = re.search("Dense|Adroit(?!.*Sparse)", task)
        assert ("sparse" in declared.tags) == (dense is None)
    assert make("robotics/FetchReach-v4").obs_parts["achieved_goal"] == (0, 1, 2)
    parts = make("robotics/AntMaze_UMaze-v5").obs_parts
    assert parts["achieved_goal"] == (0, 1) and parts["desired_goal"] == (107, 108)


@pytest.mark.parametrize("terminate", [False, True])
def test_stock_mazes_go_on_at_the_goal_unless_told_otherwise(terminate: bool) -> None:
    """A ball in an open maze, which is driven to the goal and held there."""
    env = make("robotics/PointMaze_Open-v3", terminate_on_success=terminate, horizon=250)
    obs, _ = env.reset(seed=0)
    ended, rewards = False, []
    while not ended:
        action = np.clip(2 * (obs[4:] - obs[:2]) - 2 * obs[2:4], -1, 1).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        ended = terminated or truncated
    assert info["success"] and terminated == terminate
    assert (sum(rewards) == 1) == terminate and (len(rewards) == 250) != terminate


def test_ant_mazes_go_on_at_the_goal() -> None:
    env = make("robotics/AntMaze_Open-v5")
    obs, _ = env.reset(seed=0)
    ant: Any = env.raw._env.ant_env  # type: ignore[attr-defined]
    qpos = ant.data.qpos.copy()
    qpos[:2] = obs[-2:]
    ant.set_state(qpos, ant.data.qvel)
    for _ in range(2):
        obs, reward, terminated, _, info = env.step(np.zeros(8, np.float32))
        assert reward == 1.0 and info["success"] and not terminated
        np.testing.assert_allclose(obs[:2], obs[-2:], atol=0.45)


def test_kitchen_counts_each_subtask_once_and_ends_when_all_are_completed() -> None:
    """The things themselves are put where they shall be."""
    from gymnasium_robotics.envs.franka_kitchen.kitchen_env import (
        OBS_ELEMENT_GOALS,
        OBS_ELEMENT_INDICES,
    )

    task = "FrankaKitchen-MicrowaveKettleLightSlider-v1"
    env = make(f"robotics/{task}")
    robot: Any = env.raw._env.robot_env  # type: ignore[attr-defined]

    def put(*subtasks: str) -> tuple[float, bool, bool]:
        qpos = robot.data.qpos.copy()
        for subtask in subtasks:
            qpos[OBS_ELEMENT_INDICES[subtask]] = OBS_ELEMENT_GOALS[subtask]
        robot.set_state(qpos, robot.data.qvel)
        _, reward, terminated, _, info = env.step(np.zeros(9, np.float32))
        return reward, terminated, info["success"]

    for _ in range(2):  # the second episode starts afresh
        env.reset(seed=0)
        assert put() == (0.0, False, False)
        assert put("microwave", "light switch") == (2.0, False, False)
        assert put() == (0.0, False, False)
        assert put("hinge cabinet") == (0.0, False, False)
        assert put("kettle", "slide cabinet") == (2.0, True, True)
    assert get_spec(f"robotics/{task}").score_references["d4rl"] == (0.0, 4.0)


def test_random_hands_score_about_zero() -> None:
    """D4RL's minimum is the return of random actions, for the tasks that have its table."""
    generator = np.random.default_rng(0)
    for task in ("Door", "Hammer", "Relocate"):
        env = make(f"robotics/AdroitHand{task}-v1")
        env.reset(seed=0)
        size = env.action_space.shape
        total = sum(
            env.step(generator.uniform(-1, 1, size).astype(np.float32))[1]
            for _ in range(env.horizon)
        )
        low, high = TASKS[f"AdroitHand{task}-v1"].score_references["d4rl"]
        assert abs(total - low) / (high - low) < 0.01


class _NoDrawing:
    """Stands for the drawing itself, which wants OpenGL; what comes before it is the real thing."""

    def render(self, mode: str) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None:
        pass


def test_pictures_of_fetch_change_nothing_and_show_the_goal() -> None:
    """Gymnasium-Robotics' own would: its ``mj_forward`` leads to other steps afterwards."""
    episodes = []
    for seen in (False, True):
        env = make("robotics/FetchPush-v4", render=seen)
        fetch: Any = env.raw._env  # type: ignore[attr-defined]
        fetch.mujoco_renderer = _NoDrawing()
        rows = [env.reset(seed=3)[0]]
        generator = np.random.default_rng(0)
        for _ in range(15):
            if seen:
                env.render()
                np.testing.assert_array_equal(fetch.data.site("target0").xpos, fetch.goal)
            rows.append(env.step(generator.uniform(-1, 1, 4).astype(np.float32))[0])
        episodes.append(np.array(rows))
    np.testing.assert_array_equal(*episodes)
