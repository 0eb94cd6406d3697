"""The judge: the same episodes every time, whatever runs beside them, and equal to a plain loop."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from played import evaluate

from trimtab.benchmarks.training.evaluate import (
    MOST_ENVS,
    EpisodeScore,
    Evaluator,
    torch_act,
)
from trimtab.envs.registry import get_spec, make
from trimtab.policies.agent import PolicyInputs
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec, TrimtabError

MAZE = "robotics/PointMaze-TwoRoutes-v0"
HOPPER = "gym/Hopper-v5"
Array = NDArray[np.float32]


class Linear:
    """A policy that computes each row alone, so that its neighbours cannot change it."""

    def __init__(self, env: str, horizon: int = 1) -> None:
        spec = get_spec(env)
        generator = np.random.default_rng(3)
        self.weight = 0.3 * generator.standard_normal((spec.obs_dim, spec.action_dim))
        self.horizon = horizon

    def __call__(self, obs: Array, noise: Array) -> Array:
        rows = [
            np.tanh((row * self.weight.T).sum(1) + 0.5 * extra.sum())
            for row, extra in zip(obs.astype(float), noise, strict=True)
        ]
        return np.repeat(np.array(rows, np.float32)[:, None], self.horizon, axis=1)


def untimed(scores: tuple[EpisodeScore, ...]) -> list[tuple[object, ...]]:
    """Return scores without how long they took."""
    return [(s.eval_episode, s.eval_seed, s.return_, s.success, s.length) for s in scores]


def judged(
    env: str, episodes: int, seed: int, *, deterministic: bool, horizon: int
) -> list[tuple[object, ...]]:
    evaluator = Evaluator(env, episodes=episodes, seed=seed, options={"horizon": horizon})
    try:
        scores = evaluator.judge(Linear(env), PolicyInputs((2,)), deterministic=deterministic)
    finally:
        evaluator.close()
    return untimed(scores.episodes)


@pytest.mark.bits
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_judge_gives_the_same_scores_again(deterministic: bool) -> None:
    evaluator = Evaluator(HOPPER, episodes=22, seed=5)
    policy = Linear(HOPPER)
    first = evaluator.judge(policy, PolicyInputs((2,)), deterministic=deterministic)
    second = evaluator.judge(policy, PolicyInputs((2,)), deterministic=deterministic)
    evaluator.close()
    assert untimed(first.episodes) == untimed(second.episodes)
    assert [score.eval_seed for score in first.episodes] == [5 + i for i in range(22)]
    assert len({score.length for score in first.episodes}) > 1  # episodes did end by themselves


def test_noise_is_drawn_unless_it_is_zero() -> None:
    certain = judged(HOPPER, 4, 0, deterministic=True, horizon=50)
    sampled = judged(HOPPER, 4, 0, deterministic=False, horizon=50)
    assert [row[2] for row in certain] != [row[2] for row in sampled]


@pytest.mark.bits
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_episode_does_not_depend_on_how_many_run_beside_it(deterministic: bool) -> None:
    whole = judged(HOPPER, 6, 40, deterministic=deterministic, horizon=60)
    parts = [judged(HOPPER, 1, 40 + i, deterministic=deterministic, horizon=60) for i in range(6)]
    for row, (alone,) in zip(whole, parts, strict=True):
        assert row[1:] == alone[1:]
    # 12 episodes are 6 environments of two rounds each: the first six seeds are the same episodes.
    assert judged(HOPPER, 12, 40, deterministic=deterministic, horizon=60)[:6] == whole


@pytest.mark.bits
def test_a_network_is_judged_alike_in_any_company() -> None:
    spec = get_spec(MAZE)
    torch.manual_seed(0)
    policy = FlowPolicy(
        PolicySpec(spec.obs_dim, 4, spec.action_dim, spec.action_low, spec.action_high),
        hidden=[16],
        sampling_steps=2,
    )
    options = {"horizon": 30}
    whole = evaluate(policy, MAZE, episodes=6, seed=9, options=options)
    again = evaluate(policy, MAZE, episodes=6, seed=9, options=options)
    assert untimed(whole.episodes) == untimed(again.episodes)
    for i, score in enumerate(whole.episodes):
        (alone,) = evaluate(policy, MAZE, episodes=1, seed=9 + i, options=options).episodes
        assert alone.return_ == pytest.approx(score.return_, abs=1e-5)
        assert (alone.success, alone.length) == (score.success, score.length)


def by_hand(env: gymnasium.Env[Array, Array], seed: int, act_steps: int) -> tuple[float, int]:
    policy = Linear(HOPPER, act_steps)
    stream = np.random.Generator(np.random.Philox(seed))
    obs, _ = env.reset(seed=seed)
    total, length, ended = 0.0, 0, False
    while not ended:
        noise = stream.standard_normal((1, 2), dtype=np.float32)
        for action in policy(obs[None], noise)[0]:
            obs, reward, terminated, truncated, _ = env.step(action)
            total, length = total + float(reward), length + 1
            ended = terminated or truncated
            if ended:
                break
    return total, length


@pytest.mark.bits
@pytest.mark.parametrize("act_steps", [1, 3])
def test_an_episode_is_that_of_a_plain_loop_with_its_seed(act_steps: int) -> None:
    evaluator = Evaluator(HOPPER, episodes=3, seed=70, act_steps=act_steps)
    scores = evaluator.judge(Linear(HOPPER, act_steps), PolicyInputs((2,)), deterministic=False)
    evaluator.close()
    env = make(HOPPER)
    for score in scores.episodes:
        total, length = by_hand(env, score.eval_seed, act_steps)
        assert score.return_ == pytest.approx(total, abs=1e-9)
        assert score.length == length
    env.close()


def test_success_is_none_where_a_task_has_no_such_notion() -> None:
    evaluator = Evaluator(HOPPER, episodes=2, seed=0)
    scores = evaluator.judge(Linear(HOPPER), PolicyInputs((0,)), deterministic=True)
    evaluator.close()
    assert [score.success for score in scores.episodes] == [None, None]
    assert scores.success_rate is None
    assert scores.mean_return == np.mean([score.return_ for score in scores.episodes])


def test_success_at_any_step_counts() -> None:
    def toward_the_goal(obs: Array, noise: Array) -> Array:
        return np.zeros((len(obs), 1, 2), np.float32)

    evaluator = Evaluator(MAZE, episodes=2, seed=0, options={"horizon": 10})
    states = iter([False, True, False] + [False] * 30)
    step = evaluator.envs.step

    def with_success(actions: Array) -> object:
        *rest, info = step(actions)
        info["success"][:] = [next(states), False]
        return (*rest, info)

    evaluator.envs.step = with_success  # type: ignore[method-assign, assignment]
    scores = evaluator.judge(toward_the_goal, PolicyInputs((0,)), deterministic=True)
    evaluator.close()
    assert [score.success for score in scores.episodes] == [True, False]
    assert scores.success_rate == 0.5


@pytest.mark.parametrize(
    ("episodes", "side_by_side"), [(1, 1), (7, 7), (10, 10), (11, 1), (12, 6), (22, 2), (50, 10)]
)
def test_every_environment_has_equally_many_episodes(episodes: int, side_by_side: int) -> None:
    evaluator = Evaluator(MAZE, episodes=episodes, seed=100, options={"horizon": 1})
    assert evaluator.envs.num_envs == side_by_side <= MOST_ENVS
    seeds: list[list[int]] = [[] for _ in range(side_by_side)]
    reset = [env.reset for env in evaluator.envs.envs]

    def recorded(index: int) -> object:
        def wrapper(*, seed: int) -> object:
            seeds[index].append(seed)
            return reset[index](seed=seed)

        return wrapper

    for index, env in enumerate(evaluator.envs.envs):
        env.reset = recorded(index)  # type: ignore[method-assign, assignment]
    scores = evaluator.judge(Linear(MAZE), PolicyInputs((0,)), deterministic=True)
    evaluator.close()
    rounds = episodes // side_by_side
    assert sorted(seed for own in seeds for seed in own[:rounds]) == [
        100 + i for i in range(episodes)
    ]
    assert [score.eval_episode for score in scores.episodes] == list(range(episodes))


def test_no_episode_and_no_task_are_refused() -> None:
    spec = get_spec(MAZE)
    policy = FlowPolicy(
        PolicySpec(spec.obs_dim, 2, spec.action_dim, spec.action_low, spec.action_high), hidden=[8]
    )
    with pytest.raises(TrimtabError, match="episodes must be at least 1"):
        evaluate(policy, MAZE, episodes=0, seed=0)
    with pytest.raises(TrimtabError, match="gym/Hopper-v5"):
        evaluate(policy, "gym/Hoper-v5", episodes=1, seed=0)


def test_a_policy_as_a_function_of_arrays() -> None:
    policy = FlowPolicy(PolicySpec(3, 2, 1, (-1.0,), (1.0,)), hidden=[8])
    obs, noise = np.ones((4, 3), np.float32), np.ones((4, *policy.noise_shape), np.float32)
    action = torch_act(policy)(obs, noise)
    assert action.shape == (4, 2, 1) and action.dtype == np.float32
    with torch.no_grad():
        expected = policy(torch.ones(4, 3), torch.ones(4, *policy.noise_shape))
    np.testing.assert_array_equal(action, expected.numpy())
