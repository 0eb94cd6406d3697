"""RL-100: its densities, losses and phases against known answers, and what it learns."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor, nn
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.rollouts import clipped_surrogate
from trimtab.algorithms.offline_to_online import rl_100
from trimtab.algorithms.offline_to_online.rl_100 import RL100
from trimtab.algorithms.phases import Budget
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, PolicySpec, Rollout, Statistics, TrimtabError

follows = load_module(Path(__file__).with_name("small.py")).follows

SPEC = PolicySpec(2, 2, 1, (-2.0,), (2.0,))
LINE = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
SMALL: dict[str, Any] = {"hidden": (16, 16), "student_hidden": (16, 16), "batch_size": 8,
                         "rollout_steps": 6, "epochs": 2}  # fmt: skip


def statistics(spec: PolicySpec) -> Statistics:
    zero = torch.zeros(spec.obs_dim)
    high = torch.tensor(spec.action_high)
    return Statistics(zero, zero + 1, zero - 1, zero + 1, -high, high)


def setup(spec: PolicySpec = SPEC, base: Policy | None = None) -> Setup:
    return Setup(
        spec,
        policy=lambda spec: DiffusionPolicy(spec, hidden=(16, 16), sampling_steps=4),
        base=base,
        statistics=statistics(spec),
        num_envs=3,
    )


def made(given: Setup | None = None, **keywords: Any) -> RL100:
    torch.manual_seed(0)
    return RL100(given or setup(), **{**SMALL, **keywords})


def batch(spec: PolicySpec = SPEC, count: int = 10, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, count, spec.obs_dim, generator=generator)
    high = torch.tensor(spec.action_high)
    shape = (count, spec.horizon, spec.action_dim)
    return Batch(
        obs=obs,
        action=high * (2 * torch.rand(shape, generator=generator) - 1),
        reward=torch.randn(count, generator=generator),
        next_obs=next_obs,
        discount=0.9 * (torch.rand(count, generator=generator) < 0.7).float(),
        valid=torch.ones(shape[:2], dtype=torch.bool),
        whole=True,
    )


def flat(obs: Any) -> Tensor:
    assert isinstance(obs, Tensor)
    return obs


def perturbed(network: nn.Module, scale: float = 0.02) -> None:
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(scale * torch.randn_like(weight))


# Chains.


def by_hand(algorithm: RL100, network: Any, obs: Tensor, chain: Tensor) -> Tensor:
    """Log-densities ``[B, K]`` of the executed part of each point, by torch's distributions."""
    steps, executed = algorithm.denoising.chain, algorithm.act_steps
    columns = []
    for k in range(steps.steps):
        point, condition = chain[:, k], network.condition(obs)
        mean = steps.mean(point, network(point, steps.times[k : k + 1], condition), k)
        spread = Normal(mean, steps.deviations[k])
        columns.append(spread.log_prob(chain[:, k + 1])[:, :executed].sum((1, 2)))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("plan", [2, 4])
def test_densities_are_those_of_the_executed_part(plan: int) -> None:
    base = DiffusionPolicy(replace(SPEC, horizon=plan), hidden=(16, 16), sampling_steps=4)
    algorithm, obs = made(setup(base=base)), torch.randn(7, 2)
    network = algorithm.actor.network
    with torch.no_grad():
        chain, density = algorithm.denoising.sample_chains(network, obs)
        expected = by_hand(algorithm, network, obs, chain)
        assert chain.shape == (7, 5, plan, 1)
        torch.testing.assert_close(density, expected, atol=1e-3, rtol=1e-4)
        found = algorithm.old_densities(obs, chain)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_mode_is_the_sampler_at_no_noise() -> None:
    algorithm, obs = made(), torch.randn(5, 2)
    expected = algorithm.actor.act(obs, deterministic=True) / 2.0
    torch.testing.assert_close(algorithm.denoising.mode(algorithm.actor.network, obs), expected)


# Offline.


def test_values_by_hand() -> None:
    algorithm, data = made(expectile=0.8), batch()
    for step in range(3):
        algorithm.learn_values(batch(seed=step))
    old = copy.deepcopy(algorithm)
    metrics = algorithm.learn_values(data)
    value_loss = q_loss = 0.0
    obs, next_obs = flat(data.obs), flat(data.next_obs)
    with torch.no_grad():
        for row in range(10):
            here, there, action = (
                part[row : row + 1] for part in (obs, next_obs, data.action / 2.0)
            )
            error = float(old.target_q(here, action).min() - old.critic(here))
            value_loss += 2 * (0.8 if error > 0 else 0.2) * error**2 / 10
            # Q follows V as it is after its own step of this update.
            backup = float(data.reward[row] + data.discount[row] * algorithm.critic(there))
            q_loss += float((old.q_networks(here, action) - backup).square().sum()) / 10
    assert float(metrics["value_loss"]) == pytest.approx(value_loss, rel=1e-4)
    assert float(metrics["critic_loss"]) == pytest.approx(q_loss, rel=1e-4)
    follows(algorithm.target_q, old.target_q, algorithm.q_networks, algorithm.tau)


def test_candidate_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clipped surrogate of each denoising step, with an old policy and one advantage."""
    algorithm = made(offline_learning_rate=0.0, offline_clip=0.3, clip_decay_updates=10)
    data = batch()
    perturbed(algorithm.candidate)
    algorithm.gate.updates = 5  # half of the way
    algorithm.gate.count.updates.fill_(5)
    obs = flat(data.obs)
    with torch.no_grad():
        chain, old = algorithm.denoising.sample_chains(algorithm.actor.network, obs)
        monkeypatch.setattr(algorithm.denoising, "sample_chains", lambda *_: (chain, old))
        executed = algorithm.actor.normalizer.raw_action(chain[:, -1]) / 2.0
        advantage = algorithm.q_networks(obs, executed).amin(0) - algorithm.critic(obs)[:, 0]
        advantage = (advantage - advantage.mean()) / advantage.std()
        new = by_hand(algorithm, algorithm.candidate, obs, chain)
        clip, total, cut = 0.3 * (1 - 0.9 * 0.5), 0.0, 0
        for row in range(10):
            for k in range(4):
                ratio = float((new - old)[row, k].exp())
                bounded = min(max(ratio, 1 - clip), 1 + clip)
                cut += bounded != ratio
                a = float(advantage[row])
                total -= min(ratio * a, bounded * a) / 40
    assert 0 < cut < 40
    metrics = algorithm.improve(data)
    assert float(metrics["policy_loss"]) == pytest.approx(total, rel=1e-3, abs=1e-5)


def test_clip_falls_in_a_line_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(clip_decay_updates=4, offline_clip=0.2)
    seen = []

    def surrogate(log_ratio: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
        seen.append(float(clip))
        return log_ratio

    monkeypatch.setattr(rl_100, "clipped_surrogate", surrogate)
    for updates in (0, 2, 4, 9):
        algorithm.gate.updates = updates
        algorithm.gate.count.updates.fill_(updates)
        algorithm.improve(batch())
    assert seen[::4] == pytest.approx([0.2, 0.11, 0.02, 0.02])  # of four denoising steps each


@pytest.mark.parametrize(("scores", "follows"), [((0.0, 1.0), True), ((0.0, -1.0), False)])
def test_gate_opens_in_time(
    scores: tuple[float, float], follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = made(gate_every=3, offline_learning_rate=1e-2)
    told = iter(scores)
    monkeypatch.setattr(algorithm, "score", lambda *_: torch.tensor(next(told)))
    weight = algorithm.actor.network.obs_layer.weight
    start = weight.detach().clone()
    for step in range(3):
        assert torch.equal(weight, start)
        algorithm.improve(batch(seed=step))
    assert torch.equal(weight, algorithm.candidate.obs_layer.weight) == follows
    assert torch.equal(weight, start) != follows


# Online.


def rollout(algorithm: RL100, reward_of: Any, seed: int = 0) -> Rollout:
    torch.manual_seed(seed)
    obs = torch.randn(algorithm.pace.rollout_steps, 3, algorithm.actor.spec.obs_dim)
    rows = [algorithm.explore(part, warmup=False) for part in obs]
    action = torch.stack([row[0] for row in rows])
    return Rollout(
        obs=obs,
        action=action,
        reward=reward_of(action),
        next_obs=torch.randn_like(obs),
        discount=torch.zeros(len(obs), 3),
        cut=torch.ones(len(obs), 3, dtype=torch.bool),
        aux={"chain": torch.stack([row[1]["chain"] for row in rows])},
    )


def test_online_surrogate_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each minibatch meets every step, each decision comes once an epoch, and so do the losses."""
    algorithm = made(clip=0.2, batch_size=6, learning_rate=0.0)
    data = rollout(algorithm, lambda a: a.sum((2, 3)))
    samples = algorithm.decisions(data, algorithm.old_densities)
    perturbed(algorithm.actor.network)
    with torch.no_grad():
        new = by_hand(algorithm, algorithm.actor.network, samples.obs, samples.chain)
    monkeypatch.setattr(algorithm, "decisions", lambda *_: samples)
    whole, given = samples.advantage, list[Tensor]()
    known = clipped_surrogate(
        new - samples.old, ((whole - whole.mean()) / whole.std())[:, None], 0.2
    )

    def recorded(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
        given.append(clipped_surrogate(log_ratio, advantage, clip))
        return given[-1]

    monkeypatch.setattr(rl_100, "clipped_surrogate", recorded)
    metrics = algorithm.update(data)
    assert len(given) == 2 * 3 * 4
    for epoch in (given[:12], given[12:]):
        for k in range(4):
            found = torch.cat(epoch[k::4]).detach()
            torch.testing.assert_close(
                found.sort().values, known[:, k].sort().values, atol=1e-4, rtol=1e-3
            )
    assert float(metrics["policy_loss"]) == pytest.approx(float(known.mean()), abs=1e-4)
    outside = ((new - samples.old).exp() - 1).abs() > 0.2
    assert 0 < float(metrics["clip_share"]) == pytest.approx(float(outside.float().mean()))


def test_what_acted_has_ratio_one() -> None:
    algorithm = made(learning_rate=0.0)
    metrics = algorithm.update(rollout(algorithm, lambda a: a.sum((2, 3))))
    assert abs(float(metrics["kl"])) < 1e-4 and float(metrics["clip_share"]) == 0.0


# Phases, starts, settings.


def test_phases() -> None:
    own = made(clone_share=0.5, value_share=0.25).phases(Budget(800, 60))
    assert [(p.name, p.length, p.unit) for p in own] == [
        ("clone", 400, "updates"), ("values", 100, "updates"), ("improve", 300, "updates"),
        ("online", 60, "steps"),
    ]  # fmt: skip
    base = DiffusionPolicy(SPEC, hidden=(16, 16), sampling_steps=4)
    given = made(setup(base=base), value_share=0.25).phases(Budget(800, 60))
    assert [(p.name, p.length) for p in given] == [
        ("values", 200), ("improve", 600), ("online", 60),
    ]  # fmt: skip


@pytest.mark.parametrize("one_step", [True, False])
def test_what_is_judged(one_step: bool) -> None:
    algorithm = made(one_step=one_step)
    assert isinstance(algorithm.policy, ConsistencyPolicy if one_step else DiffusionPolicy)
    assert ("distillation_loss" in algorithm.clone(batch())) == one_step
    assert ("student" in algorithm.state()) == one_step


def test_student_follows_the_accepted_policy() -> None:
    algorithm = made(critic_learning_rate=3e-3, student_hidden=(32, 32))
    losses = [float(algorithm.distill(torch.randn(64, 2))["distillation_loss"]) for _ in range(300)]
    assert sum(losses[-10:]) < 0.25 * sum(losses[:10])


@pytest.mark.parametrize("update", ["clone", "learn_values", "improve"])
def test_offline_updates_wait_for_no_device(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = DiffusionPolicy(replace(SPEC, horizon=3), hidden=(8, 8), sampling_steps=2).to("meta")
    algorithm = RL100(replace(setup(base=base), device="meta"), **SMALL, gate_every=1)
    data = batch()
    moved: dict[str, Any] = {
        k: v.to("meta") if torch.is_tensor(v) else v for k, v in vars(data).items()
    }
    for name in ("item", "__bool__", "__float__", "tolist", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("waits for its device"))
    for _ in range(2):
        metrics = getattr(algorithm, update)(Batch(**{**moved, "whole": False}))
    assert all(v.device.type == "meta" for v in metrics.values())


@pytest.mark.parametrize(
    ("given", "keywords", "word"),
    [
        (setup(base=FlowPolicy(SPEC, hidden=(8, 8))), {}, "diffusion"),
        (setup(base=DiffusionPolicy(SPEC, hidden=(8, 8), sampler="ddpm")), {}, "one latent"),
        (setup(), {"expectile": 1.5}, "expectile"),
        (setup(), {"floor": 0.0}, "floor"),
        (setup(), {"gate_every": 0}, "gate_every"),
        (setup(), {"gate_decisions": 0}, "gate_decisions"),
        (setup(), {"clip_decay_updates": 0}, "clip_decay_updates"),
        (setup(), {"offline_clip": 0.0}, "offline_clip"),
        (setup(), {"clone_share": 2.0}, "clone_share"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    given: Setup, keywords: dict[str, Any], word: str
) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        made(given, **keywords)
    assert "\n" not in str(caught.value)


# What it learns: of one decision, with reward -|a - 0.5|.


def decisions(count: int = 64) -> Batch:
    action = (0.4 * torch.randn(count, 1, 1)).clamp(-1, 1)
    ones = torch.ones(count)
    return Batch(
        obs=torch.zeros(count, 1), action=action, reward=-(action - 0.5).abs()[:, 0, 0],
        next_obs=torch.zeros(count, 1), discount=0 * ones, valid=ones[:, None] > 0, whole=True,
    )  # fmt: skip


def test_it_improves_offline_and_online() -> None:
    algorithm = made(
        setup(LINE), one_step=False, critic_learning_rate=3e-3, offline_learning_rate=1e-3,
        gate_every=10, gate_decisions=2, floor=0.1, tau=0.05, learning_rate=1e-3, clip=0.2,
        rollout_steps=32, batch_size=64, hidden=(32, 32),
    )  # fmt: skip
    obs = torch.zeros(300, 1)

    def worth() -> float:
        return -float((algorithm.policy.act(obs) - 0.5).abs().mean())

    for _ in range(200):
        algorithm.clone(decisions())
    cloned = worth()
    for _ in range(200):
        algorithm.learn_values(decisions())
    for _ in range(100):
        metrics = algorithm.improve(decisions())
    offline = worth()
    assert float(metrics["accepted"]) >= 1
    for step in range(12):
        algorithm.update(rollout(algorithm, lambda a: -(a - 0.5).abs().sum((2, 3)), seed=step))
    assert cloned + 0.08 < offline and offline + 0.03 < worth()
