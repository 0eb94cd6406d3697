"""OGPO: its loss against loops over steps, its advantages and targets by hand, what it learns."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor, nn
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.finetuning.ogpo import OGPO
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, PolicySpec

follows = load_module(Path(__file__).with_name("small.py")).follows

LOW, HIGH = (-1.0, -0.5), (1.0, 2.0)
EXECUTED, PLANNED = PolicySpec(3, 2, 2, LOW, HIGH), PolicySpec(3, 3, 2, LOW, HIGH)
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 12, "critics": 3, "states": 5, "group": 4}


def made(spec: PolicySpec = EXECUTED, plan: PolicySpec = PLANNED, **keywords: Any) -> OGPO:
    torch.manual_seed(5)
    base = FlowPolicy(plan, hidden=(16, 16), sampling_steps=4)
    return OGPO(Setup(spec, base=base), **{**SMALL, **keywords})


def batch(rows: int = 12, spec: PolicySpec = EXECUTED, seed: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    share = torch.rand(rows, spec.horizon, spec.action_dim, generator=generator)
    return Batch(
        obs=torch.randn(rows, 3, generator=generator),
        action=low + (high - low) * share,
        reward=torch.rand(rows, generator=generator),
        next_obs=torch.randn(rows, 3, generator=generator),
        discount=0.9 * (torch.rand(rows, generator=generator) < 0.7).float(),
        valid=torch.ones(rows, spec.horizon, dtype=torch.bool),
        mc_return=torch.rand(rows, generator=generator) - 0.5,
    )


def nudge(network: nn.Module, size: float = 0.1) -> None:
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(size * torch.randn_like(weight))


def chains(algorithm: OGPO, rows: int = 20) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    obs, noise = torch.randn(rows, 3), algorithm.sampler.sample_noise(rows)
    with torch.no_grad():
        points = torch.stack(algorithm.sampler.points(obs, noise), dim=1)
    nudge(algorithm.actor.network, 0.03)
    return obs, points, noise, torch.randn(rows)


def step_of(policy: FlowPolicy, obs: Tensor, point: Tensor, k: int, std: float) -> Normal:
    """The distribution of the next point: Euler, and the score of straight paths."""
    time = k / 4
    velocity = policy.network(
        point[None], torch.tensor([time]), policy.network.condition(obs[None])
    )[0]
    score = (time * velocity - point) / (1 - time)
    return Normal((point + velocity / 4 + 0.5 * std**2 * score).clamp(-1, 1), std)


@torch.no_grad()
def test_loss_is_that_of_whole_chains() -> None:
    algorithm = made(noise_level=0.3, clip=0.004)
    obs, points, noise, advantage = chains(algorithm)
    loss, log_ratio = algorithm.surrogate(obs, points, noise, advantage)
    total, outside = 0.0, 0
    for row in range(20):
        logs = []
        for policy in (algorithm.actor, algorithm.slow):
            value = Normal(0.0, 1.0).log_prob(points[row, 0])[:2].sum()
            for k in range(4):
                std = 0.3 * (1 - k / 4) ** 0.5
                step = step_of(policy, obs[row], points[row, k], k, std)
                value = value + step.log_prob(points[row, k + 1])[:2].sum()
            logs.append(value / 5 / 4)
        ratio = float((logs[0] - logs[1]).exp())
        assert log_ratio[row].exp().item() == pytest.approx(ratio, abs=1e-4)
        clipped = min(max(ratio, 0.996), 1.004)
        outside += clipped != ratio
        total -= min(ratio * float(advantage[row]), clipped * float(advantage[row])) / 20
    assert loss.item() == pytest.approx(total, abs=1e-4) and 0 < outside < 20


@torch.no_grad()
def test_guarded_loss_is_that_of_every_step() -> None:
    """With the same noise at each step, the late ones move further with the network."""
    algorithm = made(noise="constant", noise_level=0.8, clip=0.01, guard=True)
    obs, points, noise, advantage = chains(algorithm)
    loss, _ = algorithm.surrogate(obs, points, noise, advantage)
    std = 0.8
    moves = [1 / 4 + std**2 / 2 * (k / 4) / (1 - k / 4) for k in range(4)]  # mean by velocity
    weight = torch.tensor([1 / move for move in moves])
    weight = weight / weight.mean()
    assert weight.max() > 2 * weight.min()
    total = 0.0
    for row in range(20):
        for k in range(4):
            new, old = (
                step_of(policy, obs[row], points[row, k], k, std)
                for policy in (algorithm.actor, algorithm.slow)
            )
            reached = points[row, k + 1]
            plain = (new.log_prob(reached) - old.log_prob(reached))[:2].mean()
            bias = (new.mean - old.mean)[:2].square().mean() / (2 * std**2)
            ratio = float((std * (plain + bias)).exp())
            clipped = min(max(ratio, 0.99), 1.01)
            gain = min(ratio * float(advantage[row]), clipped * float(advantage[row]))
            total -= float(weight[k]) * gain / 80
    assert loss.item() == pytest.approx(total, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("conservative", [False, True])
def test_advantages_are_within_groups(conservative: bool) -> None:
    algorithm = made(conservative=conservative)
    obs = torch.randn(5, 3).repeat_interleave(4, dim=0)
    chunk = algorithm.slow.act(obs)
    nudge(algorithm.critic)  # the slow critics judge
    found = algorithm.advantage(obs, chunk)
    value = algorithm.policy.critic(obs, algorithm.policy.normalizer.normalize_action(chunk[:, :2]))
    zeros = 0
    for state in range(5):
        own = value[:, 4 * state : 4 * state + 4]
        own = own - own.mean(1, keepdim=True)
        for sample in range(4):
            heads = own[:, sample].tolist()
            known = sum(heads) / 3
            if conservative:
                known = min(heads) if min(heads) > 0 else max(heads) if max(heads) < 0 else 0.0
            zeros += known == 0.0
            assert found[4 * state + sample].item() == pytest.approx(known, abs=1e-6)
    assert (zeros > 0) == conservative and zeros < 20


def test_groups_are_of_different_observations_of_the_batch() -> None:
    algorithm = made()
    data = batch()
    rows = algorithm.grouped(data.obs)
    assert isinstance(rows, Tensor) and rows.shape == (20, 3)
    firsts = rows[::4]
    assert torch.equal(rows, firsts.repeat_interleave(4, dim=0))
    assert isinstance(data.obs, Tensor)
    places = [(data.obs == first).all(1).nonzero().item() for first in firsts]
    assert len(set(places)) == 5 and places != sorted(places)


def test_an_update_is_what_the_equations_say() -> None:
    """The critic's target by the slow ones, then the averages, with the same draws."""
    algorithm = made(plan=EXECUTED)
    algorithm.update(batch(seed=8))  # so that slow and fast differ
    twin, data = copy.deepcopy(algorithm), batch()
    torch.manual_seed(9)
    metrics = algorithm.update(data)
    torch.manual_seed(9)
    noise = twin.policy.base.sample_noise  # the same draws in the same order
    twin.actor_loss(data, twin.grouped(data.obs), noise(20))
    with torch.no_grad():
        following = twin.sampler(data.next_obs, noise(12))
        normalize, vector = twin.policy.normalizer.normalize_action, twin.policy.normalizer.obs
        value = twin.policy.critic(vector(data.next_obs), normalize(following))
        target = data.reward + data.discount * (value[0] + value[1] + value[2]) / 3
        here = twin.critic(vector(data.obs), normalize(data.action))
        loss = sum((here[m] - target).square().mean() for m in range(3))
    torch.testing.assert_close(metrics["critic_loss"], loss, atol=1e-5, rtol=1e-5)
    follows(algorithm.policy.critic, twin.policy.critic, algorithm.critic, 0.05)
    follows(algorithm.slow, twin.slow, algorithm.actor, 0.005)


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_the_clones_loss_counts_by_its_weight(weight: float) -> None:
    algorithm, data = made(clone_weight=weight), batch()
    obs, _, noise, _ = chains(algorithm)
    torch.manual_seed(4)
    found = algorithm.actor_loss(data, obs, noise)
    torch.manual_seed(4)
    plans = as_plans(algorithm.cloned(data), 3)
    torch.testing.assert_close(found["clone_loss"], algorithm.actor.bc_loss(plans))
    expected = found["policy_loss"] + weight * found["clone_loss"]
    torch.testing.assert_close(found["actor_loss"], expected)
    assert found["clone_loss"] > 0.1


