"""Robosuite's tasks against robosuite itself."""

import importlib.util
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.envs.core.quiet import quiet
from trimtab.envs.families.robosuite import _ARM, _SCENES, _import_robosuite
from trimtab.envs.registry import get_spec, list_tasks, make
from trimtab.envs.vector import make_vec

TASKS = {id: task for id, task in list_tasks().items() if id.startswith("robosuite/")}
ONE_ARM = ["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"]
SIZES = {"Lift": 19, "PickPlaceCan": 23, "NutAssemblySquare": 23, "TwoArmTransport": 59}
"""Numbers of an observation, as robomimic has them."""
TWO_ARMS = [*ONE_ARM, "robot1_eef_pos", "robot1_eef_quat", "robot1_gripper_qpos"]


@pytest.mark.parametrize("scene", _SCENES)
def test_robosuite_is_robosuite(scene: str, as_published: Callable[[str], None]) -> None:
    """A fresh model at every reset, as robosuite does unless told otherwise, plays the same."""
    if scene != "NutAssemblySquare":  # whose contract is tested whole
        as_published(f"robosuite/{scene}")
    arms = _SCENES[scene].arms
    controller = {"type": "BASIC", "body_parts": {"right": _ARM}}
    with quiet():
        theirs: Any = _import_robosuite().make(
            scene,
            robots=["Panda"] * arms,
            controller_configs=[controller] * arms,
            control_freq=20,
            lite_physics=False,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            reward_shaping=False,
            renderer="mujoco",
        )
    assert theirs.hard_reset
    seed = 5
    theirs.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    expected = theirs.reset()
    ours = make(f"robosuite/{scene}")
    other, _ = ours.reset(seed=seed + 1)
    ours.step(np.ones(ours.action_space.shape, np.float32))
    obs, _ = ours.reset(seed=seed)
    assert (obs != other).any() and obs.shape == (SIZES.get(scene, len(obs)),)
    keys = [*(TWO_ARMS if arms == 2 else ONE_ARM), "object-state"]  # robomimic's order
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 7 * arms)).astype(np.float32)
    for action in actions:
        flat = np.concatenate([expected[key] for key in keys])
        np.testing.assert_array_equal(obs, flat.astype(np.float32))
        expected, reward, _, _ = theirs.step(action.astype(np.float64))
        obs, *rest = ours.step(action)
        assert rest == [reward, False, False, {"success": theirs._check_success()}]


def test_the_state_of_a_model_that_is_drawn_is_restored_exactly() -> None:
    """What the contract of a scene with one model leaves open: two episodes have two models."""
    env = make_vec("robosuite/Lift", 1, seed=3)
    env.reset(seed=3)
    first, second, third = np.random.default_rng(0).uniform(-1, 1, (3, 1, 1, 7)).astype(np.float32)
    env.step(first)
    state = env.state_dict()
    expected = [env.step(action)[:4] for action in (second, third)]
    env.reset()
    env.load_state_dict(state)
    for action, rows in zip((second, third), expected, strict=True):
        for value, row in zip(env.step(action)[:4], rows, strict=True):
            np.testing.assert_array_equal(value, row)


@pytest.mark.parametrize(("task", "offset"), [("Lift", 0.0), ("Lift-DSRL", -1.0)])
def test_cube_is_lifted(task: str, offset: float) -> None:
    """A hand that goes down to the cube, closes and goes up; the first fifth of the episode."""
    env = make(f"robosuite/{task}")
    obs, info = env.reset(seed=0)
    assert info == {"success": False}
    rewards, successes = [], []
    for step in range(60):
        to_cube = obs[9:12] - obs[:3]
        way = to_cube if step < 30 else np.array([0.0, 0.0, 0.05 if step >= 40 else 0.0])
        close = -1.0 if step < 30 else 1.0
        action = np.array([*np.clip(20 * way, -1, 1), 0.0, 0.0, 0.0, close], np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        assert not terminated and not truncated
        rewards.append(reward)
        successes.append(info["success"])
    assert not any(successes[:40]) and successes[-1]
    assert rewards == [success + offset for success in successes]


def test_specs_are_those_of_robomimic() -> None:
    papers = {"Lift": 300, "PickPlaceCan": 300, "NutAssemblySquare": 400, "TwoArmTransport": 800}
    for scene, steps in papers.items():
        for ending in ("-DPPO", "-DSRL"):
            assert TASKS[f"robosuite/{scene}{ending}"].horizon == steps
    spec = get_spec("robosuite/PickPlaceCan")
    assert (spec.obs_dim, spec.action_dim) == (SIZES["PickPlaceCan"], 7)
    assert spec.control_rate == 20.0 and spec.physics["frame_skip"] == 25
    assert (spec.action_low, spec.action_high) == ((-1.0,) * 7, (1.0,) * 7)


@pytest.mark.parametrize(("folder", "kept"), [("numba", True), ("", False), (None, False)])
def test_what_numba_compiles_is_kept_where_a_folder_is_named(
    folder: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    if folder is not None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", folder)
    path = importlib.util.find_spec("trimtab.envs.families.robosuite")
    assert path is not None and path.origin is not None
    assert runpy.run_path(path.origin)["_MACROS"]["CACHE_NUMBA"] is kept


def test_says_nothing_writes_nothing_and_leaves_the_settings(tmp_path: Path) -> None:
    code = (
        "import os; from trimtab.envs.registry import make; make('robosuite/Lift').reset(seed=0); "
        "import sys, robosuite.macros as m; assert not m.CACHE_NUMBA and m.ENABLE_NUMBA; "
        "assert 'MUJOCO_GL' not in os.environ and 'robosuite.macros_private' not in sys.modules"
    )
    unset = ("MUJOCO_GL", "NUMBA_CACHE_DIR")
    environment = {name: text for name, text in os.environ.items() if name not in unset}
    environment |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []
