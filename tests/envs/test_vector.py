"""The vector of environments: seeds, episodes ending apart, errors, saved states."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.envs.engines.episodes import default_episode_seed
from trimtab.envs.registry import get_spec, make
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

pytestmark = pytest.mark.bits

HOPPER = "gym/Hopper-v5"


def _random(env: Any, steps: int, seed: int = 0) -> np.ndarray:
    shape = (steps, *env.action_space.shape)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def test_is_a_gymnasium_vector_env() -> None:
    env = make_vec(HOPPER, 3, seed=0, act_steps=2)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
    assert env.single_action_space.shape == (2, 3)
    assert env.action_space.shape == (3, 2, 3)
    obs, infos = env.reset()
    assert env.observation_space.contains(obs) and infos == {}
    assert env.action_space.contains(_random(env, 1)[0])
    assert env.env_spec is get_spec(HOPPER)
    env.close()


def test_each_episode_is_replayed_by_its_seed_alone() -> None:
    """Hopper falls at different times, so the copies are in different episodes."""
    env = make_vec(HOPPER, 3, seed=5)
    single = make(HOPPER)
    first, _ = env.reset()
    started = [[obs] for obs in first]
    taken: list[list[np.ndarray]] = [[], [], []]
    ended = 0
    for action in _random(env, 150):
        obs, rewards, terminated, truncated, infos = env.step(action)
        assert not truncated.any()
        for index in range(3):
            taken[index].append(action[index, 0])
            if not terminated[index]:
                assert not infos["final_obs"][index].any()
                continue
            final = {name: value[index] for name, value in infos["final_info"].items()}
            np.testing.assert_array_equal(
                single.reset(seed=int(final["seed"]))[0], started[index][-1]
            )
            rows = [single.step(single_action) for single_action in taken[index]]
            np.testing.assert_array_equal(infos["final_obs"][index], rows[-1][0])
            assert rows[-1][2]
            assert final["length"] == len(rows) == len(taken[index])
            assert final["return"] == pytest.approx(sum(row[1] for row in rows), rel=1e-12)
            assert final["episode"] == len(started[index]) - 1
            assert final["seed"] == default_episode_seed(5, index, int(final["episode"]))
            assert rewards[index] == rows[-1][1]
            started[index].append(obs[index].copy())
            taken[index] = []
            ended += 1
    assert ended >= 6
    assert len({len(starts) for starts in started} | {len(t) for t in taken}) > 2


def test_number_of_copies_does_not_change_an_episode() -> None:
    one, four = make_vec(HOPPER, 1, seed=2), make_vec(HOPPER, 4, seed=2)
    np.testing.assert_array_equal(one.reset()[0][0], four.reset()[0][0])
    assert len({row.tobytes() for row in four.reset()[0]}) == 4


def test_reset_goes_on_and_seed_starts_again() -> None:
    env = make_vec(HOPPER, 2, seed=2)
    first, second = env.reset()[0], env.reset()[0]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(seed=2)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)


def test_a_copy_that_is_not_active_stands_still() -> None:
    env, whole = (make_vec(HOPPER, 3, seed=5, horizon=6) for _ in range(2))
    start, _ = env.reset()
    whole.reset()
    env.active[1] = False
    others = [0, 2]
    for action in _random(env, 8):
        obs, rewards, terminated, truncated, infos = env.step(action)
        expected = whole.step(action)
        for value, row in zip((obs, rewards, terminated, truncated), expected[:4], strict=True):
            np.testing.assert_array_equal(value[others], row[others])
        np.testing.assert_array_equal(obs[1], start[1])
        assert (rewards[1], terminated[1], truncated[1], infos["steps"][1]) == (0, False, False, 0)
    env.active[1] = True
    fresh = make_vec(HOPPER, 3, seed=5, horizon=6)
    fresh.reset()
    action = _random(env, 1)[0]
    np.testing.assert_array_equal(env.step(action)[0][1], fresh.step(action)[0][1])


def test_own_rule_for_seeds() -> None:
    env = make_vec(HOPPER, 2, seed=0, horizon=2, episode_seed=lambda i, e: 100 * i + e)
    single = make(HOPPER)
    env.reset()
    zeros = np.zeros(env.action_space.shape, np.float32)
    env.step(zeros)
    obs, _, _, truncated, infos = env.step(zeros)
    assert truncated.all()
    np.testing.assert_array_equal(infos["final_info"]["seed"], [0, 100])
    for index, seed in enumerate((1, 101)):
        np.testing.assert_array_equal(obs[index], single.reset(seed=seed)[0])


def test_returned_arrays_are_the_callers() -> None:
    env = make_vec(HOPPER, 2, seed=0)
    first, _ = env.reset()
    kept = first.copy()
    actions = _random(env, 2)
    second = env.step(actions[0])[0]
    np.testing.assert_array_equal(first, kept)
    second[:] = 0.0
    assert env.state_dict()["obs"].any()
    state = env.state_dict()
    stored = {name: value.copy() for name, value in state.items()}
    env.step(actions[1])
    for name, value in stored.items():
        np.testing.assert_array_equal(state[name], value)


def test_success_of_a_step_and_of_an_episode() -> None:
    env = make_vec("metaworld/reach-v3", 1, seed=0, act_steps=5, horizon=100)
    obs, _ = env.reset()
    seen = []
    for _ in range(20):
        target = obs[0, -3:] if len(seen) < 14 else np.array([0.0, 0.4, 0.4])
        direction = np.append(np.clip(10 * (target - obs[0, :3]), -1, 1), 0)
        obs, _, _, truncated, infos = env.step(np.tile(direction, (1, 5, 1)))
        seen.append(bool(infos["success"][0]))
    assert truncated[0] and any(seen) and not seen[-1]
    assert infos["final_info"]["success"][0] and not infos["final_info"]["success_at_end"][0]


@pytest.mark.parametrize("act_steps", [1, 3])
def test_state_goes_to_another_vector(act_steps: int) -> None:
    env = make_vec(HOPPER, 3, seed=5, act_steps=act_steps)
    env.reset()
    actions = _random(env, 60)
    for action in actions[:40]:
        env.step(action)
    state = env.state_dict()
    assert state["episode"].max() > 0 and len(set(state["chunks"].tolist())) > 1
    assert all(isinstance(value, np.ndarray) for value in state.values())
    other = make_vec(HOPPER, 3, seed=99, act_steps=act_steps)
    other.load_state_dict(state)
    for action in actions[40:]:
        ours, theirs = env.step(action), other.step(action)
        for left, right in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(left, right)
        for name, value in ours[4]["final_info"].items():
            np.testing.assert_array_equal(value, theirs[4]["final_info"][name], err_msg=name)


def test_state_before_the_first_reset() -> None:
    env, other = (make_vec(HOPPER, 2, seed=4) for _ in range(2))
    other.reset()
    other.load_state_dict(env.state_dict())
    with pytest.raises(TrimtabError, match="reset"):
        other.step(np.zeros((2, 1, 3), np.float32))
    np.testing.assert_array_equal(other.reset()[0], env.reset()[0])


def test_wrong_states() -> None:
    env = make_vec(HOPPER, 2, seed=4)
    env.reset()
    for action in _random(env, 3):
        env.step(action)
    state = env.state_dict()
    wrong = {
        "has": {name: value for name, value in state.items() if name != "chunks"},
        "use the same task": {**state, "obs": state["obs"][:1]},
        "another seed": {**state, "seed": state["seed"] + 1},
        "did not lead": {**state, "actions": -state["actions"]},
        "use the same task, num_envs": {**state, "actions": state["actions"][1:]},
    }
    for message, changed in wrong.items():
        with pytest.raises(TrimtabError, match=message):
            env.load_state_dict(changed)
    env.load_state_dict(state)
    np.testing.assert_array_equal(env.state_dict()["obs"], state["obs"])


@pytest.mark.parametrize(
    "keywords",
    [
        {"num_envs": 0},
        {"num_envs": True},
        {"seed": -1},
        {"seed": 0.5},
        {"act_steps": 0},
        {"discount": 2.0},
        {"device": "cuda"},
        {"horizn": 3},
    ],
)
def test_wrong_arguments(keywords: dict[str, Any]) -> None:
    arguments = {"num_envs": 2, "seed": 0, **keywords}
    with pytest.raises(TrimtabError) as error:
        make_vec(HOPPER, arguments.pop("num_envs"), **arguments)
    assert "\n" not in str(error.value)


def test_wrong_calls() -> None:
    env = make_vec(HOPPER, 2, seed=0)
    zeros = np.zeros((2, 1, 3), np.float32)
    with pytest.raises(TrimtabError, match="call reset"):
        env.step(zeros)
    env.reset()
    with pytest.raises(TrimtabError, match=r"must have shape \(2, 1, 3\), got \(2, 3\)"):
        env.step(zeros[:, 0])
    zeros[1, 0, 2] = np.nan
    with pytest.raises(TrimtabError, match="environment 1 is not finite"):
        env.step(zeros)
    with pytest.raises(TrimtabError, match="seed must be"):
        env.reset(seed=-1)
    with pytest.raises(TrimtabError, match="no options"):
        env.reset(options={"goal": 1})


def test_dictionaries_hold_the_entries_of_the_flat_observation() -> None:
    id = "robotics/PointMaze_UMaze-v3"
    flat = make_vec(id, 2, seed=3, horizon=2)
    named = make_vec(id, 2, seed=3, horizon=2, observations="dict")
    single = make(id, observations="dict")
    assert single.reset(seed=flat.episode_seed(0, 0))[0].keys() == named.reset()[0].keys()
    obs, _ = flat.reset()
    actions = np.full((2, 1, 2), 0.5, np.float32)
    for _ in range(2):
        obs, *_, infos = flat.step(actions)
        parts, *_, more = named.step(actions)
        for wanted, have in ((obs, parts), (infos["final_obs"], more["final_obs"])):
            np.testing.assert_array_equal(have["observation"], wanted[:, :4])
            np.testing.assert_array_equal(have["achieved_goal"], wanted[:, :2])
            np.testing.assert_array_equal(have["desired_goal"], wanted[:, 4:])
    assert infos["_final_obs"].all()
    assert named.single_observation_space.contains({name: part[0] for name, part in parts.items()})


def test_observations_are_flat_or_dictionaries() -> None:
    with pytest.raises(TrimtabError, match="observations must be flat or dict, got 'image'"):
        make_vec("gym/Hopper-v5", 1, seed=0, observations="image")  # type: ignore[call-overload]


@pytest.mark.parametrize("act_steps", [1, 3])
def test_branches_go_on_from_the_very_same_state(act_steps: int) -> None:
    env = make_vec(HOPPER, 4, seed=5, act_steps=act_steps)
    env.reset()
    actions = _random(env, 120)
    seen = [env.step(action)[0] for action in actions[:25]]
    before = env.state_dict()
    past = int(before["chunks"][0])
    assert len(set(before["chunks"].tolist())) > 1 and past > 2
    obs = env.branch(np.array([0, 0, 0, 3]), np.ones(4))
    np.testing.assert_array_equal(obs, before["obs"][[0, 0, 0, 3]])
    alike = actions[25:].copy()
    alike[:, 1] = alike[:, 2] = alike[:, 0]
    for action in alike:  # equal actions, equal bits, up to the end of the episode
        obs, reward, terminated, _, infos = env.step(action)
        assert reward[0] == reward[1] == reward[2] and terminated[0] == terminated[1]
        if terminated[0]:
            break
        np.testing.assert_array_equal(obs[1], obs[0])
        np.testing.assert_array_equal(obs[2], obs[0])
    assert terminated[0]
    final = infos["final_info"]
    assert len(set(final["return"][:3])) == len(set(final["length"][:3])) == 1
    assert final["seed"][0] == final["seed"][1] == before["seed"][0]
    # What comes after are episodes of their own, as if there had been no branch but a count more.
    after = env.state_dict()
    assert after["episode"].tolist()[:3] == (before["episode"][:3] + [1, 2, 2]).tolist()
    assert after["seed"][1] == env.episode_seed(1, int(after["episode"][1]))
    # An earlier state of the episode: all that was seen then, and what came of it.
    again = make_vec(HOPPER, 4, seed=5, act_steps=act_steps)
    again.reset()
    for action in actions[:25]:
        again.step(action)
    share = np.array([0.0, 0.0, 2.5 / (past + 1), 0.3])
    first = again.branch(np.array([0, 0, 0, 3]), share)
    begun = 24 - past  # row of what was seen first in the episode
    np.testing.assert_array_equal(
        first[:3], [row[0] for row in (seen[24], seen[begun], seen[begun + 2])]
    )
    assert again.state_dict()["chunks"].tolist()[:3] == [past, 0, 2]
    following = [actions[row][0] for row in (25, begun + 1, begun + 3)]
    obs, *_ = again.step(np.stack([*following, actions[25][3]]))
    np.testing.assert_array_equal(obs[1:3], [seen[begun + 1][0], seen[begun + 3][0]])


def test_a_branch_is_saved_and_goes_on() -> None:
    env, other = (make_vec(HOPPER, 3, seed=5) for _ in range(2))
    env.reset()
    actions = _random(env, 30)
    for action in actions[:8]:
        env.step(action)
    env.branch(np.array([0, 2, 2]), np.full(3, 0.5))
    for action in actions[8:10]:
        env.step(action)
    state = env.state_dict()
    assert state["branched"].tolist() == [False, True, False]
    other.load_state_dict(state)
    for action in actions[10:]:
        ours, theirs = env.step(action), other.step(action)
        for left, right in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(left, right)
    for name, value in env.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name], err_msg=name)
    # A state of an earlier version does not say what is branched: nothing is.
    del state["branched"]
    with pytest.raises(TrimtabError, match="environment 1 had another seed"):
        other.load_state_dict(state)


def test_wrong_branches() -> None:
    env = make_vec(HOPPER, 2, seed=0)
    with pytest.raises(TrimtabError, match="call reset"):
        env.branch(np.array([0, 0]), np.ones(2))
    first, _ = env.reset()
    for wrong in ([0], [0, 2], [1, 0], [-1, 1]):
        with pytest.raises(TrimtabError, match="branch needs 2 indices of copies that go on"):
            env.branch(np.array(wrong), np.ones(2))
    for share in ([1.0], [0.0, 1.1], [-0.1, 0.0], [0.0, np.nan]):
        with pytest.raises(TrimtabError, match="branch needs 2 shares from 0 to 1"):
            env.branch(np.array([0, 0]), np.array(share))
    np.testing.assert_array_equal(env.branch(np.array([0, 1]), np.ones(2)), first)
    named = make_vec("robotics/PointMaze_UMaze-v3", 2, seed=3, observations="dict")
    parts, _ = named.reset()
    for name, part in named.branch(np.array([1, 1]), np.ones(2)).items():
        np.testing.assert_array_equal(part, parts[name][[1, 1]])


def test_a_simulator_with_chance_of_its_own_is_not_branched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = make_vec("gymnasium:Pendulum-v1", 3, seed=0)
    env.reset()
    for action in _random(env, 2):
        env.step(action)
    play = type(env)._play

    def noisy(self: Any, rows: Any, actions: Any) -> Any:
        played = play(self, rows, actions)
        return played._replace(obs=played.obs + np.arange(3, dtype=np.float32)[:, None])

    monkeypatch.setattr(type(env), "_play", noisy)
    with pytest.raises(TrimtabError, match="of environment 2 did not lead to the saved"):
        env.branch(np.zeros(3, np.int64), np.full(3, 0.4))
