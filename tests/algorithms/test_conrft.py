"""ConRFT: its conservative term against loops, its losses by hand, its phases, what it learns."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.conservative import conservative_gap
from trimtab.algorithms.offline_to_online.conrft import ConRFT
from trimtab.algorithms.phases import Budget
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.types import Batch, PolicySpec, Statistics, TrimtabError

SPEC = PolicySpec(2, 2, 1, (-2.0,), (2.0,))
LINE = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
SMALL: dict[str, Any] = {"hidden": (16, 16), "student_hidden": (16, 16), "batch_size": 8}


# The conservative term.


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("calibrated", [True, False])
def test_conservative_gap_by_a_loop(calibrated: bool, temperature: float) -> None:
    sampled, taken, least = torch.randn(3, 5, 7), torch.randn(3, 5), torch.randn(5)
    found = conservative_gap(sampled, taken, least if calibrated else None, temperature=temperature)
    for member in range(3):
        for row in range(5):
            total = math.exp(float(taken[member, row]) / temperature)
            for j in range(7):
                value = float(sampled[member, row, j])
                if calibrated:
                    value = max(value, float(least[row]))
                total += math.exp(value / temperature)
            expected = temperature * math.log(total / 8) - float(taken[member, row])
            assert float(found[member, row]) == pytest.approx(expected, abs=1e-5)


def test_values_below_the_bound_are_pressed_no_further() -> None:
    sampled = torch.tensor([[[-1.0, 0.5, 3.0]]], requires_grad=True)
    gap = conservative_gap(sampled, torch.tensor([[0.2]]), torch.tensor([1.0]))
    (pressed,) = torch.autograd.grad(gap.sum(), [sampled])
    assert (pressed[0, 0, :2] == 0).all() and float(pressed[0, 0, 2]) > 0


def test_without_a_difference_there_is_no_gap() -> None:
    assert conservative_gap(torch.full((2, 3, 4), 1.7), torch.full((2, 3), 1.7)).abs().max() < 1e-6


# Its losses, by hand.


def statistics(spec: PolicySpec) -> Statistics:
    zero = torch.zeros(spec.obs_dim)
    high = torch.tensor(spec.action_high)
    return Statistics(zero, zero + 1, zero - 1, zero + 1, -high, high)


def setup(spec: PolicySpec = SPEC, base: Policy | None = None) -> Setup:
    return Setup(
        spec,
        policy=lambda spec: ConsistencyPolicy(spec, hidden=(16, 16)),
        base=base,
        statistics=statistics(spec),
    )


def made(given: Setup | None = None, **keywords: Any) -> ConRFT:
    torch.manual_seed(0)
    return ConRFT(given or setup(), **{**SMALL, **keywords})


def batch(spec: PolicySpec = SPEC, count: int = 6, seed: int = 1) -> Batch:
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
        mc_return=torch.randn(count, generator=generator),
        whole=True,
    )


def chunks(policy: ConsistencyPolicy, obs: Tensor, noise: Tensor) -> Tensor:
    """The policy's chunks in the critics' units."""
    return policy.normalizer.normalize_action(policy(obs, noise))


@pytest.mark.parametrize(("offline", "rows"), [(True, 6), (True, 2), (False, 6)])
def test_critic_loss_by_hand(offline: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(conservative_weight=0.3, candidates=3, conservative_share=rows / 6)
    data = batch()
    for step in range(4):
        algorithm.update(batch(seed=step))  # so that critics and targets differ
    old = copy.deepcopy(algorithm)
    n_td, (n_here, n_there) = torch.randn(6, 2, 1), torch.randn(2, 3 * rows, 2, 1)
    noise = iter([n_td, n_here, n_there])
    monkeypatch.setattr(algorithm.policy, "sample_noise", lambda n: next(noise))
    drawn = torch.rand(3, rows, 2, 1)
    monkeypatch.setattr(torch, "rand_like", lambda x: drawn)
    algorithm.actor_every = 1000
    metrics = (algorithm.update_offline if offline else algorithm.update)(data)

    error, gap = 0.0, 0.0
    obs, next_obs = data.obs, data.next_obs
    assert isinstance(obs, Tensor) and isinstance(next_obs, Tensor) and data.mc_return is not None
    with torch.no_grad():
        for row in range(6):
            here, there = obs[row : row + 1], next_obs[row : row + 1]
            later = chunks(old.policy, there, n_td[row][None])
            backup = data.reward[row] + data.discount[row] * old.target(there, later).min()
            taken = old.critic(here, data.action[row : row + 1] / 2.0)
            error += float((taken - backup).square().sum()) / (2 * 6)
            if not offline or row >= rows:
                continue
            asked = [2 * drawn[j, row][None] - 1 for j in range(3)]
            asked += [chunks(old.policy, here, n_here[j * rows + row][None]) for j in range(3)]
            asked += [chunks(old.policy, there, n_there[j * rows + row][None]) for j in range(3)]
            for member in range(2):
                least, own = float(data.mc_return[row]), float(taken[member])
                q = [max(float(old.critic(here, one)[member]), least) for one in asked]
                soft = math.log((sum(math.exp(value) for value in q) + math.exp(own)) / 10)
                gap += (soft - own) / (2 * rows)
    assert float(metrics["conservative_gap"]) == pytest.approx(gap, abs=1e-5)
    assert float(metrics["critic_loss"]) == pytest.approx(error + 0.3 * gap, rel=1e-4)


@pytest.mark.parametrize("offline", [True, False])
def test_actor_climbs_values_and_clones(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the two losses, read off the actor's gradient."""
    algorithm = made(actor_every=1, offline_imitation=0.7, offline_value=0.2,
                     online_imitation=0.4, online_value=1.5)  # fmt: skip
    data, noise = batch(), torch.randn(6, 2, 1)
    cloned = torch.zeros(())

    def imitation(part: Batch) -> Tensor:
        nonlocal cloned
        cloned = algorithm.policy.normalizer.obs(part.obs).sum() * 0 + sum(
            weight.sum() for weight in algorithm.policy.parameters()
        )
        return cloned

    taken: list[Tensor] = []
    monkeypatch.setattr(algorithm.policy, "bc_loss", imitation)
    monkeypatch.setattr(algorithm.policy, "sample_noise", lambda n: noise.repeat(n, 1, 1)[:n])
    monkeypatch.setattr(algorithm.actor_optimizer, "step", taken.append)
    (algorithm.update_offline if offline else algorithm.update)(data)
    beta, eta = (0.7, 0.2) if offline else (0.4, 1.5)
    assert isinstance(data.obs, Tensor)
    value = algorithm.critic(data.obs, chunks(algorithm.policy, data.obs, noise)).mean()
    torch.testing.assert_close(taken[0], beta * cloned - eta * value)


