"""Advantages and running scales against sums written out, and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.returns import (
    ReturnScale,
    generalized_advantage,
    next_values,
    normalized,
)
from trimtab.algorithms.on_policy.mdpo import MDPO
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.algorithms.on_policy.trpo import TRPO
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.types import PolicySpec, Rollout

GAMMA, DECAY = 0.97, 0.9


def drawn(steps: int, envs: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return torch.rand(steps, envs, generator=generator, dtype=torch.float64)

    terminated, truncated = uniform() < 0.15, uniform() < 0.15
    return {
        "reward": uniform() - 0.5,
        "value": uniform(),
        "next_value": uniform(),
        "discount": GAMMA * (~terminated).double(),
        "cut": terminated | truncated,
    }


@pytest.mark.parametrize("decay", [0.0, DECAY, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_advantage_is_the_weighted_sum_of_later_errors(decay: float, seed: int) -> None:
    data = drawn(17, 4, seed)
    found = generalized_advantage(**data, decay=decay)
    for env in range(4):
        for start in range(17):
            total, weight = 0.0, 1.0
            for step in range(start, 17):
                row = {name: value[step, env].item() for name, value in data.items()}
                error = row["reward"] + row["discount"] * row["next_value"] - row["value"]
                total += weight * error
                if row["cut"]:
                    break
                weight *= GAMMA * decay
            assert found[start, env].item() == pytest.approx(total, abs=1e-12)


def test_a_time_limit_keeps_the_value_that_a_failure_loses() -> None:
    one = torch.ones(1, 1)
    cut = torch.ones(1, 1, dtype=torch.bool)
    late = generalized_advantage(one, 2 * one, 5 * one, GAMMA * one, cut, DECAY)
    failed = generalized_advantage(one, 2 * one, 5 * one, 0 * one, cut, DECAY)
    assert late.item() == pytest.approx(1 + GAMMA * 5 - 2)
    assert failed.item() == pytest.approx(1 - 2)


def test_next_values_are_the_next_rows_but_for_ends() -> None:
    value = torch.arange(6.0).reshape(3, 2)
    cuts = torch.tensor([1, 4])  # row 0 of the second environment, row 2 of the first
    found = next_values(value, cuts, torch.tensor([60.0, 70.0]), torch.tensor([-1.0, -2.0]))
    assert found.tolist() == [[2.0, -1.0], [4.0, 5.0], [-2.0, 70.0]]


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far() -> None:
    scale = ReturnScale(3, GAMMA)
    generator = np.random.default_rng(0)
    carried, seen = np.zeros(3), []
    for _ in range(4):
        reward = generator.normal(1.0, 2.0, (11, 3))
        cut = generator.random((11, 3)) < 0.2
        for row, ends in zip(reward, cut, strict=True):
            carried = carried * GAMMA + row
            seen.append(carried.copy())
            carried[ends] = 0.0
        found = scale(torch.tensor(reward, dtype=torch.float32), torch.tensor(cut))
        expected = np.clip(reward / np.sqrt(np.var(seen) + 1e-8), -10, 10)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_running_normalizer_is_that_of_all_that_was_seen() -> None:
    spec = PolicySpec(4, 1, 1, (-1.0,), (1.0,))
    normalizer = RunningNormalizer(spec)
    generator = np.random.default_rng(1)
    parts = [generator.normal(5.0, 3.0, (size, 2, 4)).astype(np.float32) for size in (1, 7, 40)]
    far = torch.tensor([[3.0, -50.0, 1e6, 11.0]])
    assert torch.equal(normalizer.obs(far), far)  # the limit is in deviations, unknown as yet
    unfitted = RunningNormalizer(spec)
    unfitted.load_state_dict(normalizer.state_dict())
    assert torch.equal(unfitted.obs(far), far)
    for part in parts:
        normalizer.see(torch.tensor(part))
    rows = np.concatenate(parts).reshape(-1, 4).astype(np.float64)
    obs = generator.normal(5.0, 3.0, (6, 4)).astype(np.float32)
    expected = (obs - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)
    np.testing.assert_allclose(normalizer.obs(torch.tensor(obs)), expected, rtol=1e-4, atol=1e-5)
    assert normalizer.obs(torch.full((1, 4), 1e6)).max() == 10.0
    restored = RunningNormalizer(spec)
    restored.load_state_dict(normalizer.state_dict())
    assert torch.equal(restored.obs(torch.tensor(obs)), normalizer.obs(torch.tensor(obs)))
    assert restored.obs(torch.full((1, 4), 1e6)).max() == 10.0


def test_the_advantage_of_a_single_decision_stays_as_it_is() -> None:
    assert normalized(torch.tensor([3.0])).tolist() == [3.0]
    assert normalized(torch.tensor([[3.0], [-2.0]])).tolist() == [[3.0], [-2.0]]
    many = normalized(torch.tensor([1.0, 2.0, 6.0]))
    assert many.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert many.std().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kind", [PPO, TRPO, MDPO])
def test_a_rollout_of_one_decision_is_learned_from(kind: type[PPO]) -> None:
    torch.manual_seed(0)
    spec = PolicySpec(4, 1, 1, (-1.0,), (1.0,))
    learner = kind(Setup(spec), rollout_steps=1, epochs=2)
    obs = torch.randn(1, 1, 4)
    _, aux = learner.explore(obs[0], warmup=False)
    one = torch.ones(1, 1)
    metrics = learner.update(
        Rollout(
            obs=obs, action=torch.zeros(1, 1, 1, 1), reward=one, next_obs=obs + 1,
            discount=0.99 * one, cut=one < 0, aux={"unclipped": aux["unclipped"][None]},
        )
    )  # fmt: skip
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    for weight in [*learner.policy.parameters(), *learner.critic.parameters()]:
        assert weight.isfinite().all()
