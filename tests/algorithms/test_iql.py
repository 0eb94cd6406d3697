"""IQL against closed forms: expectiles, a chain that is solved by iteration, weighted densities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import load_module
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.expectiles import expectile_loss
from trimtab.algorithms.offline.iql import IQL
from trimtab.algorithms.phases import Budget
from trimtab.types import Batch

chain = load_module(Path(__file__).with_name("chain.py"))

SetupOf = Callable[..., Setup]


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.7, 0.9])
def test_the_loss_is_least_at_the_expectile_of_a_sample(expectile: float) -> None:
    """Of {0, 1, 5}: tau times what lies above equals 1 - tau times what lies below."""
    sample = torch.tensor([0.0, 1.0, 5.0])
    # Below 1: m = 6 tau / (1 + tau); from 1 on: m = (5 tau + (1 - tau)) / (2 - tau).
    known = 6 * expectile / (1 + expectile)
    if known > 1:
        known = (5 * expectile + (1 - expectile)) / (2 - expectile)
    value = torch.tensor(known, requires_grad=True)
    (slope,) = torch.autograd.grad(expectile_loss(value.expand(1, 3), sample, expectile), value)
    assert float(slope) == pytest.approx(0.0, abs=1e-6)
    (off,) = torch.autograd.grad(
        expectile_loss((value + 0.1).expand(1, 3), sample, expectile), value
    )
    assert float(off) > 0.02


def every_push() -> Batch:
    """Every push of the chain once."""
    rows = [(state, sign, *step) for (state, sign), step in chain.STEPS.items()]
    return Batch(
        obs=torch.tensor(chain.seen([row[0] for row in rows])),
        action=chain.PUSH * torch.tensor([[[float(row[1])]] for row in rows]),
        reward=torch.tensor([row[3] for row in rows]),
        next_obs=torch.tensor(chain.seen([row[2] or 0 for row in rows])),
        discount=torch.tensor([0.0 if row[2] is None else chain.GAMMA for row in rows]),
        valid=torch.ones(len(rows), 1, dtype=torch.bool),
    )


def known_values(expectile: float) -> tuple[np.ndarray, dict[tuple[int, int], float]]:
    """Return V and Q: V is the expectile of two equally likely values, tau max + (1 - tau) min."""
    value = np.zeros(chain.STATES)
    for _ in range(300):
        worth = {
            key: reward + (0.0 if reached is None else chain.GAMMA * value[reached])
            for key, (reached, reward) in chain.STEPS.items()
        }
        pairs = [sorted((worth[state, -1], worth[state, 1])) for state in range(chain.STATES)]
        value = np.array([(1 - expectile) * low + expectile * high for low, high in pairs])
    return value, worth


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_values_are_expectiles_on_the_chain_and_the_policy_takes_the_better_push(
    expectile: float,
) -> None:
    torch.manual_seed(0)
    method = chain.built(
        "iql", hidden=[32, 32], learning_rate=5e-3, tau=0.3, expectile=expectile, beta=3.0
    )
    data = every_push()
    for _ in range(600):
        method.update(data)
    value, worth = known_values(expectile)
    read = method.policy.normalizer.obs
    found = method.value(read(torch.tensor(chain.seen(range(chain.STATES))))).squeeze(-1)
    torch.testing.assert_close(found, torch.tensor(value).float(), atol=0.05, rtol=0)
    asked = torch.tensor(list(worth.values()))
    for row in method.critic(read(data.obs), data.action):
        torch.testing.assert_close(row, asked.float(), atol=0.08, rtol=0)
    # Weighted regression on two pushes: their mean with weights exp(beta A), within the tanh.
    action = method.policy.act(torch.tensor(chain.seen(range(3))), deterministic=True).flatten()
    for state in range(chain.STATES):
        weight = {
            sign: min(np.exp(3.0 * (worth[state, sign] - value[state])), 100.0) for sign in (-1, 1)
        }
        mean = chain.PUSH * (weight[1] - weight[-1]) / (weight[1] + weight[-1])
        assert float(action[state]) == pytest.approx(mean, abs=0.08)


def test_the_policy_loss_is_the_weighted_log_density(
    setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    """Row by row, with the advantage from before V's step, and its bound."""
    torch.manual_seed(0)
    method = IQL(setup_of({"dataset"}), hidden=(16,), beta=40.0, most_weight=3.0)
    method.policy.free_log_std.data.copy_(torch.tensor([[0.3, -0.4], [-30.0, 0.1]]))
    data = batch_of(method)
    data = Batch(**{**vars(data), "valid": torch.ones_like(data.valid)})
    policy = method.policy
    read, action = policy.normalizer.obs(data.obs), policy.normalizer.normalize_action(data.action)
    with torch.no_grad():
        advantage = method.target(read, action).amin(0) - method.value(read).squeeze(-1)
        deviation = torch.tensor([[0.3, -0.4], [-20.0, 0.1]]).exp()
        density = Normal(policy.mean(data.obs), deviation).log_prob(action)
    total, weights = 0.0, []
    for row in range(len(data)):
        weights.append(min(float((40.0 * advantage[row]).exp()), 3.0))
        total -= weights[-1] * float(density[row].sum()) / 2  # the mean over a chunk's two actions
    assert min(weights) < 1.0 and max(weights) == 3.0
    metrics = method.update(data)
    assert float(metrics["actor_loss"]) == pytest.approx(total / len(data), rel=1e-4)


def test_the_policys_rate_falls_offline_and_is_whole_online(
    setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    method = IQL(setup_of({"dataset"}), hidden=(8,), learning_rate=1e-3, decay_updates=4)
    data, rates = batch_of(method), []
    offline, online = method.phases(Budget(offline_steps=5, online_steps=5))
    for phase in [offline] * 5 + [online]:
        assert phase.update is not None
        phase.update(data)
        rates.append(method.policy_optimizer.learning_rate)
    expected = [1e-3 * (1 + np.cos(np.pi * k / 4)) / 2 for k in range(5)]
    assert rates == pytest.approx([*expected, 1e-3])
