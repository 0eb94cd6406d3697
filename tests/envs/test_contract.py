"""What every registered environment must keep; being registered is being tested.

Tasks that differ in a number, a reward or the things of their scene share one full contract: one
of them keeps it, and of the others their spec, their seeds and their first steps are tested, but
for those that ``tasks.py`` leaves out. A task of Playground takes half a minute to compile, so one
is compiled here; ``test_traced.py`` has the others.
``pytest tests/envs/test_contract.py --every-task`` holds every task to the whole contract.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from loading import load_module

from trimtab.envs.core.spec import RawEnv
from trimtab.envs.core.task_env import TaskEnv
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.envs.register import gymnasium_id
from trimtab.envs.registry import list_envs, list_families, list_tasks
from trimtab.envs.vector import make_vec

pytestmark = pytest.mark.slow

HORIZON = 20
SEED = 7

TASKS = load_module(Path(__file__).with_name("tasks.py"))
COMPILED, TRACED, WHOLE = TASKS.COMPILED, TASKS.TRACED, TASKS.WHOLE
SHARING, PLAYED = TASKS.SHARING, TASKS.PLAYED
shared_contract = TASKS.shared_contract


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "played" in metafunc.fixturenames:
        ids = list_envs() if metafunc.config.getoption("every_task") else WHOLE
        if "as_published" in metafunc.fixturenames:  # physics of a user's task is not published
            ours = {family.name for family in list_families() if family.source is None}
            ids = [id for id in ids if id.partition("/")[0] in ours]
        metafunc.parametrize("played", ids, indirect=True, scope="module")


def _actions(space: gymnasium.spaces.Box, seed: int, steps: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.uniform(space.low, space.high, (steps, *space.shape)).astype(np.float32)


def _episode(single: RawEnv, seed: int, action_seed: int, steps: int) -> dict[str, np.ndarray]:
    """Play a single environment by hand, without the vector's bookkeeping."""
    obs, _ = single.reset(seed=seed)
    rows: dict[str, list[Any]] = {"obs": [obs.copy()], "reward": [], "end": []}
    assert isinstance(single.action_space, gymnasium.spaces.Box)
    for action in _actions(single.action_space, action_seed, steps):
        obs, reward, terminated, truncated, _ = single.step(action)
        rows["obs"].append(obs.copy())
        rows["reward"].append(reward)
        rows["end"].append((terminated, truncated))
        if terminated or truncated:
            break
    return {name: np.array(values) for name, values in rows.items()}


Played = tuple[EpisodeVectorEnv, RawEnv, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """A vector of one, a single environment as Gymnasium makes it, and the first episode of that.

    Gymnasium wraps its time limit around it, by which its spec tells the horizon, and nothing else.
    """
    env = make_vec(request.param, 1, seed=SEED, horizon=HORIZON)
    single = gymnasium.make(gymnasium_id(request.param), horizon=HORIZON)
    assert type(single) is TimeLimit and type(single.env) is TaskEnv and single.spec is not None
    yield env, single, _episode(single, seed=11, action_seed=0, steps=HORIZON)
    single.close()
    env.close()


def test_episode_depends_on_seed_and_actions_alone(played: Played) -> None:
    _, single, first = played
    _episode(single, seed=12, action_seed=1, steps=5)
    again = _episode(single, seed=11, action_seed=0, steps=HORIZON)
    for name, values in first.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)


def test_another_seed_is_another_episode(played: Played) -> None:
    env, single, first = played
    other = _episode(single, seed=13, action_seed=0, steps=0)
    same = np.array_equal(other["obs"][0], first["obs"][0])
    assert same == ("one-start" in list_tasks()[env.id].tags)


def test_time_limit_truncates_at_the_horizon(played: Played) -> None:
    _, _, first = played
    terminated, truncated = first["end"][-1]
    assert not first["end"][:-1].any()
    if len(first["end"]) < HORIZON:
        assert terminated and not truncated
    else:
        assert truncated


def test_spaces_hold(played: Played) -> None:
    _, single, first = played
    assert single.observation_space.dtype == np.float32
    assert single.observation_space.shape == first["obs"].shape[1:]
    assert len(single.observation_space.shape) == len(single.action_space.shape) == 1
    assert all(single.observation_space.contains(obs) for obs in first["obs"])
    assert np.isfinite(first["obs"]).all() and np.isfinite(first["reward"]).all()
    assert isinstance(single.action_space, gymnasium.spaces.Box)
    assert single.action_space.dtype == np.float32
    assert (single.action_space.high > single.action_space.low).all()


