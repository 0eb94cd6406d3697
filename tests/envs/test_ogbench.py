"""OGBench's tasks against OGBench itself."""

import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from trimtab.envs.core.quiet import quiet
from trimtab.envs.registry import get_spec, list_tasks, make

TASKS = {id: task for id, task in list_tasks().items() if id.startswith("ogbench/")}
# Every kind of scene, with goals and without; the teleporters draw while an episode goes on.
SOME = [
    "pointmaze-teleport-singletask-v0",
    "antmaze-medium-v0",
    "humanoidmaze-medium-singletask-task4-v0",
    "antsoccer-arena-v0",
    "cube-double-v0",
    "scene-singletask-v0",
    "puzzle-3x3-v0",
]


def test_every_state_task_is_there_with_its_horizon() -> None:
    import ogbench  # noqa: F401

    theirs = {
        f"ogbench/{name}": spec.max_episode_steps
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith(("ogbench.locomaze", "ogbench.manipspace"))
        and not name.startswith("visual-")
    }
    broken = {id for id in theirs if "humanoidmaze-teleport" in id}
    assert len(broken) == 7
    assert {id: task.horizon for id, task in TASKS.items()} == {
        id: steps for id, steps in theirs.items() if id not in broken
    }


@pytest.mark.parametrize("task", SOME)
def test_ogbench_is_ogbench(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OGBench's own environment, with each generator that it draws from seeded by hand."""
    seed = 5
    with quiet():
        import ogbench  # noqa: F401

        theirs = gymnasium.make(task, disable_env_checker=True).unwrapped
        space = gymnasium.spaces.Box(-1, 1, theirs.action_space.shape, np.float32)
        # Where it is a property, it is a new space each time, which nobody can seed.
        owner = type(theirs) if "action_space" in dir(type(theirs)) else theirs
        monkeypatch.setattr(owner, "action_space", space)
        space.seed(seed)
        before = np.random.get_state()
        np.random.seed(seed)
        expected, info = theirs.reset(seed=seed)
    ours = make(f"ogbench/{task}")
    ours.reset(seed=seed + 1)
    obs, _ = ours.reset(seed=seed)
    goal = info["goal"] if "goal" in TASKS[f"ogbench/{task}"].tags else np.zeros(0)
    np.testing.assert_array_equal(obs, np.concatenate((expected, goal)).astype(np.float32))
    for action in np.random.default_rng(0).uniform(-1, 1, (8, *space.shape)).astype(np.float32):
        expected, reward, terminated, _, info = theirs.step(action)
        row = ours.step(action)
        flat = np.concatenate((expected, goal)).astype(np.float32)
        np.testing.assert_array_equal(row[0], flat)
        assert row[1:4] == (reward, terminated, False)
        assert row[4]["success"] is bool(info["success"])
    np.random.set_state(before)


def test_goals_are_those_of_the_five_tasks() -> None:
    with quiet():
        theirs = gymnasium.make("pointmaze-large-v0").unwrapped
    env = make("ogbench/pointmaze-large-v0")
    assert env.obs_parts == {
        "observation": (0, 1),
        "achieved_goal": (0, 1),
        "desired_goal": (2, 3),
    }
    seen = {theirs.xy_to_ij(env.reset(seed=seed)[0][2:]) for seed in range(40)}
    assert seen == {task["goal_ij"] for task in theirs.task_infos}


@pytest.mark.parametrize(("kind", "reward"), [("", 1.0), ("-singletask", 0.0)])
def test_episode_ends_at_the_goal(kind: str, reward: float) -> None:
    env = make(f"ogbench/pointmaze-medium{kind}-v0")
    assert env.reset(seed=0)[1] == {"success": False}
    zero = np.zeros(2, np.float32)
    assert env.step(zero)[1:] == (reward - 1.0, False, False, {"success": False})
    raw = env.raw.unwrapped
    raw.data.qpos[:] = raw.model.geom("target").pos[:2]
    assert env.step(zero)[1:] == (reward, True, False, {"success": True})


def test_scenes_share_no_model() -> None:
    """The colour of a solved cube and the gains of the arm are written into the model."""
    first, second = (make("ogbench/cube-single-v0").raw.unwrapped for _ in range(2))
    assert first.model is not second.model
    assert first.action_space is not second.action_space


def test_making_and_playing_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    np.random.seed(3)
    expected = np.random.rand(2)
    np.random.seed(3)
    for task in ("pointmaze-teleport-v0", "cube-single-v0"):
        env = make(f"ogbench/{task}")
        env.reset(seed=0)
        env.step(np.ones(env.action_space.shape, np.float32))
    np.testing.assert_array_equal(np.random.rand(2), expected)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_spec_of_a_cube() -> None:
    spec = get_spec("ogbench/cube-single-singletask-v0")
    assert (spec.obs_dim, spec.action_dim, spec.control_rate) == (28, 5, 20.0)
    assert spec.obs_parts == {"observation": tuple(range(28))}
    assert spec.success_key == "success"
