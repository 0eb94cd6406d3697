"""DeepMind's tasks against dm_control itself."""

import os
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from trimtab.envs.core.legacy_random import as_global_generator, legacy_generator
from trimtab.envs.registry import get_spec, list_envs, list_tasks, make

IDS = [id for id in list_envs() if id.startswith("dmc/")]
TAGS = {id: task.tags for id, task in list_tasks().items()}
# One task of every kind of start: models changed at reset, terrain, targets, springs, contacts.
SOME = [
    "acrobot-swingup_sparse",
    "finger-turn_hard",
    "fish-swim",
    "humanoid_CMU-run",
    "lqr-lqr_6_2",
    "manipulator-insert_peg",
    "point_mass-hard",
    "quadruped-escape",
    "stacker-stack_4",
    "walker-walk",
]


def test_every_task_of_the_suite_is_there() -> None:
    from dm_control import suite

    assert sorted(IDS) == sorted(f"dmc/{domain}-{task}" for domain, task in suite.ALL_TASKS)


@pytest.mark.parametrize("task", SOME)
def test_dmc_is_dm_control(task: str) -> None:
    """Its own loader, told the seed as it wants to be told, plays the same episode."""
    from dm_control import suite

    seed = 5
    domain, name = task.split("-")
    theirs = suite.load(domain, name, task_kwargs={"random": 0 if domain == "lqr" else seed})
    theirs.task._random = np.random.RandomState(seed)  # nothing was drawn yet, but for the springs
    ours = make(f"dmc/{task}")
    obs, _ = ours.reset(seed=seed)
    expected = theirs.reset()
    generator = np.random.default_rng(0)
    for _ in range(5):
        flat = np.concatenate([np.ravel(part) for part in expected.observation.values()])
        np.testing.assert_array_equal(obs, flat.astype(np.float32))
        action = generator.uniform(-1, 1, ours.action_space.shape).astype(np.float32)
        expected = theirs.step(action)
        obs, reward, terminated, truncated, _ = ours.step(action)
        assert (reward, terminated, truncated) == (expected.reward, False, False)
    assert theirs._step_limit in (ours.horizon, np.inf)


def test_lqr_ends_at_rest_and_its_limits_lose_nothing() -> None:
    """The optimal controller, which dm_control computes, stays well within the forces allowed."""
    from dm_control import suite
    from dm_control.suite import lqr_solver

    for task in ("lqr_2_1", "lqr_6_2"):
        _, gain, _ = lqr_solver.solve(suite.load("lqr", task, task_kwargs={"random": 0}))
        ours = make(f"dmc/lqr-{task}", horizon=200)
        assert (ours.action_space.low == -10).all() and (ours.action_space.high == 10).all()
        obs, _ = ours.reset(seed=0)
        most = 0.0
        truncated = False
        while not truncated:
            action = (gain @ obs).astype(np.float32)
            most = max(most, float(np.abs(action).max()))
            obs, _, terminated, truncated, _ = ours.step(action)
            assert not terminated
        assert 2 < most < 6
    ours.reset(seed=0)
    raw = ours.raw.unwrapped
    raw.data.qpos[:] = 0
    mujoco.mj_forward(raw.model, raw.data)
    assert ours.step(np.zeros(2, np.float32))[2:4] == (True, False)


def test_tags_of_sparse_rewards_are_true() -> None:
    """A dense reward shows a value between 0 and 1 within a few random steps."""
    for id in IDS:
        if "sparse" in TAGS[id]:
            env = make(id)
            assert isinstance(env.reset(seed=0)[0], np.ndarray)
            generator = np.random.default_rng(0)
            shape = env.action_space.shape
            actions = generator.uniform(-1, 1, (30, *shape)).astype(np.float32)
            assert {env.step(action)[1] for action in actions} <= {0.0, 1.0}, id


def test_spec_of_walker() -> None:
    spec = get_spec("dmc/walker-walk")
    assert (spec.obs_dim, spec.action_dim, spec.horizon) == (24, 6, 1000)
    assert spec.control_rate == 40.0 and spec.success_key is None
    assert spec.score_references == {"dm-control": (0.0, 1000.0)}
    assert spec.physics["frame_skip"] == 10 and spec.physics["integrator"] == "EULER"


def test_needs_no_opengl_and_says_nothing() -> None:
    """The terrain's task, too, which asks for a rendering context at every reset."""
    code = "from trimtab.envs.registry import make; make('dmc/quadruped-escape').reset(seed=0)"
    environment = {**os.environ, "MUJOCO_GL": "disabled"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_seeds_of_any_size_decide() -> None:
    env = make("dmc/cartpole-swingup")
    seeds = (0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**64 + 1)
    starts = [env.reset(seed=seed)[0].tobytes() for seed in seeds]
    assert len(set(starts)) == len(seeds)
    assert starts == [env.reset(seed=seed)[0].tobytes() for seed in seeds]


def test_global_generator_is_lent_and_given_back() -> None:
    np.random.seed(1)
    expected = np.random.rand(3)
    np.random.seed(1)
    first = np.random.rand(1)
    lent, same = legacy_generator(7), np.random.RandomState(7)
    with pytest.raises(KeyError), as_global_generator(lent):
        assert np.random.rand() == same.rand()
        raise KeyError
    assert lent.rand() == same.rand()
    np.testing.assert_array_equal(np.append(first, np.random.rand(2)), expected)
