"""APRL: the cost of actions beyond the limit, the ramp, and the surprise that begins it again."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.aprl import APRL, Ramp
from trimtab.types import Batch

BatchOf = Callable[..., Batch]
Make = Callable[..., APRL]


@pytest.fixture
def make(setup_of: Callable[..., Setup]) -> Make:
    def made(**keywords: Any) -> APRL:
        torch.manual_seed(1)
        settings = {"hidden": (16, 16), "layer_norm": True, "warmup_steps": 10, "ramp_steps": 100}
        return APRL(setup_of(set()), **{**settings, "updates_per_decision": 2.0, **keywords})

    return made


def test_only_actions_with_a_number_beyond_the_limit_cost(make: Make) -> None:
    method = make(first_limit=0.5, last_limit=0.5, penalty=3.0)
    action = torch.tensor([[[0.4, -0.5], [0.1, -0.6]], [[0.9, 0.2], [-0.8, -0.7]]])
    action.requires_grad_()
    loss = method.penalized(torch.tensor(2.0), action)
    # Of the four actions the first stays inside (at the limit is inside); all of the others counts.
    known = 2.0 + 3.0 * ((0.1 + 0.6) + (0.9 + 0.2) + (0.8 + 0.7)) / 2
    assert float(loss.detach()) == pytest.approx(known)
    assert float(method.ramp.beyond) == pytest.approx(3 / 4)
    (slope,) = torch.autograd.grad(loss, action)
    assert slope.tolist() == [[[0, 0], [1.5, -1.5]], [[1.5, 1.5], [-1.5, -1.5]]]
    free = make(penalty=0.0)
    assert float(free.penalized(torch.tensor(2.0), action).detach()) == 2.0


def test_the_limit_is_the_actors_and_grows_with_the_steps(make: Make, batch_of: BatchOf) -> None:
    method = make(actor_every=1, first_limit=0.2, last_limit=0.6)
    assert method.steps == 10.0 and float(method.ramp.limit(0.0)) == pytest.approx(0.2)
    for seed in range(4):  # two updates a decision of two steps
        found = method.update(batch_of(method, seed=seed))
    assert method.steps == 14.0
    assert float(found["limit"]) == pytest.approx(0.2 + 0.4 * 0.14)
    assert 0 < float(found["beyond_limit"]) <= 1
    assert float(method.ramp.limit(5_000.0)) == pytest.approx(0.6)
    costly = copy.deepcopy(method)
    costly.penalty += 1.0
    losses = []
    for one in (method, costly):
        torch.manual_seed(5)
        losses.append(float(one.update(batch_of(one, seed=9))["actor_loss"]))
    assert losses[1] > losses[0]


def test_surprise_begins_the_ramp_again_by_hand() -> None:
    ramp = Ramp(0.2, 0.8, 100, threshold=1.0)
    newest = torch.tensor([True, False, True])
    ramp.see(torch.tensor([0.5, 90.0, 0.7]), newest)
    ramp.see(torch.tensor([0.9, 90.0, 0.7]), newest)
    ramp.judge(50.0)
    assert float(ramp.average) == pytest.approx(0.7)
    assert float(ramp.limit(50.0)) == pytest.approx(0.5)
    ramp.judge(55.0)  # nothing new was seen: nothing changes
    assert float(ramp.average) == pytest.approx(0.7) and float(ramp.start) == pytest.approx(0.2)
    ramp.see(torch.tensor([1.5, 0.0, 1.5]), newest)
    ramp.judge(60.0)  # (0.7 + 1.5) / 2 is above 1, and half of 0.56 is above the first limit
    assert float(ramp.average) == pytest.approx(1.1)
    assert float(ramp.limit(60.0)) == pytest.approx(0.28)
    assert float(ramp.limit(110.0)) == pytest.approx((0.28 + 0.8) / 2)
    ramp.see(torch.tensor([1.2, 0.0, 1.2]), newest)  # the average has begun anew
    ramp.judge(61.0)
    assert float(ramp.average) == pytest.approx(1.2)
    assert float(ramp.limit(61.0)) == pytest.approx(0.2), "it never shrinks below the first limit"
    never = Ramp(0.2, 0.8, 100, threshold=None)
    never.see(torch.tensor([1e9, 0.0, 0.0]), newest)
    never.judge(50.0)
    assert float(never.limit(50.0)) == pytest.approx(0.5)


def test_newest_rows_are_told_by_their_moment(make: Make, batch_of: BatchOf) -> None:
    method = make(actor_every=2, surprise_window=3)  # judged every 6 updates
    assert method.judged_every == 6
    before = copy.deepcopy(method.dynamics)
    method.updates = 20
    action, aux = method.explore(torch.randn(4, 5), warmup=False)
    assert aux["moment"].tolist() == [20.0] * 4 and action.shape == (4, 2, 2)
    data = replace(batch_of(method), aux={"moment": torch.arange(16.0) + 6.0})
    found = method.update(data)
    assert float(found["dynamics_loss"]) == 0.0, "it learns beside the actor"
    method.updates = 19
    method.count.updates.fill_(19)
    found = method.update(data)
    obs = method.actor.normalizer.obs(data.obs)
    action = method.actor.normalizer.normalize_action(data.action).flatten(1)
    predicted = (obs + before(torch.cat([obs, action], 1))).detach()
    errors = (predicted - method.actor.normalizer.obs(data.next_obs)).square().mean(1)
    assert float(found["dynamics_loss"]) == pytest.approx(float(errors.mean()), rel=1e-5)
    newest = [row for row in range(16) if row + 6 > 20 - 6]
    assert float(method.ramp.rows) == len(newest) == 7
    assert float(method.ramp.total) == pytest.approx(float(errors[newest].sum()), rel=1e-5)
    assert not torch.equal(before[0].weight, method.dynamics[0].weight)


def test_warm_up_keeps_within_the_limit_mostly(make: Make) -> None:
    torch.manual_seed(3)
    method = make(first_limit=0.4)
    action, _ = method.explore(torch.randn(4000, 5), warmup=True)
    size = method.actor.normalizer.normalize_action(action).abs().amax((1, 2))
    assert 0.59 < float(size.max()) <= 0.6 + 1e-6
    beyond = float((size > 0.4).float().mean())
    assert beyond == pytest.approx(0.15 * (1 - (0.4 / 0.6) ** 4), abs=0.02)


def test_critics_have_dropout(make: Make) -> None:
    torch.manual_seed(0)
    method, rows = make(dropout=0.5), torch.randn(1, 7).expand(400, 7)
    value = method.critic(rows[:, :5], torch.zeros(400, 2, 2))
    assert float(value.detach().std(1).min()) > 0.01
    sure = make(dropout=0.0)
    assert float(sure.critic(rows[:, :5], torch.zeros(400, 2, 2)).detach().std(1).max()) < 1e-5
    kinds = [type(layer).__name__ for layer in method.critic.network][:4]
    assert kinds == ["EnsembleLinear", "Dropout", "EnsembleLayerNorm", "ReLU"]
    # A hidden number is 0 by this chance, and twice as large else: its mean is the number itself.
    dropped = method.critic.network[1](torch.ones(2, 20_000, 1))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert float(dropped.mean()) == pytest.approx(1.0, abs=4 / math.sqrt(40_000))
