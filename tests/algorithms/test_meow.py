"""MEow: its values against integrals and a loop, and what it learns against a known answer."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.meow import MEow
from trimtab.types import Batch, PolicySpec

small = load_module(Path(__file__).with_name("small.py"))


def meow(horizon: int = 1, actions: int = 1, **settings: Any) -> MEow:
    """Return one whose prior and shifts depend on the state, which they do not at first."""
    torch.manual_seed(2)
    spec = PolicySpec(3, horizon, actions, (-2.0,) * actions, (2.0,) * actions)
    wide: Any = {"log_std_min": -1.0, "log_std_max": 0.5}  # no value outweighs all the others
    algorithm = MEow(Setup(spec), hidden=(16, 16), shift_hidden=(16,), **wide, **settings)
    with torch.no_grad():
        for module in (algorithm.policy.prior, algorithm.values.shifts):
            for weight in module.parameters():
                weight.add_(0.5 * torch.randn_like(weight))
    return algorithm


def test_advantage_is_the_temperature_times_the_log_density() -> None:
    algorithm = meow(2, 2, alpha=0.3)
    values = algorithm.values.double()
    obs, action = torch.randn(50, 3).double(), 2 * torch.rand(50, 2, 2).double() - 1
    advantage = values.of_actions(obs, action) - values.of_states(obs)
    expected = 0.3 * algorithm.policy.log_prob(obs, action)
    torch.testing.assert_close(advantage, expected.expand(2, -1), atol=1e-12, rtol=1e-12)
    first, second = values.of_states(obs)
    assert (first - second).abs().min() > 1e-4  # each has a shift of its own


def test_soft_value_is_the_integral_of_its_q() -> None:
    alpha = 0.3
    values = meow(alpha=alpha).values.double()
    places = torch.tanh(torch.linspace(-6, 6, 4001).double())
    for obs in torch.randn(5, 3).double():
        with torch.no_grad():
            q = values.of_actions(obs.expand(len(places), -1), places[:, None, None])
            integral = torch.trapezoid((q / alpha).exp(), places, dim=1)
            known = values.of_states(obs[None])[:, 0]
        torch.testing.assert_close(alpha * integral.log(), known, atol=1e-4, rtol=1e-4)


def transitions(rows: int, horizon: int, actions: int) -> Batch:
    """Decisions by chance, a third of which end their episode."""
    draw = torch.Generator().manual_seed(3)
    action = 4 * torch.rand(rows, horizon, actions, generator=draw) - 2
    return Batch(
        obs=torch.randn(rows, 3, generator=draw),
        action=action,
        reward=torch.randn(rows, generator=draw),
        next_obs=torch.randn(rows, 3, generator=draw),
        discount=0.9 * (torch.arange(rows) % 3 > 0),
        valid=torch.ones(rows, horizon, dtype=torch.bool),
    )


def test_update_is_that_of_a_loop() -> None:
    alpha, tau = 0.3, 0.25
    algorithm = meow(1, 2, alpha=alpha, tau=tau, dropout=0.0, max_gradient_norm=0.5)
    with torch.no_grad():
        for weight in algorithm.target.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    before = copy.deepcopy(algorithm)
    data = transitions(12, 1, 2)
    assert isinstance(data.obs, Tensor) and isinstance(data.next_obs, Tensor)
    metrics = algorithm.update(data)
    errors, apart, flow = [], [], before.values.flow
    for row in range(12):
        obs, after = data.obs[row : row + 1], data.next_obs[row : row + 1]
        later = []
        for shift in before.target.shifts:
            width = before.target.flow.log_std(after)[0]
            later.append(alpha * (width.sum() + 2 / 2 * math.log(2 * math.pi) + shift(after)[0, 0]))
        y = data.reward[row] + data.discount[row] * min(later)
        apart.append(abs(float(later[0] - later[1])))
        x = torch.atanh(data.action[row : row + 1, 0] / 2)
        for coupling in reversed(flow.couplings):
            x = x - coupling.shift(x, obs)  # type: ignore[operator]
        drawn = x[0] / flow.log_std(obs)[0].exp()
        slope = torch.log(1 - (data.action[row, 0] / 2).square()).sum()
        energy = -0.5 * drawn.square().sum() - slope
        for shift in before.values.shifts:
            errors.append((alpha * (energy + shift(obs)[0, 0]) - y.detach()).square())
    loss = torch.stack(errors).mean()
    assert min(apart) > 0.02  # else the least of both could be either
    torch.testing.assert_close(metrics["loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(loss, list(before.values.parameters()))
    norm = torch.stack([one.norm() for one in gradients]).norm()
    assert norm > 1.0
    for moment, gradient in zip(algorithm.optimizer.first_moment, gradients, strict=True):
        bounded = 0.1 * gradient * 0.5 / norm
        torch.testing.assert_close(moment, bounded, rtol=1e-3, atol=1e-5)
    small.follows(algorithm.target, before.target, algorithm.values, tau)


def test_dropout_is_of_the_loss_alone_and_drawn_for_each_shift() -> None:
    algorithm = meow(1, 2, dropout=0.5)
    obs, action = torch.randn(40, 3), 2 * torch.rand(40, 1, 2) - 1
    values = algorithm.values
    plain = values.of_actions(obs, action) / values.alpha - values.shift(obs)
    torch.testing.assert_close(plain[0], plain[1], rtol=1e-4, atol=1e-3)
    first, second = values.of_actions(obs, action, 0.5) / values.alpha - values.shift(obs)
    assert ((first - second).abs() > 1e-2).all() and ((first - plain[0]).abs() > 1e-2).all()
    noise = algorithm.policy.sample_noise(40)
    assert torch.equal(algorithm.policy(obs, noise), algorithm.policy(obs, noise))


def taught(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return middle and width before squashing, and the soft value, of the known answer."""
    return 0.8 * obs[:, :1], (-1.0 - 0.3 * obs[:, 1:2]).exp(), 1.0 + obs[:, 2]


