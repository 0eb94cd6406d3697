"""Guided TD3+BC: the gradient through the virtual step row by row, and whom it imitates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.guided_td3_bc import GuidedTD3BC
from trimtab.types import Batch, PolicySpec, Statistics


def test_the_step_of_the_guide_and_the_loss_by_hand(
    setup_of: Callable[..., Setup], batch_of: Callable[..., Batch]
) -> None:
    torch.manual_seed(3)
    method = GuidedTD3BC(
        setup_of({"dataset"}), hidden=(16, 16), actor_every=1, guide_share=0.25, virtual_rate=0.7,
        learning_rate=1e-2,
    )  # fmt: skip
    data = replace(batch_of(method), whole=True)
    before = copy.deepcopy(method)
    loss = method.update(data)["actor_loss"]
    policy, obs = before.policy, data.obs / 1.001
    action = (data.action - torch.tensor([0.0, 0.75])) / torch.tensor([1.0, 1.25])
    last, count = policy.network[-1], data.valid.sum()
    value = method.critic(obs, policy.squashed(data.obs))[0]
    climb = -2.5 / value.abs().mean().detach() * value.mean()
    parameters = (last.weight, last.bias)
    read = torch.cat([obs, action.flatten(1)], 1)
    weight = 2.0 * torch.sigmoid(before.guide(read)[:, 0])

    # The virtual step: each row's own gradient, times its weight.
    step = [slope.clone() for slope in torch.autograd.grad(climb, parameters, retain_graph=True)]
    rows = []
    for row in range(16):
        done = int(data.valid[row].sum())
        error = (policy.squashed(data.obs[row : row + 1])[0] - action[row])[:done] ** 2
        rows.append(torch.autograd.grad(error.mean(1).sum() / count, parameters))
        step = [s + weight[row].detach() * g for s, g in zip(step, rows[-1], strict=True)]
    moved = [(p - 0.7 * s).detach().requires_grad_() for p, s in zip(parameters, step, strict=True)]
    assert data.mc_return is not None
    experts = data.mc_return.argsort(descending=True)[:4]
    features = policy.network[:-1](obs[experts])
    acted = torch.tanh(features @ moved[0].T + moved[1]).reshape(4, 2, 2)
    guide_loss = ((acted - action[experts]) ** 2).mean(2)[data.valid[experts]].mean()
    slopes = torch.autograd.grad(guide_loss, moved)
    # d L_G / d w_i = -eta <grad L_G at theta', grad of row i>.
    by_weight = torch.stack(
        [-0.7 * sum((s * g).sum() for s, g in zip(slopes, one, strict=True)) for one in rows]
    )
    wanted = torch.autograd.grad((weight * by_weight).sum(), list(before.guide.parameters()))
    for old, new, slope in zip(
        before.guide.parameters(), method.guide.parameters(), wanted, strict=True
    ):
        first = old - 1e-2 * slope / (slope.abs() + 1e-8)  # Adam's first step
        sure = slope.abs() > 1e-6
        torch.testing.assert_close(new[sure], first[sure], atol=2e-5, rtol=1e-3)
        assert sure.any()

    # The real step, with the weights that the guide gives now.
    weight = 2.0 * torch.sigmoid(method.guide(read)[:, 0])
    error = ((policy.squashed(data.obs) - action) ** 2).mean(2) * weight[:, None]
    torch.testing.assert_close(loss, (climb + error[data.valid].mean()).detach())


def test_experts_are_those_that_are_given(
    setup_of: Callable[..., Setup], batch_of: Callable[..., Batch]
) -> None:
    setup = setup_of({"dataset"})
    data = batch_of(GuidedTD3BC(setup, hidden=(8,)))
    method = GuidedTD3BC(replace(setup, expert=data), hidden=(8,), guide_share=0.5)
    assert not method.batch_spec.mc_return and GuidedTD3BC(setup, hidden=(8,)).batch_spec.mc_return
    own = torch.zeros(16, 2)
    torch.manual_seed(5)
    obs, action, valid = method.experts(data, own, own)
    torch.manual_seed(5)
    rows = torch.randint(16, (8,))
    assert len(rows.unique()) > 3
    torch.testing.assert_close(obs, method.policy.normalizer.obs(data.obs[rows]))
    torch.testing.assert_close(
        action, (data.action[rows] - torch.tensor([0.0, 0.75])) / torch.tensor([1.0, 1.25])
    )
    assert torch.equal(valid, data.valid[rows])


def test_it_imitates_like_its_experts() -> None:
    """Half of the data pushes to the left and half to the right; four expert rows say which."""
    torch.manual_seed(0)
    zero = torch.zeros(1)
    statistics = Statistics(zero, zero + 1, zero - 1, zero + 1, zero - 1, zero + 1)
    obs = torch.randn(64, 1)
    action = torch.where(torch.arange(64) < 32, 0.5, -0.5)[:, None, None]
    rows = torch.zeros(64)
    data = Batch(
        obs=obs, action=action, reward=rows, next_obs=obs, discount=rows,
        valid=torch.ones(64, 1, dtype=torch.bool), mc_return=rows, whole=True,
    )  # fmt: skip
    expert = Batch(obs[:4], action[:4], rows[:4], obs[:4], rows[:4], data.valid[:4])
    setup = Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), expert=expert, statistics=statistics)
    method = GuidedTD3BC(setup, alpha=0.0, hidden=(32,), actor_every=1, learning_rate=3e-3)
    for _ in range(400):
        method.update(data)
    assert method.policy.act(obs)[:, 0, 0].mean() > 0.35


def test_it_imitates_what_collects_more() -> None:
    torch.manual_seed(0)
    zero = torch.zeros(1)
    statistics = Statistics(zero, zero + 1, zero - 1, zero + 1, zero - 1, zero + 1)
    setup = Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), statistics=statistics)
    method = GuidedTD3BC(
        setup, alpha=0.0, hidden=(32,), actor_every=1, learning_rate=3e-3, guide_share=0.2
    )
    good = torch.arange(64) < 32
    action = torch.where(good, 0.5, -0.5)[:, None, None]
    obs, nothing = torch.zeros(64, 1), torch.zeros(64)
    valid = torch.ones(64, 1, dtype=torch.bool)
    batch = Batch(obs, action, nothing, obs, nothing, valid, mc_return=good.float(), whole=True)
    for _ in range(300):
        method.update(batch)
    weight = method.weights(obs, action)
    assert weight[good].mean() > 4 * weight[~good].mean()
    assert method.policy.act(obs[:1], deterministic=True).item() > 0.25  # an even clone: 0
