"""RO2O: smoothness and caution against torch's own divergences and loops over single rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline_to_online.ro2o import RO2O, symmetric_divergence
from trimtab.algorithms.phases import Budget
from trimtab.types import Batch

SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]


@pytest.fixture
def method(setup_of: SetupOf) -> RO2O:
    torch.manual_seed(3)
    made = RO2O(
        setup_of({"dataset"}), critics=3, samples=4, hidden=(16, 16), policy_radius=0.3,
        value_radius=0.2, caution_radius=0.4, policy_smoothness=0.7, value_smoothness=0.5,
        caution=0.3, uncertainty=2.0, least_uncertainty=0.5, decay_updates=4,
    )  # fmt: skip
    with torch.no_grad():  # networks that begin near 0 would tell nothing apart
        for network in (made.actor.network, made.critic.network):
            for weight in network.parameters():
                weight.copy_(torch.randn_like(weight) * 0.5)
    return made


def shifts(seed: int, radius: float) -> Tensor:
    torch.manual_seed(seed)
    return radius * (2 * torch.rand(4, 1, 5) - 1)[:, 0]


def test_perturbed_observations_share_their_vectors(method: RO2O) -> None:
    obs = torch.randn(6, 5)
    shift = shifts(9, 0.3)
    torch.manual_seed(9)
    found = method.perturbed(obs, 0.3)
    for number in range(4):
        for row in range(6):
            assert torch.equal(found[number * 6 + row], obs[row] + shift[number])
    assert shift.abs().max() <= 0.3 and shift.abs().max() > 0.2 and (shift < 0).any()


def test_the_divergence_is_torchs_both_ways() -> None:
    torch.manual_seed(0)
    mean, other = torch.randn(2, 7, 2, 3)
    log_std, other_log_std = torch.randn(2, 7, 2, 3)
    one, two = Normal(mean, log_std.exp()), Normal(other, other_log_std.exp())
    known = (kl_divergence(one, two) + kl_divergence(two, one)).sum((1, 2))
    torch.testing.assert_close(symmetric_divergence(mean, log_std, other, other_log_std), known)


def test_actor_loss_by_hand(method: RO2O, batch_of: BatchOf) -> None:
    obs = method.actor.normalizer.obs(batch_of(method).obs)
    own, log_prob = torch.rand(16, 2, 2), torch.randn(16)
    alpha, shift = torch.tensor(0.4), shifts(7, 0.3)
    torch.manual_seed(7)
    loss, parts = method.actor_losses(obs, own, log_prob, alpha)
    total = torch.zeros(())
    for row in range(16):
        total += 0.4 * log_prob[row] - method.critic(obs[row][None], own[row][None]).min()
        middle, width = heads(method, obs[row])
        here = Normal(middle, width.exp())
        apart = []
        for number in range(4):
            mean, log_std = heads(method, obs[row] + shift[number])
            there = Normal(mean, log_std.exp())
            apart.append((kl_divergence(here, there) + kl_divergence(there, here)).sum())
        total += 0.7 * max(apart)
    torch.testing.assert_close(loss, total / 16, atol=1e-5, rtol=1e-5)
    assert float(parts["policy_roughness"]) > 0.01
    # Both sides of the divergence learn.
    weights = list(method.actor.parameters())
    mine = torch.autograd.grad(loss, weights, retain_graph=True)
    for one, two in zip(mine, torch.autograd.grad(total / 16, weights), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)


def heads(method: RO2O, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log width by hand."""
    mean, log_std = method.actor.network(obs[None])[0].chunk(2)
    return mean, log_std.clamp(-5, 2)


def test_critic_loss_by_hand(method: RO2O, batch_of: BatchOf) -> None:
    data = batch_of(method)
    obs = method.actor.normalizer.obs(data.obs)
    action = method.actor.normalizer.normalize_action(data.action)
    backup = torch.randn(16)
    near = shifts(7, 0.2)
    far = 0.4 * (2 * torch.rand(4, 1, 5) - 1)[:, 0]  # these are drawn after those
    noise = torch.randn(64, 2, 2)
    torch.manual_seed(7)
    method.present_uncertainty = 1.5
    value, loss, parts = method.critic_losses(obs, action, backup)
    torch.testing.assert_close(value, method.critic(obs, action))
    td_loss = sum(((value[i] - backup) ** 2).mean() for i in range(3))
    rough, doubt, ups = torch.zeros(()), torch.zeros(()), set()
    for row in range(16):
        sums = []
        for number in range(4):
            change = method.critic((obs[row] + near[number])[None], action[row][None])[:, 0]
            change = change - value[:, row]
            ups |= {bool(one > 0) for one in change}
            sums.append(sum((0.8 if one > 0 else 0.2) * one**2 for one in change) / 3)
            seen = obs[row] + far[number]
            mean, log_std = heads(method, seen)
            drawn = torch.tanh(mean + log_std.exp() * noise[number * 16 + row].flatten())
            reached = method.critic(seen[None], drawn.reshape(1, 2, 2))[:, 0]
            below = (reached - 1.5 * reached.std()).detach()
            doubt = doubt + ((reached - below) ** 2).sum() / 3 / 64
        rough = rough + max(sums) / 16
    assert ups == {True, False}
    known = td_loss + 0.5 * rough + 0.3 * doubt
    torch.testing.assert_close(loss, known)
    torch.testing.assert_close(parts["doubt"], doubt.detach())
    torch.testing.assert_close(parts["value_roughness"], rough.detach())
    weights = list(method.critic.parameters())
    found = torch.autograd.grad(loss, weights, retain_graph=True)
    for one, two in zip(found, torch.autograd.grad(known, weights), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)


def test_u_falls_offline_and_stays_least_online(method: RO2O, batch_of: BatchOf) -> None:
    offline, online = method.phases(Budget(offline_steps=5, online_steps=5))
    seen = []
    for phase in [offline] * 3 + [online] + [offline] * 2:
        assert phase.update is not None
        phase.update(batch_of(method))
        seen.append(method.present_uncertainty)
    assert seen == pytest.approx([2.0, 1.625, 1.25, 0.5, 0.5, 0.5])


def test_smoothness_makes_values_smooth(setup_of: SetupOf, batch_of: BatchOf) -> None:
    found = []
    for weight in (0.0, 30.0):
        torch.manual_seed(0)
        method = RO2O(
            setup_of({"dataset"}), critics=2, samples=4, hidden=(16, 16), learning_rate=1e-2,
            value_smoothness=weight, value_radius=0.3, caution=0.0, policy_smoothness=0.0,
        )  # fmt: skip
        for seed in range(60):
            metrics = method.update(batch_of(method, seed=seed))
        found.append(float(metrics["value_roughness"]))
    assert found[1] < 0.5 * found[0]
