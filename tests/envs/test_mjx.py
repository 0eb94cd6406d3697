"""Playground's tasks: their programs, chunks, masks, DLPack, the cache, and C MuJoCo beside MJX."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.envs.engines import mjx_programs
from trimtab.envs.engines.mjx_programs import episode_keys, load_suite, programs
from trimtab.envs.engines.mjx_vector import MjxVectorEnv
from trimtab.envs.engines.sync_vector import SyncVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.registry import get_spec, list_tasks, make
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

TASK = "playground/CartpoleSwingup"
COUNT, CHUNK = 3, 2


def chunked(**changed: Any) -> Any:
    """All vectors here have one shape, so that there is one program to compile."""
    return make_vec(TASK, COUNT, seed=4, act_steps=CHUNK, **{"discount": 0.9, **changed})


def chunks(count: int) -> np.ndarray:
    generator = np.random.default_rng(5)
    return generator.uniform(-1, 1, (count, COUNT, CHUNK, 1)).astype(np.float32)


def test_tasks_are_those_of_the_suite() -> None:
    suite = load_suite()
    ours = {id.split("/")[1]: task for id, task in list_tasks().items() if "mjx" in task.tags}
    assert set(ours) == set(suite.ALL_ENVS)
    for name, task in ours.items():
        config = suite.get_default_config(name)
        assert (config.episode_length, config.action_repeat) == (task.horizon, 1), name


def test_spec_needs_no_compiling() -> None:
    spec = get_spec(TASK)
    assert (spec.obs_dim, spec.action_dim, spec.horizon, spec.control_rate) == (5, 1, 1000, 100.0)
    assert (spec.action_low, spec.action_high) == ((-1.0,), (1.0,))
    assert {"mujoco", "mujoco-mjx", "playground", "jax"} <= set(spec.physics)
    assert get_spec("playground/CartpoleBalance").fingerprint != spec.fingerprint


def test_keys_are_those_of_jax() -> None:
    import jax

    seeds = [0, 7, 2**32 - 1]
    expected = [np.asarray(jax.random.PRNGKey(seed)) for seed in seeds]
    np.testing.assert_array_equal(episode_keys(seeds), expected)
    assert len({tuple(key) for key in episode_keys([5, 2**32 + 5, 2**33 + 5])}) == 3


def test_chunks_follow_single_environments_and_compile_once() -> None:
    """Another batch size is another program, so the two agree to float32's accuracy only."""
    own = chunked(horizon=5)
    assert type(own) is MjxVectorEnv
    keywords: dict[str, Any] = {"seed": 4, "act_steps": CHUNK, "discount": 0.9}
    single = SyncVectorEnv(TASK, COUNT, options={"horizon": 5}, **keywords)
    np.testing.assert_allclose(own.reset()[0], single.reset()[0], atol=1e-5)
    for number, actions in enumerate(chunks(4)):
        ours, theirs = own.step(actions), single.step(actions)
        for mine, other in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-4)
        np.testing.assert_allclose(ours[4]["final_obs"], theirs[4]["final_obs"], atol=1e-4)
        assert ours[4]["steps"].tolist() == [1 if number == 2 else 2] * COUNT
        assert ours[3].all() == (number == 2)
        for name, values in theirs[4]["final_info"].items():
            np.testing.assert_allclose(ours[4]["final_info"][name], values, atol=1e-4)
    task = TASK.split("/")[1]
    compiled = programs(task, "cpu")
    shapes = 2  # those of the vector and those of the single environments
    assert compiled.begin._cache_size() == compiled.play._cache_size() == shapes  # type: ignore[attr-defined]


@pytest.mark.bits
def test_rows_do_not_act_on_one_another() -> None:
    """One row fails and starts anew, one stands still; the third does not notice, to the bit."""
    undisturbed, env = chunked(), chunked()
    for each in (undisturbed, env):
        each.reset()
    first, *others = chunks(4)
    undisturbed.step(first)
    obs = env.step(first)[0]
    env.active[2] = False
    data = env._state.data
    env._state = env._state.replace(data={**data, "qpos": data["qpos"].at[0].set(np.nan)})
    for number, actions in enumerate(others):
        expected = undisturbed.step(actions)
        found = env.step(actions)
        for one, other in zip(expected[:4], found[:4], strict=True):
            np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(found[0][2], obs[2])
        assert found[4]["steps"].tolist() == [1 if number == 0 else CHUNK, CHUNK, 0]
        assert found[2].tolist() == [number == 0, False, False]
        assert np.isnan(found[4]["final_obs"][0]).any() == (number == 0)
    second = chunked(episode_seed=lambda index, episode: env.episode_seed(index, 1))
    second.reset()
    for actions in others[1:]:
        again = second.step(actions)
    np.testing.assert_array_equal(again[0][0], found[0][0])