def test_actor_learns_once_in_several_updates() -> None:
    algorithm = made(actor_every=3)
    changes = []
    for step in range(6):
        before = algorithm.policy.network.obs_layer.weight.clone()
        algorithm.update(batch(seed=step))
        changes.append(not torch.equal(before, algorithm.policy.network.obs_layer.weight))
    assert changes == [False, False, True, False, False, True]


def test_a_longer_plan_is_cloned_on_what_is_executed() -> None:
    base = ConsistencyPolicy(replace(SPEC, horizon=4), hidden=(16, 16))
    algorithm = made(setup(base=base))
    assert algorithm.policy.spec.horizon == 4 and algorithm.teacher is None
    data, obs = batch(), batch().obs
    assert isinstance(obs, Tensor)
    torch.manual_seed(4)
    cloned, _ = algorithm.actor_losses(data, obs)
    torch.manual_seed(4)
    rest = data.action[:, -1:].expand(-1, 2, -1)
    whole = replace(data, action=torch.cat([data.action, rest], 1),
                    valid=torch.tensor([[True, True, False, False]]).expand(6, -1))  # fmt: skip
    torch.testing.assert_close(cloned, algorithm.policy.bc_loss(whole))


# Phases and starts.


def test_phases_of_a_policy_of_its_own() -> None:
    found = made().phases(Budget(offline_steps=100, online_steps=50))
    assert [(p.name, p.length, p.unit) for p in found] == [
        ("offline", 100, "updates"), ("online", 50, "steps"),
    ]  # fmt: skip
    assert made().phases(Budget(offline_steps=0, online_steps=50))[0].name == "online"


