"""DPPO's loss against loops over environment and denoising steps, and what it learns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.returns import ReturnScale, normalized
from trimtab.algorithms.common.rollouts import Decisions, clipped_surrogate
from trimtab.algorithms.finetuning.dppo import DPPO
from trimtab.policies.base import Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.chains import DiffusionChain
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.policies.registry import build_policy
from trimtab.types import Obs, PolicySpec, Rollout, TrimtabError

LOW, HIGH = (-1.0, -0.5), (1.0, 2.0)
EXECUTED, PLANNED = PolicySpec(3, 2, 2, LOW, HIGH), PolicySpec(3, 3, 2, LOW, HIGH)
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 32, "rollout_steps": 6, "epochs": 2}


def start(sampler: str = "ddim", spec: PolicySpec = PLANNED, steps: int = 4) -> DiffusionPolicy:
    torch.manual_seed(5)
    return DiffusionPolicy(
        spec, hidden=(16, 16), train_steps=8, sampler=sampler, sampling_steps=steps
    )


def made(sampler: str = "ddim", **keywords: Any) -> DPPO:
    setup = Setup(EXECUTED, base=start(sampler), num_envs=3)
    return DPPO(setup, **{**SMALL, "tuned_steps": 3, **keywords})


def rollout_of(algorithm: DPPO, reward: Callable[[Tensor, Tensor], Tensor], envs: int = 3,
               steps: int = 6) -> Rollout:  # fmt: skip
    """Decisions that each end their episode, so that a reward belongs to one of them alone."""
    obs = torch.randn(steps, envs, 3)
    found = [algorithm.explore(one, warmup=False) for one in obs]
    action = torch.stack([action for action, _ in found])
    return Rollout(
        obs=obs,
        action=action,
        reward=torch.stack([reward(o, a) for o, a in zip(obs, action, strict=True)]),
        next_obs=obs,
        discount=torch.zeros(steps, envs),
        cut=torch.ones(steps, envs, dtype=torch.bool),
        aux={"chain": torch.stack([aux["chain"] for _, aux in found])},
    )


def nudged(algorithm: DPPO, size: float = 0.02) -> None:
    with torch.no_grad():
        for weight in algorithm.policy.tuned.parameters():
            weight.add_(size * torch.randn_like(weight))


def samples_of(algorithm: DPPO) -> Decisions:
    data = rollout_of(algorithm, lambda o, a: a.sum((1, 2)))
    return algorithm.decisions(data, algorithm.means_of_all_steps)


def minibatch(samples: Decisions) -> tuple[Decisions, Tensor]:
    rows = torch.randperm(54)[:32]
    part = samples[rows // 3]
    return dataclasses.replace(part, advantage=normalized(part.advantage)), rows % 3


def part_of(algorithm: DPPO, seed: int = 0) -> tuple[Decisions, Tensor]:
    torch.manual_seed(seed)
    samples = samples_of(algorithm)
    nudged(algorithm)
    return minibatch(samples)


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_loss_is_the_sum_over_pairs(sampler: str) -> None:
    """One pair after another, with the tuned network, torch's densities and the paper's clip."""
    algorithm = made(
        sampler, first_clip=0.002, clip=0.02, denoising_discount=0.8, sampling_floor=0.15,
        likelihood_floor=0.2,
    )  # fmt: skip
    part, item = part_of(algorithm)
    loss, log_ratio = algorithm.surrogate_loss(part, item)
    network, chain = algorithm.policy.tuned, algorithm.likelihood_chain
    bare = DiffusionChain(start(sampler).sampler, floor=0.0)
    total, outside = 0.0, 0
    with torch.no_grad():
        for row in range(len(item)):
            k = int(item[row])
            index = 1 + k  # one of the four steps is frozen
            here, there = part.chain[row, k][None], part.chain[row, k + 1]
            predicted = network(
                here, chain.times[index : index + 1], network.condition(part.obs[row : row + 1])
            )
            std = max(float(bare.deviations[index]), 0.2)
            mean = chain.mean(here, predicted, index)[0]
            logs = [
                Normal(m, std).log_prob(there)[:2].clamp(-5, 2).mean()
                for m in (mean, part.old[row, k])
            ]
            ratio = float((logs[0] - logs[1]).exp())
            advantage = float(part.advantage[row]) * 0.8 ** (2 - k)
            eps = 0.002 + 0.018 * (math.exp(3 * k / 2) - 1) / (math.exp(3) - 1)
            clipped = min(max(ratio, 1 - eps), 1 + eps)
            outside += clipped != ratio
            total -= min(ratio * advantage, clipped * advantage)
    assert 0 < outside < len(item)
    assert loss.item() == pytest.approx(total / len(item), rel=1e-4)


def test_guarded_loss_is_its_formula() -> None:
    algorithm = made(guard=True, clip=0.01)
    part, item = part_of(algorithm)
    found, found_ratio = algorithm.surrogate_loss(part, item)
    rows = torch.arange(len(item))
    with torch.no_grad():
        mean = algorithm.means(part.obs, part.chain[rows, item], item)[:, :2]
        old, value = part.old[rows, item][:, :2], part.chain[rows, item + 1][:, :2]
        std = algorithm.likelihood_chain.deviations[item + 1].clamp_min(0.1)[:, None, None]
        plain = (Normal(mean, std).log_prob(value) - Normal(old, std).log_prob(value)).mean((1, 2))
        bias = ((mean - old).square() / (2 * std.square())).mean((1, 2))
        log_ratio = std.flatten() * (plain + bias)
        weight = 1 / algorithm.likelihood_chain.sensitivity[1:]
        weight = (weight / weight.mean())[item]
        gain = clipped_surrogate(log_ratio, part.advantage * 0.99 ** (2 - item), 0.01)
    torch.testing.assert_close(found_ratio.detach(), log_ratio, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(found.detach(), (weight * gain).mean(), atol=1e-5, rtol=1e-3)
    assert weight.min() < 0.9 < 1.1 < weight.max()


@pytest.mark.parametrize("guard", [False, True])
def test_before_the_first_step_the_ratio_is_one(guard: bool) -> None:
    algorithm = made(guard=guard)
    _, log_ratio = algorithm.surrogate_loss(*minibatch(samples_of(algorithm)))
    assert log_ratio.abs().max() < 1e-5


def test_stored_chain_is_what_acted() -> None:
    algorithm = made(sampling_floor=0.3, likelihood_floor=0.1)
    torch.manual_seed(3)
    obs = torch.randn(400, 3)
    action, aux = algorithm.explore(obs, warmup=False)
    chain = aux["chain"]
    assert chain.shape == (400, 4, 3, 2)
    expected = algorithm.policy.normalizer.raw_action(chain[:, -1])[:, :2]
    assert torch.equal(action, expected)
    # The steps between the points are Gaussian, of the floored width.
    bare = DiffusionChain(start().sampler, floor=0.0)
    old = algorithm.means_of_all_steps(algorithm.policy.normalizer.obs(obs), chain)
    for k in range(3):
        spread = (chain[:, k + 1] - old[:, k]).std().item()
        width = max(float(bare.deviations[k + 1]), 0.3)
        assert spread == pytest.approx(width, rel=0.06)


def test_what_is_not_executed_has_no_part_in_it() -> None:
    algorithm = made()
    part, item = part_of(algorithm)
    known, _ = algorithm.surrogate_loss(part, item)
    chain = part.chain.clone()
    rows = torch.arange(len(item))
    chain[rows, item + 1, 2] += 1.0  # the third action of the plan that was reached
    changed, _ = algorithm.surrogate_loss(dataclasses.replace(part, chain=chain), item)
    assert torch.equal(known, changed)
    chain[rows, item + 1, 1] += 0.05
    changed, _ = algorithm.surrogate_loss(dataclasses.replace(part, chain=chain), item)
    assert not torch.equal(known, changed)


def test_every_pair_is_drawn_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(batch_size=27)
    batches: list[tuple[Decisions, Tensor]] = []
    usual = algorithm.surrogate_loss

    def recorded(part: Decisions, item: Tensor) -> tuple[Tensor, Tensor]:
        batches.append((part, item))
        return usual(part, item)

    monkeypatch.setattr(algorithm, "surrogate_loss", recorded)
    algorithm.update(rollout_of(algorithm, lambda o, a: a.sum((1, 2))))
    assert len(batches) == 4  # 18 decisions of 3 steps, twice
    for epoch in (batches[:2], batches[2:]):
        pairs = {
            (float(t), int(k)) for part, item in epoch
            for t, k in zip(part.target, item, strict=True)
        }  # fmt: skip
        assert len(pairs) == 54
    for part, _ in batches:
        assert part.advantage.mean().abs() < 1e-5
        assert part.advantage.std().item() == pytest.approx(1, abs=1e-4)


def test_rewards_are_scaled_before_advantages_and_v_learns_first() -> None:
    algorithm = made(critic_warmup=1)
    data = rollout_of(algorithm, lambda o, a: 7 * o[:, 0])
    scaled = ReturnScale(3, 0.99)(data.reward, data.cut)
    with torch.no_grad():
        value = algorithm.critic(data.obs).squeeze(-1)
    samples = algorithm.decisions(data, algorithm.means_of_all_steps)
    torch.testing.assert_close(samples.advantage, (scaled - value).flatten(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(samples.target, scaled.flatten(), atol=1e-5, rtol=1e-4)
    before = [weight.clone() for weight in algorithm.policy.tuned.parameters()]
    algorithm.update(data)
    now = list(algorithm.policy.tuned.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    algorithm.update(rollout_of(algorithm, lambda o, a: 7 * o[:, 0]))
    assert not any(torch.equal(a, b) for a, b in zip(before, now, strict=True))


@pytest.mark.parametrize(
    "settings",
    [{"clip": 0.1, "first_clip": 0.1}, {"guard": True, "clip": 0.05, "first_clip": 0.05}],
)
def test_it_learns_which_actions_are_good(settings: dict[str, Any]) -> None:
    """Each observation has a best action; an untrained policy misses it, a tuned one less."""

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        goal = 0.5 * torch.tanh(obs[:, :2])
        return -(action[:, 0] - goal).square().sum(1)

    spec = PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0))
    setup = Setup(spec, base=start(spec=spec, steps=3), num_envs=64)
    algorithm = DPPO(
        setup, hidden=(32,), rollout_steps=8, batch_size=256, epochs=4, learning_rate=2e-3,
        critic_learning_rate=5e-3, **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    test = torch.randn(500, 3)
    before = reward(test, algorithm.policy.act(test)).mean().item()
    for _ in range(20):
        algorithm.update(rollout_of(algorithm, reward, envs=64, steps=8))
    after = reward(test, algorithm.policy.act(test)).mean().item()
    assert after > 0.2 * before, (before, after)


def fresh(envs: int = 3, spec: PolicySpec = EXECUTED, steps: int = 4, **keywords: Any) -> DPPO:
    """A method that has neither a base nor a dataset."""
    torch.manual_seed(5)
    network = functools.partial(
        DiffusionPolicy, hidden=(16, 16), train_steps=8, sampling_steps=steps
    )
    return DPPO(Setup(spec, policy=network, num_envs=envs), **{**SMALL, **keywords})


def test_from_nothing_all_steps_are_tuned_and_observations_are_counted() -> None:
    algorithm = fresh()
    assert algorithm.tuned_steps == 4 and algorithm.frozen_steps == 0
    assert isinstance(algorithm.policy.normalizer, RunningNormalizer)
    data = rollout_of(algorithm, lambda o, a: a.sum((1, 2)))
    samples = algorithm.decisions(data, algorithm.means_of_all_steps)
    assert torch.equal(samples.obs, data.obs.flatten(0, 1))  # nothing was counted yet
    algorithm.update(data)
    rows = data.obs.flatten(0, 1)
    expected = (rows - rows.mean(0)) / rows.std(0, correction=0)
    torch.testing.assert_close(
        algorithm.policy.normalizer.obs(rows), expected, rtol=1e-4, atol=1e-4
    )
    _, log_ratio = algorithm.surrogate_loss(*minibatch(samples_of(algorithm)))
    assert log_ratio.abs().max() < 1e-5
    again = build_policy(algorithm.policy.config())
    again.load_state_dict(algorithm.policy.state_dict())
    noise = algorithm.policy.sample_noise(len(rows))
    assert torch.equal(again(rows, noise), algorithm.policy(rows, noise))


def test_a_base_keeps_its_normaliser_and_its_files() -> None:
    algorithm = made()
    before = copy.deepcopy(algorithm.policy.normalizer.state_dict())
    algorithm.update(rollout_of(algorithm, lambda o, a: a.sum((1, 2))))
    now = algorithm.policy.normalizer.state_dict()
    assert not isinstance(algorithm.policy.normalizer, RunningNormalizer)
    assert all(torch.equal(now[name], value) for name, value in before.items())
    assert algorithm.policy.config().keys() == {"kind", "tuned_steps", "base"}


def test_it_learns_from_nothing() -> None:
    """Observations are far from 0 and wide, so that networks see them only if they are counted."""

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return -(action[:, 0] - 0.5 * torch.tanh(obs[:, :2])).square().sum(1)

    def seen(data: Rollout) -> Rollout:
        return dataclasses.replace(data, obs=50 + 30 * data.obs, next_obs=50 + 30 * data.obs)

    class Scaled(DPPO):
        """It acts in the raw units of the rollouts below."""

        def explore(self, obs: Obs, *, warmup: bool) -> Any:
            assert isinstance(obs, Tensor)
            return super().explore(50 + 30 * obs, warmup=warmup)

    spec = PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0))
    torch.manual_seed(5)
    network = functools.partial(DiffusionPolicy, hidden=(16, 16), train_steps=8, sampling_steps=3)
    algorithm = Scaled(
        Setup(spec, policy=network, num_envs=64), hidden=(32,), rollout_steps=8, batch_size=256,
        epochs=4, learning_rate=2e-3, critic_learning_rate=5e-3, clip=0.1, first_clip=0.1,
    )  # fmt: skip
    test = torch.randn(500, 3)
    before = reward(test, algorithm.policy.act(50 + 30 * test)).mean().item()
    for _ in range(25):
        algorithm.update(seen(rollout_of(algorithm, reward, envs=64, steps=8)))
    after = reward(test, algorithm.policy.act(50 + 30 * test)).mean().item()
    assert after > 0.25 * before, (before, after)


def test_starts_that_do_not_fit_are_said() -> None:
    flow: Policy = FlowPolicy(EXECUTED, hidden=(8,))
    with pytest.raises(TrimtabError, match="DPPO tunes a diffusion policy, not one of kind flow"):
        DPPO(Setup(EXECUTED, base=flow), **SMALL)
    short = start(spec=dataclasses.replace(PLANNED, horizon=1))
    with pytest.raises(TrimtabError, match="act_steps=2: the policy plans only 1"):
        DPPO(Setup(EXECUTED, base=short), **SMALL)
    with pytest.raises(TrimtabError, match="tuned_steps=5: must be at most 4"):
        made(tuned_steps=5)
    with pytest.raises(TrimtabError, match="first_clip=0.01: .* at most 0.001 .algorithm.clip"):
        made(clip=0.001)
