"""Goals as dictionaries: rewards computed anew, hindsight replay of a peer, Gymnasium's limits."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import SAC, HerReplayBuffer

import trimtab.envs.register  # noqa: F401  (registers every id with Gymnasium)
from trimtab.envs.registry import get_spec, list_tasks, make
from trimtab.errors import TrimtabError

GOALS = [
    "robotics/FetchReach-v4",
    "robotics/FetchPushDense-v4",
    "robotics/PointMaze_UMaze-v3",
    "robotics/PointMaze_UMazeDense-v3",
    "robotics/PointMaze-TwoRoutes-v0",
    "robotics/AntMaze_UMazeDense-v5",
]


def _gymnasium(id: str) -> str:
    return f"trimtab/{id.replace('/', '.')}"


@pytest.mark.parametrize("id", GOALS)
def test_rewards_are_those_that_the_goals_give(id: str) -> None:
    generator = np.random.default_rng(0)
    with contextlib.closing(cast(Any, make(id, observations="dict"))) as env:
        achieved, desired, rewards = [], [], []
        for seed in range(3):
            env.reset(seed=seed)
            for _ in range(30):
                action = generator.uniform(env.action_space.low, env.action_space.high)
                obs, reward, terminated, *_ = env.step(action.astype(np.float32))
                achieved.append(obs["achieved_goal"])
                desired.append(obs["desired_goal"])
                rewards.append(reward)
                if terminated:
                    break
        # As hindsight replay asks: a batch, with one info each.
        batch = env.compute_reward(np.stack(achieved), np.stack(desired), [{}] * len(rewards))
        np.testing.assert_allclose(batch, rewards, rtol=0, atol=1e-6)
        one = env.compute_reward(achieved[0], desired[0], {})
        np.testing.assert_allclose(one, rewards[0], rtol=0, atol=1e-6)
        # Where one has arrived is where one wanted to be: the best reward of the task.
        there = env.compute_reward(np.stack(achieved), np.stack(achieved), [{}] * len(rewards))
        best = 0.0 if "Fetch" in id else 1.0
        np.testing.assert_array_equal(there, np.full(len(rewards), best))


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("gym/Hopper-v5", {}),
        ("robotics/AdroitHandDoor-v1", {}),
        ("robotics/FetchReachDense-v4", {"reward": "sparse"}),
        ("ogbench/pointmaze-medium-v0", {}),
    ],
)
def test_no_reward_is_computed_where_goals_do_not_decide_it(
    id: str, options: dict[str, Any]
) -> None:
    with contextlib.closing(cast(Any, make(id, observations="dict", **options))) as env:
        assert not hasattr(env, "compute_reward")
        assert not env.has_wrapper_attr("compute_reward")


@pytest.mark.parametrize("id", ["robotics/FetchReach-v4", "robotics/PointMaze_UMaze-v3"])
def test_hindsight_replay_of_a_peer_learns_from_it(id: str) -> None:
    env = gymnasium.make(_gymnasium(id), observations="dict")
    model = SAC(
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        policy_kwargs={"net_arch": [16]},
        learning_starts=310,
        batch_size=32,
        seed=0,
    )
    model.learn(320)
    buffer = model.replay_buffer
    assert isinstance(buffer, HerReplayBuffer)
    batch = buffer.sample(500)
    goals = cast(dict[str, Any], batch.next_observations)
    again = make(id, observations="dict")
    expected = cast(Any, again).compute_reward(
        goals["achieved_goal"].numpy(), goals["desired_goal"].numpy(), [{}] * 500
    )
    np.testing.assert_array_equal(batch.rewards.numpy().ravel(), expected)
    assert len(np.unique(expected)) == 2  # what was not reached is there, and what was relabelled
    again.close()
    env.close()


def test_gymnasium_knows_every_horizon() -> None:
    for id, task in list_tasks().items():
        spec = gymnasium.spec(_gymnasium(id))
        assert spec.max_episode_steps == task.horizon, id


def _length(env: gymnasium.Env[Any, Any]) -> int:
    env.reset(seed=0)
    for step in range(1, 1000):
        _, _, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape, np.float32))
        assert not terminated
        if truncated:
            return step
    raise AssertionError("no end")


def test_gymnasium_cuts_where_it_says(caplog: pytest.LogCaptureFixture) -> None:
    id, name = "robotics/FetchReach-v4", _gymnasium("robotics/FetchReach-v4")
    with contextlib.closing(gymnasium.make(name)) as env:
        assert env.spec is not None and env.spec.max_episode_steps == get_spec(id).horizon == 50
        assert _length(env) == 50
        limits, inner = 0, env
        while isinstance(inner, gymnasium.Wrapper):
            limits += isinstance(inner, gymnasium.wrappers.TimeLimit)
            inner = inner.env
        assert limits == 1
    with contextlib.closing(gymnasium.make(name, max_episode_steps=20)) as env:
        assert _length(env) == 20
    with contextlib.closing(gymnasium.make(name, horizon=60, max_episode_steps=60)) as env:
        assert _length(env) == 60
    with contextlib.closing(gymnasium.make(name, horizon=7)) as env:
        assert _length(env) == 7
    with caplog.at_level(logging.WARNING):
        gymnasium.make(name, horizon=60, max_episode_steps=60).close()
    assert "max_episode_steps" in caplog.text
    with pytest.raises(TrimtabError, match="horizon"):
        gymnasium.make(name, horizon="long")
