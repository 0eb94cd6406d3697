"""The vector environment of the MuJoCo tasks is what single environments are, bit for bit."""

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.envs import registry
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import OwnVector
from trimtab.envs.engines.mujoco_vector import MujocoVectorEnv
from trimtab.envs.engines.sync_vector import SyncVectorEnv
from trimtab.envs.families.gym import FAMILY
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

pytestmark = pytest.mark.bits

TASKS = tuple(FAMILY.tasks)
HOPPER = "gym/Hopper-v5"


def _same(left: Any, right: Any, where: str = "") -> None:
    """The same keys, types, shapes and bits."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for name, value in left.items():
            _same(value, right[name], f"{where} {name}")
        return
    assert (left.dtype, left.shape) == (right.dtype, right.shape), where
    if left.tobytes() != right.tobytes():
        np.testing.assert_array_equal(left, right, err_msg=where)
        raise AssertionError(f"{where}: other bits, such as those of a negative zero")


def _same_step(left: tuple[Any, ...], right: tuple[Any, ...], where: str = "") -> None:
    names = ("obs", "reward", "terminated", "truncated", "infos")
    for name, one, other in zip(names, left, right, strict=True):
        _same(one, other, f"{where} {name}")


def _actions(env: Any, seed: int = 0) -> Iterator[np.ndarray]:
    """Random actions; every third is beyond the limits here and there."""
    generator = np.random.default_rng(seed)
    number = 0
    while True:
        number += 1
        scale = 1.5 if number % 3 == 0 else 1.0
        unit = generator.uniform(-scale, scale, env.action_space.shape)
        yield (unit * env.action_space.high).astype(np.float32)


def _pair(id: str, num_envs: int, **keywords: Any) -> tuple[MujocoVectorEnv, SyncVectorEnv]:
    own = make_vec(id, num_envs, **keywords)
    assert type(own) is MujocoVectorEnv
    options = {"options": {"horizon": keywords.pop("horizon", None)}}
    keywords.pop("threads", None)
    return own, SyncVectorEnv(id, num_envs, **keywords, **options)


def test_every_task_is_played() -> None:
    assert FAMILY.vector is not None
    assert FAMILY.vector.tasks == set(TASKS) and len(TASKS) == 11


@pytest.mark.parametrize("task", TASKS)
def test_whole_episodes(task: str) -> None:
    own, plain = _pair(f"gym/{task}", 2, seed=3, horizon=200)
    _same(own.reset()[0], plain.reset()[0])
    ended = 0
    for step, action in zip(range(210), _actions(own), strict=False):
        rows = own.step(action)
        _same_step(rows, plain.step(action), f"step {step}")
        ended += int(rows[4]["_final_obs"].sum())
    assert ended >= 2
    _same(own.state_dict(), plain.state_dict())
    own.close()


@pytest.mark.parametrize("task", TASKS)
def test_chunks_and_a_short_horizon(task: str) -> None:
    keywords = {"act_steps": 3, "discount": 0.9, "horizon": 37, "seed": 3}
    own, plain = _pair(f"gym/{task}", 4, **keywords)
    own.reset(), plain.reset()
    ended = 0
    for step, action in zip(range(60), _actions(own), strict=False):
        own.active[2] = plain.active[2] = step % 50 > 5
        rows = own.step(action)
        _same_step(rows, plain.step(action), f"step {step}")
        ended += int(rows[4]["_final_obs"].sum())
    assert ended >= 10
    _same(own.reset(seed=8)[0], plain.reset(seed=8)[0])
    own.close()


@pytest.mark.parametrize("task", TASKS)
def test_gymnasium_itself(task: str) -> None:
    """One environment, one whole episode, none of our wrappers around theirs."""
    own = make_vec(f"gym/{task}", 1, seed=6)
    with quiet():
        theirs = gymnasium.make(task)
        expected, _ = theirs.reset(seed=own.episode_seed(0, 0))
        _same(own.reset()[0][0], expected.astype(np.float32))
        for action in _actions(own, seed=5):
            expected, reward, terminated, truncated, _ = theirs.step(action[0, 0])
            obs, rewards, terminations, truncations, infos = own.step(action)
            ended = terminated or truncated
            last = infos["final_obs"] if ended else obs
            _same(last[0], expected.astype(np.float32))
            assert (rewards[0], terminations[0], truncations[0]) == (reward, terminated, truncated)
            if ended:
                break
    theirs.close()


@pytest.mark.parametrize("act_steps", [1, 3])
@pytest.mark.parametrize("task", ["Ant-v5", "Hopper-v5", "Pusher-v5"])
def test_states_go_both_ways(task: str, act_steps: int) -> None:
    pair = _pair(f"gym/{task}", 3, seed=5, act_steps=act_steps, horizon=70)
    for source, target in (pair, pair[::-1]):
        source.reset()
        actions = _actions(source, act_steps)
        for _ in range(40):
            source.step(next(actions))
        state = source.state_dict()
        target.reset(seed=77)
        target.load_state_dict(state)
        _same(target.state_dict(), state)
        for _ in range(40):
            action = next(actions)
            _same_step(source.step(action), target.step(action))


def test_state_that_is_not_reached() -> None:
    own, plain = _pair(HOPPER, 2, seed=5)
    for env in (own, plain):
        env.reset()
        for action in _random_steps(env, 4):
            env.step(action)
        state = env.state_dict()
        state["obs"][1] += 1
        with pytest.raises(TrimtabError, match="environment 1 did not lead"):
            env.load_state_dict(state)


def _random_steps(env: Any, count: int) -> list[np.ndarray]:
    return [action for _, action in zip(range(count), _actions(env), strict=False)]


def test_own_rule_for_seeds() -> None:
    own, plain = _pair(HOPPER, 2, seed=0, horizon=5, episode_seed=lambda i, e: 100 * i + e)
    own.reset(), plain.reset()
    for action in _random_steps(own, 20):
        _same_step(own.step(action), plain.step(action))


@pytest.mark.parametrize("task", ["Walker2d-v5", "Humanoid-v5"])
def test_threads_decide_nothing(task: str) -> None:
    envs = [make_vec(f"gym/{task}", 5, seed=1, threads=threads) for threads in (1, 2, 3, 9)]
    starts = [env.reset()[0] for env in envs]
    for start in starts[1:]:
        _same(start, starts[0])
    for action in _random_steps(envs[0], 60):
        rows = [env.step(action) for env in envs]
        for other in rows[1:]:
            _same_step(other, rows[0])
    for env in envs:
        env.close()


def _physics_threads() -> int:
    return sum(thread.name.startswith("trimtab-physics") for thread in threading.enumerate())


def test_threads_start_with_the_first_step_and_end_with_close() -> None:
    before = _physics_threads()
    env, single = make_vec(HOPPER, 4, seed=0, threads=3), make_vec(HOPPER, 1, seed=0, threads=3)
    for each in (env, single):
        each.reset()
    assert _physics_threads() == before
    for action in _random_steps(env, 20):
        env.step(action)
    single.step(_random_steps(single, 1)[0])
    assert before < _physics_threads() <= before + 2
    env.close()
    assert _physics_threads() == before


def test_a_forked_process_has_the_same_episodes() -> None:
    own, plain = _pair(HOPPER, 4, seed=0, threads=2)
    own.reset(), plain.reset()
    actions = _random_steps(own, 20)
    for action in actions[:10]:
        own.step(action), plain.step(action)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not that of the tests' time limit
            signal.alarm(30)  # rather than waiting for ever
            for action in actions[10:]:
                _same_step(own.step(action), plain.step(action))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    for action in actions[10:]:
        _same_step(own.step(action), plain.step(action))


def test_unknown_option_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert FAMILY.vector is not None
    narrow = dataclasses.replace(
        FAMILY, vector=OwnVector(FAMILY.vector.tasks, frozenset(), FAMILY.vector.make)
    )
    monkeypatch.setattr(registry, "_families", lambda: {"gym": narrow})
    with caplog.at_level(logging.INFO, logger="trimtab.envs.registry"):
        assert type(make_vec(HOPPER, 2, seed=0)) is MujocoVectorEnv
        assert type(make_vec(HOPPER, 2, seed=0, horizon=1000)) is MujocoVectorEnv
        assert not caplog.records
        assert type(make_vec(HOPPER, 2, seed=0, horizon=10, threads=2)) is SyncVectorEnv
    assert len(caplog.records) == 1 and "horizon" in caplog.text and HOPPER in caplog.text
    absent = dataclasses.replace(
        FAMILY, vector=dataclasses.replace(FAMILY.vector, tasks=frozenset({"Ant-v5"}))
    )
    monkeypatch.setattr(registry, "_families", lambda: {"gym": absent})
    assert type(make_vec(HOPPER, 2, seed=0)) is SyncVectorEnv


@pytest.mark.parametrize("threads", [0, -1, True, 1.5])
def test_wrong_number_of_threads(threads: Any) -> None:
    with pytest.raises(TrimtabError, match="threads must be a whole number >= 1"):
        make_vec(HOPPER, 2, seed=0, threads=threads)
