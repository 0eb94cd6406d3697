"""OGSRL: the guardian, the guarded critics, the actor and its multiplier by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.ogsrl import OGSRL, Guardian
from trimtab.algorithms.phases import Budget, Feed
from trimtab.types import Batch

BatchOf = Callable[..., Batch]


@pytest.fixture
def make(setup_of: Callable[..., Setup]) -> Callable[..., OGSRL]:
    def made(**keywords: Any) -> OGSRL:
        torch.manual_seed(4)
        small = {"hidden": (16, 16), "batch_size": 16, "references": 40}
        return OGSRL(setup_of({"dataset"}), **{**small, **keywords})

    return made


def test_the_guardian_is_a_kernel_density_and_a_percentile() -> None:
    torch.manual_seed(0)
    guardian = Guardian(3, references=200, bandwidth=0.535, percentile=5.0)
    assert bool(guardian.inside(torch.randn(9, 2), torch.randn(9, 1, 1)).all())  # knows nothing yet
    seen = torch.randn(260, 3) * torch.tensor([1.0, 40.0, 0.0]) + torch.tensor([3.0, 0.0, 7.0])
    for first in range(0, 260, 65):
        guardian.take(seen[first : first + 65])
    kept = seen[60:].double().numpy()
    low, high = kept.min(0), kept.max(0)

    def density(point: np.ndarray) -> float:
        total = 0.0
        for other in kept:
            wide = np.where(high - low > 1e-4, high - low, 2.0)
            apart = 2 * (point - other) / wide
            total += math.exp(-float(apart @ apart) / (2 * 0.535**2))
        return total / len(kept)

    own = [(200 * density(point) - 1) / 199 for point in kept]  # each among the others
    assert float(guardian.threshold) == pytest.approx(float(np.percentile(own, 5)), rel=1e-4)
    asked = torch.cat([seen[60:], seen[60:] + torch.tensor([9.0, 0.0, 0.0])])
    expected = [density(point) for point in asked.double().numpy()]
    assert guardian.density(asked).tolist() == pytest.approx(expected, rel=1e-3, abs=1e-7)
    found = guardian.inside(asked[:, :2], asked[:, 2:].reshape(-1, 1, 1))
    assert found.tolist() == [one >= np.percentile(own, 5) for one in expected]
    assert 180 < int(found[:200].sum()) < 200 and not found[200:].any()


def test_it_watches_the_data_first(make: Callable[..., OGSRL], batch_of: BatchOf) -> None:
    method = make()
    phases = method.phases(Budget(offline_steps=30, online_steps=0))
    assert [(one.name, one.length) for one in phases] == [("guardian", 3), ("offline", 30)]
    assert all(one.feed is Feed.DATASET for one in phases)
    assert method.phases(Budget(offline_steps=0, online_steps=0)) == ()
    batches = [batch_of(method, seed=seed) for seed in range(3)]
    for data in batches:
        found = method.watch(data)
    normalizer, rows = method.policy.normalizer, []
    for data in batches:
        action = normalizer.normalize_action(data.action).flatten(1)
        rows.append(torch.cat([normalizer.obs(data.obs), action], dim=1))
    assert torch.equal(method.guardian.points, torch.cat(rows)[-40:])
    assert found == {"threshold": method.guardian.threshold} and found["threshold"] > 0


def by_hand(method: OGSRL, data: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return both critics' losses and the share outside, row by row, before an update."""
    assert data.cost is not None
    normalizer, gamma = method.policy.normalizer, 0.99
    decisions = (1 - gamma**20) / (1 - gamma)
    following = method.smoothed_action(data.next_obs)
    planned = torch.where(data.valid[..., None], data.action, method.policy.act(data.obs))
    scaled = normalizer.normalize_action(planned)
    losses, left = [torch.zeros(()), torch.zeros(())], 0
    for row in range(len(data)):
        obs, then = (normalizer.obs(one[row, None]) for one in (data.obs, data.next_obs))  # type: ignore[index]
        mu = method.policy.squashed(data.obs[row, None])  # type: ignore[index]
        aimed = method.policy_target.squashed(data.next_obs[row, None])  # type: ignore[index]
        inside = bool(method.guardian.inside(then, aimed))
        outside = not bool(method.guardian.inside(obs, mu))
        left += outside
        for number, (critic, target, paid, worth) in enumerate(
            (
                (method.critic, method.critic_target, data.reward, -25 * decisions),
                (method.cost_critic, method.cost_target, data.cost, 2 * decisions),
            )
        ):
            ahead = target(then, following[row, None]).flatten()
            ahead = (ahead.max() if number else ahead.min()) if inside else worth
            backup = paid[row] + data.discount[row] * ahead
            for member in range(2):
                error = (critic(obs, scaled[row, None])[member, 0] - backup) ** 2
                if outside:
                    error = error + (critic(obs, mu)[member, 0] - worth) ** 2
                losses[number] = losses[number] + error / len(data)
    return losses[0], losses[1], torch.tensor(left / len(data))