def test_a_base_of_another_kind_is_distilled_first() -> None:
    base = FlowPolicy(SPEC, hidden=(16, 16), sampling_steps=3)
    algorithm = made(setup(base=base), learning_rate=3e-3)
    found = algorithm.phases(Budget(offline_steps=100, online_steps=0))
    assert [(p.name, p.length) for p in found] == [("distil", 25), ("offline", 75)]
    with pytest.raises(TrimtabError, match="distilled offline first"):
        algorithm.phases(Budget(offline_steps=0, online_steps=100))
    losses = [float(algorithm.distil(batch(count=64, seed=step))["distillation_loss"])
              for step in range(150)]  # fmt: skip
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])


@pytest.mark.parametrize("update", ["distil", "update_offline"])
def test_offline_updates_wait_for_no_device(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = FlowPolicy(replace(SPEC, horizon=3), hidden=(8, 8), sampling_steps=2).to("meta")
    algorithm = ConRFT(replace(setup(base=base), device="meta"), **SMALL)
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
        (setup(base=GaussianPolicy(SPEC, hidden=(8,))), {}, "student of a gaussian"),
        (replace(setup(), policy=lambda spec: FlowPolicy(spec)), {}, "policy=consistency"),
        (setup(), {"candidates": 0}, "candidates"),
        (setup(), {"actor_every": 0}, "actor_every"),
        (setup(), {"conservative_weight": -1.0}, "conservative_weight"),
        (setup(), {"offline_value": -1.0}, "offline_value"),
        (setup(), {"online_imitation": -1.0}, "online_imitation"),
        (setup(), {"tau": 2.0}, "tau"),
        (setup(), {"conservative_share": 1.5}, "conservative_share"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    given: Setup, keywords: dict[str, Any], word: str
) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        made(given, **keywords)
    assert "\n" not in str(caught.value)


# What it learns: of one decision, with reward 1 - |a - 0.5|.


def decisions(around: float, count: int = 64) -> Batch:
    action = (around + 0.3 * torch.randn(count, 1, 1)).clamp(-1, 1)
    reward = 1 - (action - 0.5).abs()[:, 0, 0]
    ones = torch.ones(count)
    return Batch(
        obs=torch.zeros(count, 1), action=action, reward=reward, next_obs=torch.zeros(count, 1),
        discount=0 * ones, valid=ones[:, None] > 0, mc_return=reward, whole=True,
    )  # fmt: skip


def test_offline_it_stays_with_the_data_and_online_it_finds_what_is_best() -> None:
    algorithm = made(setup(LINE), learning_rate=3e-3, hidden=(32, 32), tau=0.05)
    obs = torch.zeros(200, 1)
    for _ in range(300):
        algorithm.update_offline(decisions(around=0.0))
    cloned = float(algorithm.policy.act(obs).mean())
    assert -0.1 < cloned < 0.35
    for _ in range(300):
        algorithm.update(decisions(around=0.2))
    assert abs(float(algorithm.policy.act(obs).mean()) - 0.5) < 0.12


def test_conservative_critics_value_what_is_not_in_the_data_less() -> None:
    values = []
    for weight in (0.0, 1.0):
        algorithm = made(setup(LINE), learning_rate=3e-3, conservative_weight=weight)
        for _ in range(200):
            algorithm.update_offline(decisions(around=-0.5))
        with torch.no_grad():
            here, there = torch.full((1, 1, 1), -0.5), torch.full((1, 1, 1), 0.9)
            zero = torch.zeros(1, 1)
            values.append(algorithm.critic(zero, there) - algorithm.critic(zero, here))
    assert (values[1] < values[0] - 0.1).all()
