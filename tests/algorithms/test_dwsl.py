"""DWSL: bins, distances and weights by hand, and a corridor whose distances are known."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.dwsl import DWSL
from trimtab.types import Batch, PolicySpec, Statistics


@pytest.fixture
def method(setup_of: Callable[..., Setup]) -> DWSL:
    torch.manual_seed(2)
    return DWSL(setup_of({"dataset"}), hidden=(16, 16), bins=12, clip=1.2)


def test_bins_and_distances_by_hand(method: DWSL) -> None:
    steps = torch.tensor([0, 1, 2, 11, 12, 13, 400])
    assert method.bin_of(steps).tolist() == [11, 0, 1, 10, 11, 11, 11]
    chance = torch.tensor([[0.5, 0.25, 0.25, *[0.0] * 9], [*[0.0] * 11, 1.0]]).clamp_min(1e-30)
    expected = torch.tensor([0.75 / 12, 11 / 12])
    torch.testing.assert_close(method.estimate(chance.log()), expected)
    method.alpha = 0.1
    far = torch.arange(12) / 12
    soft = -0.1 * ((chance * torch.exp(-far / 0.1)).sum(1)).log()
    torch.testing.assert_close(method.estimate(chance.log()), soft)
    assert soft[0] < expected[0]


def test_losses_by_hand(method: DWSL, batch_of: Callable[..., Batch]) -> None:
    with torch.no_grad():  # so that advantages differ, and some weights are cut
        method.distance[-1].weight.mul_(8.0)
    data, before = batch_of(method), copy.deepcopy(method)
    found = method.update(data)
    log_p = before.distance(data.obs / 1.001).log_softmax(1)
    next_p = before.distance(data.next_obs / 1.001).softmax(1)
    far = torch.arange(12) / 12
    nll, policy_loss, cut = torch.zeros(()), torch.zeros(()), 0
    scale, shift = torch.tensor([1.0, 1.25]), torch.tensor([0.0, 0.75])
    for row in range(16):
        nll -= log_p[row, min(row - 1, 11) if row else 11] / 16  # the fixture's goals: row steps
        after = (next_p[row] * far).sum() if data.discount[row] > 0 else 0.0
        advantage = (log_p[row].exp() * far).sum() - 1 / 12 - after
        weight = torch.exp(advantage / 0.05)
        cut += int(weight > 1.2)
        done = int(data.valid[row].sum())
        error = (
            before.policy.squashed(data.obs[row : row + 1])[0] - (data.action[row] - shift) / scale
        )
        policy_loss += weight.clamp(max=1.2) * (error[:done] ** 2).sum() / 16
    assert 0 < cut < 16 and (data.discount == 0).any()
    torch.testing.assert_close(found["distance_loss"], nll.detach())
    torch.testing.assert_close(found["policy_loss"], policy_loss.detach())


def test_in_a_corridor_it_goes_to_the_goal() -> None:
    """Random walks on ten places: the distance grows, and of two moves it imitates the nearer."""
    torch.manual_seed(0)
    zero = torch.zeros(2)
    statistics = Statistics(zero, zero + 1, zero - 1, zero + 1, -torch.ones(1), torch.ones(1))
    spec = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
    method = DWSL(Setup(spec, statistics=statistics), hidden=(64, 64), bins=30, learning_rate=3e-3)
    walk = torch.where(torch.rand(2000, 30) < 0.5, -1, 1)
    place = torch.zeros(2000, 31, dtype=torch.long) + torch.randint(10, (2000, 1))
    for step in range(30):
        place[:, step + 1] = (place[:, step] + walk[:, step]).clamp(0, 9)
    for _ in range(250):
        row, now = torch.randint(2000, (256,)), torch.randint(30, (256,))
        later = now + 1 + (torch.rand(256) * (30 - now)).long()
        here, there, goal = (place[row, at].float() / 10 for at in (now, now + 1, later))
        batch = Batch(
            torch.stack([here, goal], 1), walk[row, now].float()[:, None, None], torch.zeros(256),
            torch.stack([there, goal], 1), torch.ones(256), torch.ones(256, 1, dtype=torch.bool),
            goal_steps=later - now,
        )  # fmt: skip
        method.update(batch)
    obs = torch.tensor([[0.1, 0.8], [0.3, 0.8], [0.5, 0.8], [0.7, 0.8], [0.8, 0.1], [0.6, 0.1]])
    far = method.estimate(method.distance(method.policy.normalizer.obs(obs)))
    assert far[0] > far[2] > far[3] and far[4] > far[3]
    action = method.policy.act(obs, deterministic=True)[:, 0, 0]
    assert (action[:4] > 0.1).all() and (action[4:] < -0.1).all()
