"""Learned models of the dynamics, and the gate of RL-100 that judges candidates with them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from loading import load_module
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal

from trimtab.algorithms.common.gate import Gate
from trimtab.policies.networks.dynamics import DynamicsEnsemble

Known = load_module(Path(__file__).with_name("small.py")).Known


def test_model_loss_is_the_likelihood() -> None:
    torch.manual_seed(0)
    model = DynamicsEnsemble(3, 4, hidden=(8,), members=2)
    obs, action, reached = torch.randn(6, 3), torch.randn(6, 2, 2), torch.randn(6, 3)
    ended = torch.tensor([True, False, False, True, False, False])
    rows = torch.cat([obs, action.flatten(1)], 1).expand(2, -1, -1)
    out = model.network(rows)
    change, raw, end = out[..., :3], out[..., 3:6], out[..., 6]
    high, low = 0.5, -10.0
    log_variance = high - nn.functional.softplus(high - raw)
    log_variance = low + nn.functional.softplus(log_variance - low)
    likelihood = Normal(obs + change, (0.5 * log_variance).exp()).log_prob(reached).sum(-1)
    likelihood = likelihood + 3 * 0.918938533 + Bernoulli(logits=end).log_prob(ended.float())
    expected = -likelihood.mean(1).sum()
    torch.testing.assert_close(model.loss(obs, action, reached, ended), expected)


def test_each_row_is_predicted_by_its_member() -> None:
    torch.manual_seed(0)
    model = DynamicsEnsemble(3, 4, hidden=(8,), members=2)
    obs, action = torch.randn(6, 3), torch.randn(6, 2, 2)
    reached, ended = model(obs, action)
    for row in range(6):
        rows = torch.cat([obs, action.flatten(1)], 1)[row].expand(2, 1, -1)
        out = model.network(rows)[row % 2, 0]
        torch.testing.assert_close(reached[row], obs[row] + out[:3])
        torch.testing.assert_close(ended[row], torch.sigmoid(out[6]))


def test_models_learn_a_linear_system_and_its_end() -> None:
    torch.manual_seed(0)
    model = DynamicsEnsemble(2, 1, hidden=(32,), members=3)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def play(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        obs, action = 2 * torch.rand(count, 2) - 1, 2 * torch.rand(count, 1, 1) - 1
        reached = obs @ torch.tensor([[0.9, 0.2], [-0.2, 0.9]]) + 0.3 * action[:, 0]
        return obs, action, reached, obs[:, 0] > 0.5

    for _ in range(300):
        optimizer.zero_grad()
        model.loss(*play(128)).backward()
        optimizer.step()
    obs, action, reached, ended = play(300)
    with torch.no_grad():
        found, chance = model(obs, action)
    assert float((found - reached).abs().mean()) < 0.05
    assert float(((chance > 0.5) == ended).float().mean()) > 0.93


def test_score_by_a_loop() -> None:
    gate = Gate(2, 2, decisions=3)
    gate.dynamics = Known()
    obs = torch.randn(5, 2)  # of which the members share four
    found = gate.score(
        obs, lambda s: 0.5 * s[:, None], lambda s, a: torch.stack([s.sum(1), a[:, 0].sum(1) + 1.0])
    )
    total = weight = 0.0
    for row in range(4):
        state, alive = obs[row], 1.0
        for _ in range(3):
            total += alive * min(float(state.sum()), float(0.5 * state.sum()) + 1.0)
            weight += alive
            state, alive = 1.5 * state, alive * 0.8
    assert float(found) == pytest.approx(total / weight, rel=1e-5)


def test_a_small_batch_is_shared_by_all_members() -> None:
    gate = Gate(2, 2, decisions=1)
    found = gate.score(torch.ones(1, 2), lambda s: s[:, None], lambda s, a: s.T)
    assert float(found) == pytest.approx(1.0)


def test_only_a_better_candidate_is_accepted() -> None:
    gate = Gate(2, 2, decisions=1)
    gate.set_baseline(torch.tensor(1.0))
    accepted, good, bad = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    before = copy.deepcopy(accepted.state_dict())
    for score in (0.5, 1.0):  # strictly better
        gate.accept_if_better(torch.tensor(score), accepted, bad)
        assert all(torch.equal(v, before[k]) for k, v in accepted.state_dict().items())
    gate.accept_if_better(torch.tensor(1.5), accepted, good)
    assert torch.equal(accepted.weight, good.weight)
    assert (float(gate.best), float(gate.accepted)) == (1.5, 1.0)
    again = Gate(2, 2, decisions=1)
    gate.updates = 7
    again.load_state_dict(gate.state_dict())
    assert (again.updates, float(again.best)) == (7, 1.5)