def test_the_best_of_several_acts_once_the_warm_up_is_over() -> None:
    algorithm, obs = made(), torch.randn(50, 3)
    played = {}
    for warmup, policy in ((True, algorithm.policy.base), (False, algorithm.policy)):
        torch.manual_seed(3)
        played[warmup], _ = algorithm.explore(obs, warmup=warmup)
        torch.manual_seed(3)
        assert torch.equal(played[warmup], policy.act(obs)[:, :2])
    worth = {warmup: algorithm.policy.value(obs, action) for warmup, action in played.items()}
    assert worth[False].mean() > worth[True].mean()


def test_successes_alone_are_cloned() -> None:
    algorithm, data = made(), batch()
    assert data.mc_return is not None
    kept = algorithm.cloned(data).valid
    assert torch.equal(kept.all(1), data.mc_return > 0) and torch.equal(kept.any(1), kept.all(1))
    none = dataclasses.replace(data, mc_return=-torch.ones(12))
    assert not algorithm.cloned(none).valid.any(), "there was a success before"
    assert made().cloned(none).valid.all(), "before the first success all are cloned"
    assert bool(algorithm.state_dict()["seen"]["success"]), "it is known after a resume, too"
    assert made(success=False).cloned(data) is data
    assert made(success=False).batch_spec.mc_return is False and algorithm.batch_spec.mc_return


def test_it_learns_which_actions_are_good() -> None:
    """Decisions at random tell the critic which actions are good, and it tells the flow."""
    spec = PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0))

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return -(action[:, 0] - 0.5 * torch.tanh(obs[:, :2])).square().sum(1)

    algorithm = made(
        spec, spec, hidden=(32, 32), batch_size=64, states=32, group=8, clone_weight=0.0,
        noise_level=0.2, clip=0.1, learning_rate=2e-3, critic_learning_rate=3e-3, actor_tau=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    test = torch.randn(500, 3)
    before = [
        reward(test, one.act(test)).mean().item() for one in (algorithm.slow, algorithm.policy)
    ]
    for _ in range(300):
        obs, action = torch.randn(64, 3), 2 * torch.rand(64, 1, 2) - 1
        data = dataclasses.replace(
            batch(64, spec), obs=obs, action=action, reward=reward(obs, action),
            discount=torch.zeros(64),
        )  # fmt: skip
        algorithm.update(data)
    after = [
        reward(test, one.act(test)).mean().item() for one in (algorithm.slow, algorithm.policy)
    ]
    assert after[0] > 0.4 * before[0] and after[1] > 0.2 * before[1], (before, after)