def test_it_learns_the_policy_and_the_soft_value_of_a_task_that_it_can_represent() -> None:
    """Rewards are such that the soft-optimal policy is a given one, and so is its soft value.

    With r = alpha log pi*(a|s) + V*(s) - gamma V*(s'), Q* - V* is alpha log pi*.
    """
    alpha, gamma = 0.5, 0.7
    torch.manual_seed(0)
    spec = PolicySpec(3, 1, 1, (-1.0,), (1.0,))
    algorithm = MEow(
        Setup(spec), alpha=alpha, hidden=(32, 32), shift_hidden=(32, 32), dropout=0.0, tau=0.05,
        learning_rate=3e-3,
    )  # fmt: skip
    for _ in range(600):
        obs, after = 2 * torch.rand(2, 128, 3) - 1
        middle, width, value = taught(obs)
        x = middle + 2.0 * width * torch.randn(128, 1)  # wider than the answer, as exploration is
        action = torch.tanh(x).clamp(-1 + 1e-4, 1 - 1e-4)
        x = torch.atanh(action)
        density = torch.distributions.Normal(middle, width).log_prob(x)
        log_prob = (density - torch.log(1 - action.square()))[:, 0]
        reward = alpha * log_prob + value - gamma * taught(after)[2]
        discount = torch.full((128,), gamma)
        whole = torch.ones(128, 1, dtype=torch.bool)
        algorithm.update(Batch(obs, action[:, None], reward, after, discount, whole))
    obs = 2 * torch.rand(500, 3) - 1
    middle, width, value = taught(obs)
    with torch.no_grad():
        found = algorithm.values.of_states(obs)
        mean = torch.atanh(algorithm.policy.act(obs, deterministic=True)[:, 0])
        spread = algorithm.policy.log_std(obs)
    assert value.std() > 0.5 and middle.std() > 0.4
    assert (found - value).abs().mean() < 0.1
    assert (mean - middle).abs().mean() < 0.1
    assert (spread - width.log()).abs().mean() < 0.1


@pytest.mark.slow
def test_it_finds_the_riccati_solution() -> None:
    """Noise of one width around the best action is the best policy at any temperature."""
    quadratic = load_module(Path(__file__).with_name("test_linear_quadratic.py"))
    torch.manual_seed(0)
    algorithm = MEow(
        Setup(PolicySpec(3, 1, 1, (-1.0,), (1.0,))), alpha=0.2, hidden=(32, 32),
        shift_hidden=(32, 32), dropout=0.0, tau=0.2, learning_rate=1e-2, log_std_min=-2.0,
    )  # fmt: skip
    _, feedback = quadratic.riccati()
    draw = torch.Generator().manual_seed(1)
    seen = torch.cat([torch.linspace(-0.8, 0.8, 9)[:, None], torch.zeros(9, 2)], 1)

    def update() -> None:  # half of the actions are by chance, half its own
        data = quadratic.quadratic(128, False, draw)
        action = torch.cat([algorithm.policy.act(data.obs[:64]), data.action[64:]])
        position, push = data.obs[:, :1], action[:, 0]
        reward = -(position.square() + quadratic.COST * push.square())[:, 0]
        reached = quadratic.DRIFT * position + quadratic.GAIN * push
        after = torch.cat([reached, torch.zeros(128, 2)], 1)
        algorithm.update(replace(data, action=action, reward=reward, next_obs=after))

    def error() -> float:
        action = algorithm.policy.act(seen, deterministic=True)[:, 0]
        return float((action + feedback * seen[:, :1]).abs().mean())

    bound = feedback / 4
    assert quadratic.exact.settled(update, error, bound, 600) < bound