@pytest.mark.bits
def test_state_is_restored_to_the_bit() -> None:
    env, other = chunked(horizon=7), chunked(horizon=7)
    env.reset()
    played = chunks(9)
    for actions in played[:6]:
        env.step(actions)
    other.load_state_dict(env.state_dict())
    for actions in played[6:]:
        for one, two in zip(env.step(actions)[:4], other.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, two)


def on_device(**changed: Any) -> TorchVectorEnv:
    """The GPU's way, on a processor: the same class, the same programs, the same DLPack."""
    return TorchVectorEnv(chunked(**changed), "cpu")


def test_tensors_follow_arrays_through_the_ends_of_episodes() -> None:
    plain, tensors = chunked(horizon=5), on_device(horizon=5)
    np.testing.assert_array_equal(plain.reset()[0], tensors.reset()[0].numpy())
    for number, actions in enumerate(chunks(7)):
        expected, found = plain.step(actions), tensors.step(torch.from_numpy(actions))
        last = number % 3 == 2
        for one, two in zip(expected[:3], found[:3], strict=True):
            np.testing.assert_allclose(two.numpy(), one, atol=1e-5)
        assert found[3].tolist() == expected[3].tolist() == [last] * COUNT
        assert found[4]["steps"] == expected[4]["steps"][0] == (1 if last else CHUNK)
        final = expected[4]["final_obs"] if last else expected[0]
        np.testing.assert_allclose(found[4]["final_obs"].numpy(), final, atol=1e-5)
        assert bool(found[4]["final_info"]) == last
        if last:
            returns = expected[4]["final_info"]["return"]
            np.testing.assert_allclose(found[4]["final_info"]["return"], returns, rtol=1e-5)
            np.testing.assert_array_equal(found[0].numpy(), expected[0])  # the next episode's seed
    assert found[0].data_ptr() == np.asarray(tensors.observations).ctypes.data
    assert int(tensors.restarted) == 0


@pytest.mark.bits
def test_what_is_not_finite_starts_again_and_no_other_row_notices() -> None:
    undisturbed, env = on_device(), on_device()
    undisturbed.reset()
    begun = env.reset()[0].clone()
    data = env._state.data
    env._state = env._state.replace(data={**data, "qpos": data["qpos"].at[0].set(np.nan)})
    for number, actions in enumerate(map(torch.from_numpy, chunks(3))):
        expected, found = undisturbed.step(actions), env.step(actions)
        for one, other in zip(expected[:3], found[:3], strict=True):
            assert torch.equal(one[1:], other[1:])
        assert found[2].tolist() == [number == 0, False, False]
        assert torch.isfinite(found[0]).all() and torch.isfinite(found[1]).all()
        if number == 0:
            assert found[1][0] == 0.0
            # It starts from a draw of its own, and at rest as all do.
            assert not torch.equal(found[0][0], begun[0])
            assert (found[0][0] - begun[0]).abs().max() < 0.2
    assert int(env.restarted) == 1


@pytest.mark.bits
def test_tensors_are_restored_to_the_bit() -> None:
    env, other = on_device(horizon=7), on_device(horizon=7)
    env.reset()
    played = list(map(torch.from_numpy, chunks(9)))
    for actions in played[:6]:
        env.step(actions)
    other.load_state_dict(env.state_dict())
    for actions in played[6:]:
        for one, two in zip(env.step(actions)[:3], other.step(actions)[:3], strict=True):
            assert torch.equal(one, two)
    state = env.state_dict()
    fewer = {**state, "simulation_0": state["simulation_0"][1:]}
    for wrong in (fewer, {**state, "run_seed": state["run_seed"] + 1}):
        with pytest.raises(TrimtabError, match="is of other simulations or of episodes of other"):
            other.load_state_dict(wrong)
    with pytest.raises(TrimtabError, match=r"reset takes no options, got \['far'\]"):
        env.reset(options={"far": 1})


