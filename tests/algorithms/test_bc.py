"""Behaviour cloning's schedule and moving average against their closed forms."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import Batch, TrimtabError

USES = {"policy", "dataset"}


@pytest.fixture
def clone(setup_of: Callable[..., Setup]) -> Callable[..., BehaviorCloning]:
    """Make a learner of a small Gaussian policy."""

    def make(**keywords: Any) -> BehaviorCloning:
        torch.manual_seed(0)
        policy = functools.partial(GaussianPolicy, hidden=(8,))
        return BehaviorCloning(replace(setup_of(USES), policy=policy), **keywords)

    return make


def test_learning_rate_falls_by_a_cosine_and_stays(
    clone: Callable[..., BehaviorCloning], batch_of: Callable[..., Batch]
) -> None:
    learner = clone(learning_rate=1e-2, final_learning_rate=1e-3, decay_updates=8)
    batch = batch_of(learner)
    for update in range(12):
        rate = learner.update(batch)["learning_rate"]
        progress = min(update / 8, 1.0)
        expected = 1e-3 + 9e-3 * (1 + math.cos(math.pi * progress)) / 2
        assert rate == pytest.approx(expected, rel=1e-9)
        assert learner.optimizer.learning_rate == rate
    assert rate == pytest.approx(1e-3)


def test_no_decay_means_the_final_rate(
    clone: Callable[..., BehaviorCloning], batch_of: Callable[..., Batch]
) -> None:
    learner = clone(learning_rate=1e-2, final_learning_rate=1e-3, decay_updates=0)
    learner.update(batch_of(learner))
    assert learner.update(batch_of(learner))["learning_rate"] == pytest.approx(1e-3)


def test_average_is_that_of_the_learners_weights(
    clone: Callable[..., BehaviorCloning], batch_of: Callable[..., Batch]
) -> None:
    learner = clone(learning_rate=1e-2, ema_decay=0.25)
    history = [copy.deepcopy(learner.learner.state_dict())]
    for step in range(6):
        learner.update(batch_of(learner, seed=step))
        history.append(copy.deepcopy(learner.learner.state_dict()))
    decays = [min(0.25, (1 + n) / (10 + n)) for n in range(6)]
    assert decays[0] == 0.1 and decays[-1] == 0.25  # the warm-up and its end are both passed
    # The average is a sum over all weights so far: each enters with 1 - decay and then decays.
    shares = [math.prod(decays)]
    shares += [(1 - decays[n]) * math.prod(decays[n + 1 :]) for n in range(6)]
    assert sum(shares) == pytest.approx(1.0)
    for name, value in learner.policy.named_parameters():
        expected = sum(s * weights[name] for s, weights in zip(shares, history, strict=True))
        torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-5)
        assert not value.requires_grad
    assert not learner.policy.training


def test_without_averaging_the_learner_is_judged(
    clone: Callable[..., BehaviorCloning], batch_of: Callable[..., Batch]
) -> None:
    learner = clone(ema_decay=0.0)
    for step in range(3):
        learner.update(batch_of(learner, seed=step))
    for judged, learned in zip(
        learner.policy.parameters(), learner.learner.parameters(), strict=True
    ):
        assert torch.equal(judged, learned)


def test_takes_one_adam_step_on_the_policys_own_loss(
    clone: Callable[..., BehaviorCloning], batch_of: Callable[..., Batch]
) -> None:
    learner = clone(learning_rate=1e-2)
    batch = batch_of(learner)
    other = copy.deepcopy(learner.learner)
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-2)
    loss = other.bc_loss(batch)
    loss.backward()
    optimizer.step()
    assert learner.update(batch)["bc_loss"] == pytest.approx(loss.item(), rel=1e-6)
    for ours, theirs in zip(learner.learner.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_fits_a_gaussian_to_its_data(
    clone: Callable[..., BehaviorCloning], batch_of: Callable[..., Batch]
) -> None:
    learner = clone(learning_rate=1e-2, decay_updates=200)
    for step in range(200):
        batch = batch_of(learner, count=64, seed=step)
        target = 0.3 * torch.tanh(batch.obs[:, :2])[:, None] + 0.2
        learner.update(replace(batch, action=target.expand(-1, 2, -1)))
    batch = batch_of(learner, count=200, seed=1000)
    error = learner.policy.act(batch.obs, deterministic=True) - (
        0.3 * torch.tanh(batch.obs[:, :2])[:, None] + 0.2
    )
    assert float(error.abs().mean()) < 0.06  # the mean alone is wrong by 0.2


def test_a_policy_that_cannot_be_cloned_is_refused_in_one_line(
    setup_of: Callable[..., Setup], batch_of: Callable[..., Batch]
) -> None:
    policy = functools.partial(TanhGaussianPolicy, hidden=(8,))
    learner = BehaviorCloning(replace(setup_of(USES), policy=policy))
    with pytest.raises(TrimtabError, match="tanh_gaussian policy has no behaviour-cloning loss"):
        learner.update(batch_of(learner))
