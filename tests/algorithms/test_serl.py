"""SERL: its classifier's loss, its rewards and what they do to the critics' target."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.offline_to_online.serl import SERL
from trimtab.algorithms.phases import Budget
from trimtab.types import Batch, TrimtabError

BatchOf = Callable[..., Batch]
Make = Callable[..., SERL]


@pytest.fixture
def make(setup_of: Callable[..., Setup]) -> Make:
    def made(**keywords: Any) -> SERL:
        torch.manual_seed(1)
        settings = {"hidden": (16, 16), "classifier_hidden": (16,), "success_reward": 0.7}
        return SERL(setup_of({"dataset"}), **{**settings, **keywords})

    return made


def test_classes_weigh_the_same_by_hand(make: Make, batch_of: BatchOf) -> None:
    method = make()
    data = batch_of(method)  # rewards are uniform from 0 to 1
    data = replace(data, reward=data.reward.index_fill(0, torch.tensor([3]), 0.7))
    before = copy.deepcopy(method.classifier)
    found = method.classify(data)
    losses: dict[bool, list[float]] = {True: [], False: []}
    right: dict[bool, int] = {True: 0, False: 0}
    for row in range(16):
        success = row == 3 or float(data.reward[row]) > 0.7
        logit = before(method.actor.normalizer.obs(data.next_obs)[row][None]).item()
        chance = 1 / (1 + math.exp(-logit))
        losses[success].append(-math.log(chance if success else 1 - chance))
        right[success] += (chance > 0.5) == success
    known = sum(sum(each) / len(each) for each in losses.values()) / 2
    assert len(losses[True]) not in (0, 8, 16)
    assert float(found["classifier_loss"]) == pytest.approx(known, rel=1e-5)
    assert float(found["successes"]) == pytest.approx(len(losses[True]) / 16)
    assert float(found["recognised"]) == pytest.approx(right[True] / len(losses[True]))
    assert float(found["rejected"]) == pytest.approx(right[False] / len(losses[False]))
    none = replace(data, reward=torch.zeros(16))
    assert math.isfinite(float(method.classify(none)["classifier_loss"]))


def test_it_learns_what_a_success_is_and_rewards_it(make: Make, batch_of: BatchOf) -> None:
    """Success is where the third number is above 1; the data's own rewards are far off online."""
    method = make(classifier_learning_rate=1e-2)

    def labelled(seed: int) -> Batch:
        data = batch_of(method, count=128, seed=seed)
        return replace(data, reward=(data.next_obs[:, 2] > 1.0).float())

    for seed in range(120):
        found = method.classify(labelled(seed))
    assert min(float(found["recognised"]), float(found["rejected"])) > 0.9
    data = replace(batch_of(method, count=128, seed=999), reward=torch.full((128,), 37.0))
    true = (data.next_obs[:, 2] > 1.0).float().mean()
    assert float(method.update(data)["successes"]) == pytest.approx(float(true), abs=0.08)


def test_the_target_is_the_classifiers_and_ends_at_a_success(
    make: Make, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(backup_entropy=False)
    data = batch_of(method)
    seen: list[torch.Tensor] = []
    usual = SAC.critic_loss

    def recording(self: SAC, value: torch.Tensor, backup: torch.Tensor) -> torch.Tensor:
        seen.append(backup)
        return usual(self, value, backup)

    monkeypatch.setattr(SAC, "critic_loss", recording)
    following = torch.linspace(5.0, 6.0, 16)
    monkeypatch.setattr(method, "next_value", lambda *_: following)
    logit = torch.where(torch.arange(16) % 3 == 0, 0.1, -0.1)
    monkeypatch.setattr(method, "logits", lambda _: logit)
    method.update(data)
    for row in range(16):
        goes_on = float(data.discount[row] * following[row])
        assert float(seen[0][row]) == pytest.approx(1.0 if row % 3 == 0 else goes_on)


def test_the_classifier_is_fixed_online(make: Make, batch_of: BatchOf) -> None:
    method = make()
    classifier, policy = method.phases(Budget(offline_steps=3, online_steps=4))
    assert (classifier.update, policy.update) == (method.classify, method.update)
    before = copy.deepcopy(method.classifier.state_dict())
    actor = copy.deepcopy(method.actor.state_dict())
    method.classify(batch_of(method))
    moved = method.classifier.state_dict()
    assert any(not torch.equal(v, before[k]) for k, v in moved.items())
    assert all(torch.equal(v, actor[k]) for k, v in method.actor.state_dict().items())
    before = copy.deepcopy(moved)
    for seed in range(4):
        method.update(batch_of(method, seed=seed))
    after = method.classifier.state_dict()
    assert all(torch.equal(v, before[k]) for k, v in after.items())


def test_it_needs_offline_updates(make: Make) -> None:
    with pytest.raises(TrimtabError, match=r"offline_steps=0: the success classifier learns"):
        make().phases(Budget(offline_steps=0, online_steps=5))
    with pytest.raises(TrimtabError, match=r"classifier_learning_rate=-1: must be at least 0"):
        make(classifier_learning_rate=-1)