def test_devices_that_are_not_there() -> None:
    with pytest.raises(TrimtabError, match="JAX finds no rocm device here; use device=cpu"):
        programs("PointMass", "rocm")
    with pytest.raises(TrimtabError, match="torch has no device 'hpu' here"):
        TorchVectorEnv(chunked(), "hpu")
    with pytest.raises(TrimtabError, match="runs on the cpu or the cuda only, got device='tpu'"):
        make_vec(TASK, 2, seed=0, device="tpu")  # type: ignore[call-overload]
    with pytest.raises(TrimtabError, match="observations=dict needs device=cpu"):
        make_vec(TASK, 2, seed=0, device="cuda", observations="dict")


@pytest.mark.parametrize(
    ("option", "known"), [("xla_cpu_enable_fast_math", True), ("xla_no_such_option", False)]
)
def test_an_option_that_the_compiler_does_not_know_is_left_out(
    option: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = mjx_programs._compiler_options.__wrapped__
    monkeypatch.setattr(mjx_programs, "_QUICKER", {option: False})
    assert options("cpu") == ({option: False} if known else {})
    assert options("cuda") == {}


def test_another_fault_of_the_compiler_is_not_taken_for_an_unknown_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import jax

    def fails(*_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")

    monkeypatch.setattr(jax, "jit", fails)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no room"):
        mjx_programs._compiler_options.__wrapped__("cpu")


@pytest.mark.parametrize(
    ("task", "lifted"), [("CartpoleSwingup", 0.0), ("CheetahRun", 0.0), ("CheetahRun", 0.05)]
)
def test_mjx_follows_c_mujoco(task: str, lifted: float) -> None:
    """Twenty control steps of the same model, in float32 by MJX and in float64 by C MuJoCo.

    The cheetah stands on the ground, and falls onto it where it was lifted before.
    """
    tolerance = 2e-5
    import mujoco

    env = make(f"playground/{task}")
    raw: Any = env.raw
    env.reset(seed=3)
    start = raw._state.data
    if lifted:
        start = {**start, "qpos": start["qpos"].at[0, 1].add(lifted)}  # x, height, pitch, joints
        raw._state = raw._state.replace(data=start)
    data = mujoco.MjData(raw.model)
    for name in ("qpos", "qvel", "qacc_warmstart"):
        getattr(data, name)[:] = np.asarray(start[name][0])
    mujoco.mj_kinematics(raw.model, data)
    mujoco.mj_collision(raw.model, data)
    touching = [data.ncon > 0]
    before = data.qpos.copy()
    generator = np.random.default_rng(0)
    for _ in range(20):
        action = generator.uniform(-1, 1, raw.model.nu).astype(np.float32)
        env.step(action)
        data.ctrl[:] = action
        mujoco.mj_step(raw.model, data, raw.frame_skip)
        touching.append(data.ncon > 0)
    np.testing.assert_allclose(raw._state.data["qpos"][0], data.qpos, atol=tolerance)
    assert np.abs(data.qpos - before).max() > 10 * tolerance  # it has moved
    cheetah = task == "CheetahRun"
    assert (touching[0], any(touching)) == (cheetah and not lifted, cheetah)


def test_a_picture_shows_the_state() -> None:
    env = make(TASK, render=True)
    env.reset(seed=1)
    first = env.render()
    assert first.shape == (480, 480, 3) and first.dtype == np.uint8 and first.std() > 5
    np.testing.assert_array_equal(env.render(), first)
    for _ in range(30):
        env.step(np.ones(1, np.float32))
    assert (env.render() != first).any()
    env.close()


CODE = """
import os, sys
from trimtab.envs.engines.mjx_programs import load_suite
load_suite()
assert not any("locomotion" in name or name == "mujoco_playground" for name in sys.modules)
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
"""


def test_no_other_part_of_playground_is_imported() -> None:
    kept = {k: v for k, v in os.environ.items() if k != "XLA_PYTHON_CLIENT_PREALLOCATE"}
    subprocess.run([sys.executable, "-c", CODE], env=kept, check=True)
