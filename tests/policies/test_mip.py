"""The two-step regression policy: its loss by hand, its two steps, what it can and cannot fit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from trimtab.algorithms.common.adam import Adam
from trimtab.policies.kinds.mip import MIPPolicy
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(3, 2, 1, (-1.0,), (1.0,))


def batch_of(action: torch.Tensor, obs: torch.Tensor) -> Batch:
    count = len(obs)
    return Batch(
        obs=obs, action=action, reward=torch.zeros(count), next_obs=obs,
        discount=torch.ones(count), valid=torch.ones(count, 2, dtype=torch.bool),
    )  # fmt: skip


def made() -> MIPPolicy:
    torch.manual_seed(0)
    return MIPPolicy(SPEC, hidden=(32, 32), time_dim=8)


def test_the_loss_is_that_of_both_steps() -> None:
    policy = made()
    batch = batch_of(torch.rand(6, 2, 1) - 0.5, torch.randn(6, 3))
    torch.manual_seed(3)
    loss = policy.bc_loss(batch)
    torch.manual_seed(3)
    epsilon = torch.randn(6, 2, 1)
    condition = policy.network.condition(batch.obs)
    total = 0.0
    for row in range(6):
        one = condition[row : row + 1]
        clean = batch.action[row : row + 1]
        start = policy.network(torch.zeros(1, 2, 1), torch.zeros(1), one)
        moved = clean + 0.1 * epsilon[row : row + 1]
        end = policy.network(moved, torch.full((1,), 0.9), one)
        total += float(
            ((start.detach() - clean) ** 2).mean() / 0.81
            + ((end.detach() - clean) ** 2).mean() / 0.01
        )
    assert float(loss) == pytest.approx(0.01 * total / 6, rel=1e-5)
    halved = dataclasses.replace(batch, valid=torch.tensor([[True, False]] * 6))
    assert float(policy.bc_loss(halved)) != pytest.approx(float(loss))


def test_it_acts_in_two_steps_and_draws_nothing() -> None:
    policy = made()
    obs = torch.randn(4, 3)
    condition = policy.network.condition(obs)
    first = policy.network(torch.zeros(4, 2, 1), torch.zeros(1), condition)
    second = policy.network(first, torch.full((1,), 0.9), condition)
    action = policy(obs, policy.sample_noise(4))
    torch.testing.assert_close(action, second.clamp(-1, 1))
    assert policy.noise_shape == (0,)


def test_it_fits_a_function_and_averages_two_modes() -> None:
    """It is no distribution: of two equally likely actions it plays the one between."""
    policy = made()
    optimizer = Adam(policy.parameters(), 3e-3)
    obs = torch.randn(256, 3)
    sign = torch.where(torch.arange(256) % 2 == 0, 1.0, -1.0)[:, None]
    action = torch.stack([0.5 * obs[:, :1].tanh(), 0.6 * sign], dim=1)
    for _ in range(600):
        optimizer.step(policy.bc_loss(batch_of(action, obs)))
    fresh = torch.randn(512, 3)
    played = policy.act(fresh)
    assert float((played[:, 0] - 0.5 * fresh[:, :1].tanh()).square().mean()) < 0.01
    assert float(played[:, 1].mean().abs()) < 0.2


def test_a_time_outside_of_the_path_is_one_line() -> None:
    with pytest.raises(TrimtabError, match="second_time=1.0: must be above 0 and below 1"):
        MIPPolicy(SPEC, second_time=1.0)
