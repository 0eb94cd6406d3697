"""A2PR: every loss by hand, and where its reference comes from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.a2pr import A2PR
from trimtab.types import Batch


@pytest.fixture
def method(setup_of: Callable[..., Setup]) -> A2PR:
    torch.manual_seed(5)
    made = A2PR(
        setup_of({"dataset"}), hidden=(16, 16), vae_hidden=(16,), actor_every=1, mask=0.3,
        vae_weight=2.0, batch_size=8,
    )  # fmt: skip
    with torch.no_grad():  # worths that lie on both sides of V
        for layer in made.critic.network:
            if hasattr(layer, "weight"):
                layer.weight.mul_(2.0)
    return made


def encoded(method: A2PR, obs: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Decode by hand; return the action and the divergence of its latent."""
    mean, log_std = method.vae.encoder(torch.cat([obs, action.flatten(1)], 1)).chunk(2, 1)
    std = log_std.clamp(-4, 15).exp()
    latent = mean + std * noise
    decoded = method.vae.decoder(torch.cat([obs, latent], 1)).tanh().reshape(action.shape)
    return decoded, kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).mean()


def test_losses_by_hand(method: A2PR, batch_of: Callable[..., Batch]) -> None:
    data = replace(batch_of(method), whole=True)
    before = copy.deepcopy(method)
    torch.manual_seed(7)
    found = method.update(data)
    torch.manual_seed(7)
    obs, next_obs = data.obs / 1.001, data.next_obs / 1.001
    scale, shift = torch.tensor([1.0, 1.25]), torch.tensor([0.0, 0.75])
    action = (data.action - shift) / scale
    smooth = (0.2 * torch.randn(16, 2, 2)).clamp(-0.5, 0.5)
    following = (before.policy_target.squashed(data.next_obs) + smooth).clamp(-1, 1)
    y = data.reward + data.discount * before.critic_target(next_obs, following).min(0).values
    q = before.critic(obs, action)
    critic_loss = ((q[0] - y) ** 2).mean() + ((q[1] - y) ** 2).mean()
    torch.testing.assert_close(found["critic_loss"], critic_loss.detach())

    # From here on with the critics after their step, and V before its own.
    fresh = data.reward + data.discount * method.critic(next_obs, following).min(0).values
    usual = before.value(obs)[:, 0]
    value_loss = ((usual - torch.min(fresh, y)) ** 2).mean()
    torch.testing.assert_close(found["value_loss"], value_loss.detach())
    worth = method.critic(obs, action)[0]
    decoded, divergence = encoded(before, obs, action, torch.randn(16, 8))
    better = (worth > usual).float()
    assert 0 < better.sum() < 16
    error = ((decoded - action) ** 2 * better[:, None, None]).mean(2)
    vae_loss = 2.0 * error[data.valid].mean() + 0.5 * divergence
    torch.testing.assert_close(found["vae_loss"], vae_loss.detach())

    # The actor: with V of before and the autoencoder after its step.
    pi = before.policy.squashed(data.obs)
    value = method.critic(obs, pi)[0]
    decoded, _ = encoded(method, obs, pi, torch.randn(16, 8))
    decoded_worth = method.critic(obs, decoded)[0]
    lam = 2.5 / value.abs().mean()
    total = torch.zeros(())
    ways = set()
    for row in range(16):
        from_data = bool(worth[row] - usual[row] > decoded_worth[row] - usual[row])
        good = bool(decoded_worth[row] >= usual[row]) or bool(worth[row] > usual[row])
        ways.add((from_data, good))
        reference = action[row] if from_data else decoded[row]
        done = int(data.valid[row].sum())
        total += 0.3 * good * ((pi[row] - reference)[:done] ** 2).mean(1).sum()
    assert len(ways) >= 3, "the batch does not tell the cases apart"
    loss = -lam * value.mean() + total / data.valid.sum()
    torch.testing.assert_close(found["actor_loss"], loss.detach())


def test_gradients_go_through_the_reference(method: A2PR, batch_of: Callable[..., Batch]) -> None:
    data = batch_of(method)
    obs = method.policy.normalizer.obs(data.obs)
    action = method.policy.normalizer.normalize_action(data.action)
    low = torch.full((16,), -1e6)  # of no worth, so that the reference is always decoded
    weights = list(method.policy.parameters())
    slopes = []
    for mask in (0.0, 1.0):
        method.mask = mask
        torch.manual_seed(0)
        loss = method.regularized(data, obs, action, low, low)
        slopes.append(torch.autograd.grad(loss, weights)[0])
    torch.manual_seed(0)
    pi = method.policy.squashed(data.obs)
    decoded, _ = encoded(method, obs, pi, torch.randn(16, 8))
    gap = method.policy.masked_mean((pi - decoded) ** 2, data.valid)
    wanted = torch.autograd.grad(gap, weights)[0]
    torch.testing.assert_close(slopes[1] - slopes[0], wanted, atol=1e-5, rtol=1e-3)