def test_vector_follows_the_single_environment(played: Played) -> None:
    """SAME_STEP autoreset: the true last observation in the infos, the next episode's first out."""
    env, single, _ = played
    expected = _episode(single, env.episode_seed(0, 0), action_seed=2, steps=HORIZON)
    next_first = _episode(single, env.episode_seed(0, 1), action_seed=2, steps=0)["obs"][0]
    length = len(expected["reward"])
    obs, _ = env.reset(seed=SEED)
    np.testing.assert_array_equal(obs[0], expected["obs"][0])
    for step, action in enumerate(_actions(env.single_action_space, 2, length)):
        obs, reward, terminated, truncated, infos = env.step(action[None])
        assert obs.dtype == np.float32 and reward.dtype == np.float64
        assert reward[0] == expected["reward"][step]
        assert (terminated[0], truncated[0]) == tuple(expected["end"][step])
        assert infos["_final_obs"][0] == (step == length - 1)
        if step < length - 1:
            np.testing.assert_array_equal(obs[0], expected["obs"][step + 1])
            assert not infos["final_obs"].any()
    np.testing.assert_array_equal(infos["final_obs"][0], expected["obs"][-1])
    np.testing.assert_array_equal(obs[0], next_first)
    final = {name: values[0] for name, values in infos["final_info"].items()}
    assert final["length"] == length
    assert final["return"] == pytest.approx(expected["reward"].sum())
    assert final["seed"] == env.episode_seed(0, 0)
    assert ("success" in infos) == (env.success_key is not None)


def test_state_is_restored_exactly(played: Played) -> None:
    env, _, _ = played
    env.reset(seed=SEED)
    actions = _actions(env.single_action_space, 3, 10)
    for action in actions[:4]:
        env.step(action[None])
    state = env.state_dict()
    expected = [env.step(action[None])[:4] for action in actions[4:]]
    env.reset()
    env.load_state_dict(state)
    for action, rows in zip(actions[4:], expected, strict=True):
        for value, row in zip(env.step(action[None])[:4], rows, strict=True):
            np.testing.assert_array_equal(value, row)


def test_gymnasium_finds_nothing_wrong(played: Played) -> None:
    """Gymnasium's own checker; ours declare no limits of observations, and actions in raw units."""
    _, single, _ = played
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in ("observation space m..imum value is -?infinity", "action spaces, we recomm"):
            warnings.filterwarnings("ignore", message=f".*{words}")
        check_env(single.unwrapped, skip_render_check=True, skip_close_check=True)


@pytest.mark.bits
def test_physics_is_as_published(played: Played, as_published: Callable[[str], None]) -> None:
    as_published(played[0].id)


def test_every_task_keeps_a_contract_of_its_own_or_a_shared_one() -> None:
    assert shared_contract("ogbench/cube-double-singletask-task3-v0") == "ogbench/cube-single-v0"
    assert shared_contract("ogbench/scene-singletask-v0") == "ogbench/scene-v0"
    assert shared_contract("robosuite/Lift-DSRL") == "robosuite/NutAssemblySquare"
    whole = {*list_envs()} - {*TRACED} - {*SHARING}
    assert {shared_contract(id) for id in SHARING} <= whole and whole >= COMPILED
    assert {id.partition("/")[0] for id in SHARING} == {"ogbench", "robosuite"}
    assert (len(SHARING), len(TRACED)) == (23 * 7 - 7 + 4 * 2 + 5, 24)


@pytest.mark.parametrize("id", PLAYED)
def test_a_variant_has_its_own_horizon_seeds_and_first_steps(
    id: str, as_published: Callable[[str], None]
) -> None:
    """All that a variant may get wrong alone."""
    as_published(id)
    single, steps = gymnasium.make(gymnasium_id(id)), 3
    assert type(single) is TimeLimit and type(single.env) is TaskEnv and single.spec is not None
    assert single.spec.max_episode_steps == list_tasks()[id].horizon
    first = _episode(single, seed=11, action_seed=0, steps=steps)
    other = _episode(single, seed=12, action_seed=0, steps=1)
    again = _episode(single, seed=11, action_seed=0, steps=steps)
    assert (other["obs"][0] != first["obs"][0]).any()
    for name, values in first.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
    assert all(single.observation_space.contains(obs) for obs in first["obs"])
    assert np.isfinite(first["obs"]).all() and np.isfinite(first["reward"]).all()
    assert not first["end"].any()
    info = single.step(_actions(single.action_space, 1, 1)[0])[-1]
    assert single.env.success_key is None or isinstance(info["success"], bool)
    single.close()
