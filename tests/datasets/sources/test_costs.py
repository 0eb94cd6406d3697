"""Costs beside rewards: what a task says, a recording keeps, a batch has and a judge adds up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from played import evaluate

from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.minari.writer import save
from trimtab.datasets.recipes.waypoints import WaypointController
from trimtab.datasets.recording import play
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.datasets.sources.streaming import load
from trimtab.envs.registry import get_spec, make
from trimtab.envs.vector import make_vec
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.types import BatchSpec, PolicySpec, TrimtabError

TASK, NAME = "robotics/PointMaze-TwoRoutes-v0", "PointMaze-TwoRoutes-v0"
ROUTES = (((-0.7, 2.9), (0.8, 3.0), (1.5, 0.0)), ((-0.7, -2.9), (0.8, -3.0), (1.5, 0.0)))


def dear(position: np.ndarray) -> bool:
    """Return whether (x, y) is above the block: |x| < 1 m, y > 2.5 m."""
    return bool(abs(position[0]) < 1.0 and position[1] > 2.5)


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Two episodes by each way, the first by the upper one."""
    env = make(TASK, cost="upper")
    episodes = []
    for number in range(4):
        route = ROUTES[number % 2]

        def walker(task: str, generator: np.random.Generator) -> WaypointController:
            return WaypointController(task, generator, noise=0.1, routes=(route,))  # noqa: B023

        episodes.append(
            play(env, NAME, walker, seed=0, attempt=number, success_key=env.success_key)
        )
    env.close()
    spec = get_spec(TASK, cost="upper")
    limits = (spec.action_low, spec.action_high)
    return Dataset("toy/dear-v0", TASK, {"cost": "upper"}, episodes, *limits)


def test_a_recording_has_the_cost_of_each_step(data: Dataset) -> None:
    for number, episode in enumerate(data.episodes):
        expected = [dear(one[:2]) for one in episode.observations[1:]]
        assert episode.infos["cost"].tolist() == expected
        assert (sum(expected) > 3) == (number % 2 == 0)
    env = make(TASK)
    env.reset(seed=0)
    assert not env.costly and "cost" not in env.step(np.zeros(2, np.float32))[4]
    env.close()
    assert get_spec(TASK).options == {} and get_spec(TASK, cost="none") == get_spec(TASK)


def test_a_batch_has_costs_where_they_are_asked_for_streamed_or_not(
    data: Dataset, tmp_path: Path
) -> None:
    save(data, tmp_path / "data")
    streamed = load(tmp_path / "data", tmp_path / "columns")
    found = []
    for kind, one in ((ReplayBuffer.from_dataset, data), (StreamedBuffer, streamed)):
        source = kind(  # type: ignore[operator]
            one, window=3, discount=0.9, chunked=True, batch_spec=BatchSpec(n_step=2, cost=True)
        )
        found.append(source.sample(200))
        assert kind(one).sample(3).cost is None  # type: ignore[operator]
    batch = found[0]
    assert batch.cost is not None and torch.equal(batch.cost, found[1].cost)
    places = {
        tuple(obs.tolist()): (episode, step)
        for episode in data.episodes
        for step, obs in enumerate(episode.observations[:-1])
    }
    for obs, cost in zip(batch.obs, batch.cost, strict=True):
        episode, step = places[tuple(obs.tolist())]
        paid = episode.infos["cost"][step : step + 6]
        expected = paid[:3].sum() + 0.9 * paid[3:].sum()
        assert float(cost) == pytest.approx(float(expected), abs=1e-5)
    assert len(set(batch.cost.tolist())) > 3


def test_data_without_costs_is_one_line(data: Dataset) -> None:
    def said(infos: dict[str, np.ndarray]) -> str:
        last = replace(data.episodes[-1], infos=infos)
        wrong = replace(data, episodes=(*data.episodes[:-1], last))
        with pytest.raises(TrimtabError, match="have no costs of finite numbers") as caught:
            ReplayBuffer.from_dataset(wrong, batch_spec=BatchSpec(cost=True))
        return str(caught.value)

    steps = len(data.episodes[-1])
    for infos in ({}, {"cost": np.full(steps, np.nan)}, {"cost": np.zeros((steps, 2))}):
        assert "\n" not in said(infos)


def test_the_judge_and_chunks_add_costs_up() -> None:
    envs = make_vec(TASK, 2, seed=3, act_steps=4, cost="upper")
    obs, _ = envs.reset()
    single = make(TASK, cost="upper")
    single.reset(seed=envs.episode_seed(0, 0))
    up = np.tile(np.array([0.3, 1.0], np.float32), (2, 4, 1))
    total = 0.0
    for _ in range(12):
        _, _, _, _, info = envs.step(up)
        expected = sum(single.step(up[0, 0])[4]["cost"] for _ in range(4))
        assert info["cost"][0] == expected
        total += expected
    assert total > 4
    envs.close()
    single.close()
    spec = get_spec(TASK)
    policy = DeterministicPolicy(
        PolicySpec(spec.obs_dim, 1, 2, spec.action_low, spec.action_high), hidden=(8,)
    )
    with torch.no_grad():  # always the action above
        for weight in policy.parameters():
            weight.zero_()
        policy.network[-1].bias.copy_(torch.tensor([0.31, 3.0]))  # type: ignore[union-attr, operator]
    scores = evaluate(policy, TASK, episodes=2, seed=5, options={"cost": "upper"})
    plain = evaluate(policy, TASK, episodes=2, seed=5)
    assert plain.mean_cost is None and "cost" not in plain.episodes[0].metrics
    assert "cost" not in plain.words and scores.words.endswith(f"cost {scores.mean_cost:.2f}")
    env = make(TASK, cost="upper")
    for one in scores.episodes:
        obs, _ = env.reset(seed=one.eval_seed)
        expected, over = 0.0, False
        while not over:
            action = policy.act(torch.from_numpy(obs)[None])[0, 0].numpy()
            obs, _, ended, cut, info = env.step(action)
            expected, over = expected + info["cost"], ended or cut
        assert one.metrics["cost"] == expected > 0
    env.close()


def test_a_method_that_wants_costs_refuses_other_data_and_interaction(tmp_path: Path) -> None:
    words = [
        f"env={TASK}", "env_options.cost=upper", "algorithm=ogsrl", "algorithm.hidden=[8]",
        "dataset=two_routes", "dataset.episodes=2", f"out={tmp_path}",
    ]  # fmt: skip
    for more, said in (
        (["offline_steps=9", "other_task=true"], "have no costs of finite numbers"),
        (["offline_steps=9"], "is of robotics/PointMaze-TwoRoutes-v0 with env_options"),
        (["offline_steps=9", "online_steps=9", "other_task=true"], "does not learn from interact"),
        (["source=policy_guided_diffusion", "other_task=true"], "learns from costs"),
    ):
        with pytest.raises(TrimtabError, match=said) as caught:
            train(compose_run([*words, *more]))
        assert "\n" not in str(caught.value)
