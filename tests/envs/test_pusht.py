"""Push-T against gym-pusht, at its goal, and seen."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.envs.core.quiet import quiet
from trimtab.envs.registry import get_spec, make
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

ID = "pusht/PushT-v0"


@pytest.mark.parametrize("obs_type", ["state", "environment_state_agent_pos"])
def test_pusht_is_gym_pusht(obs_type: str) -> None:
    with quiet():
        import gym_pusht  # noqa: F401

        theirs: Any = gymnasium.make(
            "gym_pusht/PushT-v0", obs_type=obs_type, disable_env_checker=True
        )
    ours = make(ID, obs_type=obs_type)
    assert theirs.spec.max_episode_steps == ours.horizon == 300

    def flat(obs: Any) -> Any:
        return np.append(obs["environment_state"], obs["agent_pos"]) if obs_type != "state" else obs

    expected, _ = theirs.reset(seed=1)
    np.testing.assert_array_equal(ours.raw.reset(seed=1)[0], flat(expected))
    generator = np.random.default_rng(0)
    pushed = []
    for _ in range(20):
        # Around the block, so that it is pushed.
        near = np.array(theirs.unwrapped.block.position) + generator.uniform(-60, 60, 2)
        action = near.astype(np.float32)
        expected, reward, terminated, _, info = theirs.step(action)
        obs, *row, named = ours.raw.step(action)
        np.testing.assert_array_equal(obs, flat(expected))
        assert row == [reward, terminated, False]
        assert named["is_success"] == info["is_success"]
        pushed.append(info["n_contacts"])
    assert any(pushed)


def test_specs() -> None:
    spec = get_spec(ID)
    assert (spec.obs_dim, spec.action_dim, spec.control_rate) == (5, 2, 10.0)
    assert spec.physics["integrator"] == "pymunk" and spec.physics["frame_skip"] == 10
    assert get_spec(ID, obs_type="environment_state_agent_pos").obs_dim == 18


def _at_goal(turn: float) -> tuple[Any, list[float]]:
    """Put the block on its outline but for ``turn`` radians; the disc is out of the way."""
    env = make(ID)
    state = [60.0, 60.0, 256.0, 256.0, np.pi / 4 + turn]
    # Setting the angle turns the block about its centre of mass, which moves it.
    obs, _ = env.reset(seed=0, options={"reset_to_state": state})
    state[2:4] = [512.0 - obs[2], 512.0 - obs[3]]
    obs, _ = env.reset(seed=0, options={"reset_to_state": state})
    np.testing.assert_allclose(obs, [60, 60, 256, 256, np.pi / 4 + turn], atol=1e-3)
    return env, state


def test_success_is_a_covered_outline() -> None:
    env, state = _at_goal(0.0)
    _, reward, terminated, _, info = env.step(np.array(state[:2], np.float32))
    assert reward == 1.0 and terminated and info["is_success"]
    env, state = _at_goal(0.3)
    _, reward, terminated, _, info = env.step(np.array(state[:2], np.float32))
    assert 0.5 < reward < 1.0 and not terminated and not info["is_success"]


def test_a_near_start_is_near_and_decided_by_its_seed() -> None:
    env = make(ID, start="near")
    starts = np.array([env.raw.reset(seed=seed)[0] for seed in range(200)])
    moved = starts[:, 2:] - [256, 256, np.pi / 4]
    assert (np.abs(moved) <= [51, 51, 0.5]).all()  # a block that is under the disc is pushed off
    assert (np.abs(moved).max(0) > [45, 45, 0.45]).all()
    assert np.abs(moved.mean(0) / [50, 50, 0.5]).max() < 0.15
    np.testing.assert_array_equal(env.raw.reset(seed=7)[0], starts[7])
    anywhere = np.array([make(ID).raw.reset(seed=seed)[0] for seed in range(20)])
    np.testing.assert_allclose(starts[:20, :2], anywhere[:, :2])  # the disc is where it was
    assert np.abs(anywhere[:, 2:] - [256, 256, np.pi / 4]).max() > 100
    assert get_spec(ID, start="near").fingerprint != get_spec(ID).fingerprint


def test_a_state_that_is_given_is_where_a_near_start_begins() -> None:
    state = np.array([60.0, 60.0, 400.0, 150.0, 2.0])
    near, anywhere = (
        make(ID, start=start).raw.reset(seed=0, options={"reset_to_state": state})[0]
        for start in ("near", "anywhere")
    )
    np.testing.assert_array_equal(near, anywhere)
    np.testing.assert_allclose(near[4], 2.0)


def test_pictures_show_the_episode() -> None:
    env = make(ID, render=True)
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (680, 680, 3) and first.dtype == np.uint8 and first.std() > 10
    env.step(np.full(2, 100.0, np.float32))
    assert not np.array_equal(env.render(), first)


def test_another_thread_cannot_draw_what_one_has_drawn() -> None:
    """MuJoCo would give it a black picture, without an error."""
    env = make(ID, render=True)
    env.reset(seed=0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(env.render).result()
        env.step(np.full(2, 100.0, np.float32))  # every thread may step
        with pytest.raises(TrimtabError, match="it was drawn in the thread ThreadPool.*make an"):
            env.render()
        assert not np.array_equal(pool.submit(env.render).result(), first)


def test_a_closed_environment_is_refused() -> None:
    env, vector = make(ID, render=True), make_vec(ID, num_envs=2, seed=0)
    for one in (env, vector):
        one.reset(seed=0)
        one.close()
        for call in (one.reset, lambda one=one: one.step(one.action_space.sample())):
            with pytest.raises(TrimtabError, match="PushT-v0: it is closed; make another one"):
                call()
    with pytest.raises(TrimtabError, match="it is closed"):
        env.render()
