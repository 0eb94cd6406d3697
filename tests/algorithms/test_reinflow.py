"""ReinFlow's path densities against loops with torch's own, and what it learns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.reinflow import ReinFlow
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec, Rollout, TrimtabError

LOW, HIGH = (-1.0, -0.5), (1.0, 2.0)
EXECUTED, PLANNED = PolicySpec(3, 2, 2, LOW, HIGH), PolicySpec(3, 3, 2, LOW, HIGH)
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 16, "rollout_steps": 6, "epochs": 2}


def made(spec: PolicySpec = EXECUTED, plan: PolicySpec = PLANNED, envs: int = 3,
         **keywords: Any) -> ReinFlow:  # fmt: skip
    torch.manual_seed(5)
    base = FlowPolicy(plan, hidden=(16, 16), sampling_steps=4)
    return ReinFlow(Setup(spec, base=base, num_envs=envs), **{**SMALL, **keywords})


def rollout_of(algorithm: ReinFlow, reward: Any, envs: int = 3, steps: int = 6) -> Rollout:
    obs = torch.randn(steps, envs, 3)
    found = [algorithm.explore(one, warmup=False) for one in obs]
    return Rollout(
        obs=obs,
        action=torch.stack([action for action, _ in found]),
        reward=torch.stack([reward(o, a) for o, (a, _) in zip(obs, found, strict=True)]),
        next_obs=obs,
        discount=torch.zeros(steps, envs),
        cut=torch.ones(steps, envs, dtype=torch.bool),
        aux={"chain": torch.stack([aux["chain"] for _, aux in found])},
    )


def total(obs: Tensor, action: Tensor) -> Tensor:
    return action.sum((1, 2))


def path_by_hand(algorithm: ReinFlow, obs: Tensor, chain: Tensor) -> tuple[float, float]:
    """The mean log-density of one path, and its entropy over its five points, in loops."""
    logs = [Normal(0.0, 1.0).log_prob(chain[0, :2]).sum()]
    entropies = []
    for k in range(4):
        time = torch.tensor([k / 4])
        condition = algorithm.policy.network.condition(obs[None])
        velocity = algorithm.policy.network(chain[k][None], time, condition)[0]
        std = algorithm.noise(obs[None], time, 0.1, algorithm.upper_bound())[0]
        step = Normal((chain[k] + velocity / 4).clamp(-1, 1), std)
        logs.append(step.log_prob(chain[k + 1])[:2].sum())
        entropies.append(step.entropy()[:2].mean())
    value = float(torch.stack(logs).sum()) / 5 / 4
    return value, float(torch.stack(entropies).sum()) / 5


@torch.no_grad()
def test_density_is_that_of_every_step() -> None:
    algorithm = made()
    torch.manual_seed(1)
    obs = torch.randn(20, 3)
    chain = algorithm.explore(obs, warmup=False)[1]["chain"]
    found, entropy = algorithm.density(obs, chain)
    for row in range(20):
        value, entropy_of_row = path_by_hand(algorithm, obs[row], chain[row])
        assert found[row].item() == pytest.approx(value, abs=1e-5)
        assert entropy[row].item() == pytest.approx(entropy_of_row, abs=1e-5)
    far = chain.clone()
    far[:, 2] += 30.0
    assert torch.equal(algorithm.density(obs, far)[0], torch.full((20,), -1.0))
    beyond = chain.clone()
    beyond[:, :, 2] += 1.0  # what is planned and not executed moves no velocity of these weights
    with torch.no_grad():
        algorithm.policy.network.action_layer.weight[:, 4:6] = 0
    assert torch.equal(*(algorithm.density(obs, one)[0] for one in (chain, beyond)))


def test_loss_is_the_clipped_surrogate_less_entropy() -> None:
    algorithm = made(clip=0.004)
    torch.manual_seed(0)
    samples = algorithm.decisions(
        rollout_of(algorithm, total), lambda *of: algorithm.density(*of)[0]
    )
    part = samples.obs, samples.chain, samples.old, samples.advantage
    _, before = algorithm.surrogate_loss(*part)
    assert before.abs().max() < 1e-5, "the ratio is 1 before the first step"
    with torch.no_grad():
        for weight in [*algorithm.policy.network.parameters(), *algorithm.noise.parameters()]:
            weight.add_(0.05 * torch.randn_like(weight))
    found, _ = algorithm.surrogate_loss(*part)
    loss, outside, entropies = 0.0, 0, 0.0
    with torch.no_grad():
        for row in range(18):
            value, entropy = path_by_hand(algorithm, samples.obs[row], samples.chain[row])
            ratio = math.exp(value - float(samples.old[row]))
            clipped = min(max(ratio, 0.996), 1.004)
            outside += clipped != ratio
            advantage = float(samples.advantage[row])
            loss -= min(ratio * advantage, clipped * advantage) / 18
            entropies += entropy / 18
    assert 0 < outside < 18
    assert found.item() == pytest.approx(loss - 0.03 * entropies, abs=1e-5)
    # The noise network learns by the same loss.
    weights = list(algorithm.noise.parameters())
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(found, weights))


def test_upper_bound_is_held_and_falls() -> None:
    algorithm = made(decay_steps=100 * 6 * 3 * 2, noise_hold=0.35)
    found = []
    for updates in (0, 35, 50, 100, 200):
        algorithm.count.updates.fill_(updates)
        found.append(float(algorithm.upper_bound()))
    end = 0.7 * 0.24 + 0.3 * 0.1
    middle = end + (0.24 - end) * 0.5 * (1 + math.cos(math.pi * 0.15 / 0.65))
    assert found == pytest.approx([0.24, 0.24, middle, end, end])
    assert made().upper_bound() == 0.24


def test_what_is_judged_has_no_noise() -> None:
    algorithm = made()
    obs, noise = torch.randn(5, 3), algorithm.policy.sample_noise(5)
    assert noise.shape == (5, 3, 2)
    x = noise
    for k in range(4):
        condition = algorithm.policy.network.condition(obs)
        x = x + algorithm.policy.network(x, torch.tensor([k / 4]), condition) / 4
    expected = algorithm.policy.normalizer.raw_action(x)
    torch.testing.assert_close(algorithm.policy(obs, noise), expected)


def test_it_learns_which_actions_are_good() -> None:
    """Each observation has a best action; the flow comes to it, also without its noise."""

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return -(action[:, 0] - 0.5 * torch.tanh(obs[:, :2])).square().sum(1)

    spec = PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0))
    algorithm = made(
        spec, spec, 64, hidden=(32,), rollout_steps=8, batch_size=128, epochs=4, clip=0.05,
        learning_rate=3e-3, critic_learning_rate=5e-3, entropy_weight=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    test = torch.randn(500, 3)
    before = reward(test, algorithm.policy.act(test)).mean().item()
    for _ in range(20):
        algorithm.update(rollout_of(algorithm, reward, envs=64, steps=8))
    after = reward(test, algorithm.policy.act(test)).mean().item()
    assert after > 0.3 * before, (before, after)


def test_starts_that_do_not_fit_are_said() -> None:
    base = DiffusionPolicy(EXECUTED, hidden=(8,))
    with pytest.raises(TrimtabError, match="ReinFlow tunes a flow policy, not one of kind diff"):
        ReinFlow(Setup(EXECUTED, base=base), **SMALL)
    with pytest.raises(TrimtabError, match="most_noise=0.05: must be at least 0.1"):
        made(most_noise=0.05)