def test_critics_by_hand(make: Callable[..., OGSRL], batch_of: BatchOf) -> None:
    method = make(actor_every=2, percentile=60.0, guard_cost=2.0)
    for seed in range(3):
        method.watch(batch_of(method, seed=seed))
    data = batch_of(method, seed=0)
    with torch.no_grad():
        for target in (method.critic_target, method.cost_target):
            for weight in target.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        torch.manual_seed(6)
        expected = by_hand(method, data)
    assert 0 < expected[2] < 1
    torch.manual_seed(6)
    found = method.update(data)
    for name, value in zip(("critic_loss", "cost_loss", "outside"), expected, strict=True):
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4), name
    assert found["actor_loss"] == 0.0 and found["multiplier"] == 0.0


def test_actor_and_multiplier_by_hand(make: Callable[..., OGSRL], batch_of: BatchOf) -> None:
    method = make(actor_every=1, alpha=3.0, learning_rate=1e-3, cost_limit=0.2, multiplier_rate=0.5)
    data = batch_of(method, seed=1)
    method.dual.multiplier.fill_(0.7)  # type: ignore[operator, union-attr]
    before = copy.deepcopy(method.policy)
    old_target = copy.deepcopy(method.cost_target)
    obs = method.policy.normalizer.obs(data.obs)
    found = method.improve(data, obs)
    mu = before.squashed(data.obs)
    q, c = method.critic(obs, mu)[0], method.cost_critic(obs, mu)[0]
    gain, action = q - 0.7 * c, before.normalizer.normalize_action(data.action)
    apart = ((mu - action).square().mean(2) * data.valid).sum() / data.valid.sum()
    loss = apart - 3.0 * gain.mean() / gain.abs().mean().detach()
    paid = float(c.mean().detach())
    assert float(found["actor_loss"]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(found["cost_mean"]) == pytest.approx(paid, rel=1e-5)
    expected = max(0.0, 0.7 + 0.5 * (paid - 0.2))
    assert float(found["multiplier"]) == pytest.approx(expected, rel=1e-5)
    gradients = torch.autograd.grad(loss, list(before.parameters()))
    for old, new, slope in zip(
        before.parameters(), method.policy.parameters(), gradients, strict=True
    ):  # Adam's first step is the rate against the gradient's sign
        steps = -1e-3 * slope / (slope.abs() + 1e-8)
        assert torch.allclose(new - old, steps, atol=1e-5)
    for old, new, ahead in zip(
        old_target.parameters(), method.cost_target.parameters(),
        method.cost_critic.parameters(), strict=True,
    ):  # fmt: skip
        assert torch.allclose(new, 0.995 * old + 0.005 * ahead)
    method.dual.multiplier.fill_(0.0)  # type: ignore[operator, union-attr]
    method.cost_limit = 1e3
    assert method.improve(data, obs)["multiplier"] == 0.0  # never below
    method.cost_limit, method.multiplier_rate = -1e9, 1.0
    assert method.improve(data, obs)["multiplier"] == 100.0


def test_costs_are_learned_and_the_limit_binds(make: Callable[..., OGSRL]) -> None:
    """One state, costs and rewards that grow with the action: the limit decides the action."""
    torch.manual_seed(1)
    actions = []
    for limit in (0.1, 10.0):
        method = make(cost_limit=limit, multiplier_rate=0.05, learning_rate=3e-3, batch_size=64,
                      guard_penalty=1.0, references=128)  # fmt: skip
        for step in range(302):
            action = torch.rand(64, 2, 2) * torch.tensor([2.0, 2.5]) - torch.tensor([1.0, 0.5])
            first = (action[:, 0, 0] + 1) / 2
            data = Batch(
                obs=torch.zeros(64, 5), action=action, reward=first, next_obs=torch.zeros(64, 5),
                discount=torch.zeros(64), valid=torch.ones(64, 2, dtype=torch.bool), whole=True,
                cost=(first > 0.5).float(),
            )  # fmt: skip
            method.watch(data) if step < 2 else method.update(data)
        actions.append(float(method.policy.act(torch.zeros(1, 5))[0, 0, 0]))
    assert actions[0] < 0.05 and actions[1] > 0.15, actions
