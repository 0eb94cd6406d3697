"""Cloning by returns and by advantages, against sums by hand; and what it learns."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.weighting import NoisyPlans, weighted_bc_loss
from trimtab.algorithms.finetuning.diffusion_awr import DiffusionAWR
from trimtab.algorithms.finetuning.diffusion_rwr import DiffusionRWR, returns_to_go
from trimtab.policies.base import Policy
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.types import Batch, PolicySpec, Rollout, TrimtabError

LOW, HIGH = (-1.0, -0.5), (1.0, 2.0)
EXECUTED, PLANNED = PolicySpec(3, 2, 2, LOW, HIGH), PolicySpec(3, 3, 2, LOW, HIGH)
ONE = PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0))


def start(kind: str = "flow", spec: PolicySpec = PLANNED) -> Policy:
    torch.manual_seed(5)
    kinds: dict[str, Any] = {"flow": FlowPolicy, "diffusion": DiffusionPolicy}
    policy: Policy = kinds[kind](spec, hidden=(32, 32), sampling_steps=3)
    return policy


def batch(rows: int = 12, spec: PolicySpec = PLANNED) -> Batch:
    torch.manual_seed(3)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    action = low + (high - low) * torch.rand(rows, spec.horizon, spec.action_dim)
    obs = torch.randn(rows, 3)
    valid = torch.ones(rows, spec.horizon, dtype=torch.bool)
    valid[::3, 1:] = False
    return Batch(
        obs=obs, action=action, reward=torch.rand(rows), next_obs=torch.randn(rows, 3),
        discount=0.9 * (torch.rand(rows) < 0.7).float(), valid=valid, mc_return=torch.randn(rows),
    )  # fmt: skip


@pytest.mark.parametrize("policy", [start("flow"), start("diffusion"), GaussianPolicy(PLANNED)],
                         ids=lambda policy: policy.kind)  # fmt: skip
def test_errors_are_those_whose_mean_is_the_loss(policy: Policy) -> None:
    data = batch()
    torch.manual_seed(1)
    plain = policy.bc_loss(data)
    torch.manual_seed(1)
    error = policy.bc_errors(data)
    assert error.shape == (12, 3, 2)
    torch.manual_seed(1)
    assert torch.equal(weighted_bc_loss(policy, data, torch.ones(12)), plain)
    weight = torch.rand(12)
    torch.manual_seed(1)
    found = weighted_bc_loss(policy, data, weight)
    total, number = 0.0, 0
    for row in range(12):
        for place in range(3):
            if data.valid[row, place]:
                total += float(weight[row]) * float(error[row, place].detach().mean())
                number += 1
    assert found.item() == pytest.approx(total / number, rel=1e-5)


def test_policies_without_such_errors_are_refused() -> None:
    data = batch(spec=EXECUTED)
    with pytest.raises(TrimtabError, match="deterministic policy has no imitation error for each"):
        DeterministicPolicy(EXECUTED).bc_errors(data)
    for kind in (DiffusionRWR, DiffusionAWR):
        with pytest.raises(TrimtabError, match="a deterministic policy cannot; start from another"):
            kind(Setup(EXECUTED, base=DeterministicPolicy(EXECUTED)))
        with pytest.raises(TrimtabError, match="act_steps=2: the policy plans only 1"):
            kind(Setup(EXECUTED, base=start(spec=dataclasses.replace(EXECUTED, horizon=1))))


def rollout(reward: Tensor, cut: Tensor, terminated: Tensor, **aux: Tensor) -> Rollout:
    obs = torch.randn(*reward.shape, 3)
    return Rollout(
        obs=obs, action=torch.zeros(*reward.shape, 2, 2), reward=reward, next_obs=obs,
        discount=0.9 * (~terminated).float(), cut=cut, aux=aux,
    )  # fmt: skip


def test_returns_end_with_their_episodes() -> None:
    torch.manual_seed(0)
    reward = torch.randn(9, 4)
    cut = torch.rand(9, 4) < 0.3
    terminated = cut & (torch.rand(9, 4) < 0.5)
    known = rollout(reward, cut, terminated)
    returns = returns_to_go(known)
    whole = torch.zeros(36, dtype=torch.bool)
    whole[known.ended] = True
    whole = whole.view(9, 4)
    for column in range(4):
        for step in range(9):
            total, factor, ended = 0.0, 1.0, False
            for later in range(step, 9):
                total += factor * float(reward[later, column])
                factor *= 0.9
                if cut[later, column]:
                    ended = True
                    break
            assert bool(whole[step, column]) == ended
            if ended:
                assert returns[step, column].item() == pytest.approx(total, abs=1e-5)
    assert whole.any() and not whole.all()


def test_returns_become_weights() -> None:
    algorithm = DiffusionRWR(Setup(EXECUTED, base=start()), beta=3.0, most_weight=5.0)
    returns = torch.tensor([1.0, 2.0, 4.0])
    mean = 7 / 3
    deviation = math.sqrt(((1 - mean) ** 2 + (2 - mean) ** 2 + (4 - mean) ** 2) / 3) + 1e-3
    known = [min(math.exp(3 * (x - mean) / deviation), 5.0) for x in (1.0, 2.0, 4.0)]
    assert algorithm.weights(returns).tolist() == pytest.approx(known, rel=1e-4)
    assert known[2] == 5.0 and known[0] < 0.1


def test_what_did_not_end_is_not_cloned() -> None:
    """With no weight on it, another plan there changes nothing."""
    cut = torch.zeros(4, 2, dtype=torch.bool)
    cut[2, 0] = True
    plan = 2 * torch.rand(4, 2, 3, 2) - 1
    learned = []
    for shift in (0.0, 0.4):
        algorithm = DiffusionRWR(Setup(EXECUTED, base=start()), batch_size=8, epochs=3)
        moved = plan.clone()
        moved[3] += shift
        moved[:, 1] += shift
        torch.manual_seed(2)
        data = rollout(torch.arange(8.0).reshape(4, 2), cut, cut, plan=moved)
        torch.manual_seed(4)
        metrics = algorithm.update(data)
        learned.append(torch.cat([w.detach().flatten() for w in algorithm.policy.parameters()]))
    assert torch.equal(*learned) and float(metrics["ended"]) == pytest.approx(3 / 8)


def test_weights_move_by_what_ended_alone() -> None:
    """So many steps as whole decisions fill minibatches, and none where no episode ended."""
    algorithm = DiffusionRWR(Setup(EXECUTED, base=start()), batch_size=2, epochs=3)
    plan, none = 2 * torch.rand(4, 2, 3, 2) - 1, torch.zeros(4, 2, dtype=torch.bool)
    cut = none.clone()
    cut[3, 0] = True  # four of eight decisions
    weights = torch.nn.utils.parameters_to_vector
    for ends, steps in ((cut, 6), (none, 6), (cut, 12)):
        before = weights(algorithm.policy.parameters()).detach().clone()
        metrics = algorithm.update(rollout(torch.randn(4, 2), ends, ends, plan=plan))
        moved = not torch.equal(before, weights(algorithm.policy.parameters()))
        assert moved == bool(ends.any()) and float(metrics["ended"]) == ends.any() / 2
        assert algorithm.optimizer.state_dict()["steps"] == steps


def test_diffusion_acts_with_noise_of_at_least_the_floor() -> None:
    policy = start("diffusion", ONE)
    quiet, loud = NoisyPlans(policy, 0.01), NoisyPlans(policy, 0.5)
    assert loud.chain is not None and loud.chain.deviations.min() == 0.5
    obs = torch.zeros(300, 3)
    torch.manual_seed(0)
    first = quiet.draw(obs)
    torch.manual_seed(0)
    assert (loud.draw(obs) - first).abs().mean() > 0.05
    assert NoisyPlans(start("flow", ONE), 0.5).chain is None


def test_values_are_pulled_to_returns_and_advantages_follow() -> None:
    algorithm = DiffusionAWR(
        Setup(EXECUTED, base=start()), return_decay=0.7, beta=2.0, most_weight=6.0, hidden=(16,)
    )
    data = batch(spec=EXECUTED)
    assert data.mc_return is not None and isinstance(data.next_obs, Tensor)
    with torch.no_grad():
        value = algorithm.critic(data.next_obs).squeeze(-1)
        known = 0.7 * data.mc_return + 0.3 * (data.reward + data.discount * value)
    torch.testing.assert_close(algorithm.target(data, data.next_obs), known)
    advantage = torch.tensor([0.0, 1.0, 5.0])
    deviation = math.sqrt((4 + 1 + 9) / 2) + 1e-6
    weights = [min(math.exp(2 * (x - 2) / deviation), 6.0) for x in (0, 1, 5)]
    assert algorithm.weights(advantage).tolist() == pytest.approx(weights, rel=1e-4)
    before = algorithm.critic(data.obs).detach()
    metrics = algorithm.update(data)
    assert float(metrics["value_loss"]) == pytest.approx(
        0.5 * float((before.squeeze(-1) - known).square().mean()), rel=1e-4
    )


def test_v_comes_to_the_mean_return() -> None:
    """Two states, one with a return of 1 or 3, one that leads to the first with a reward of 1."""
    algorithm = DiffusionAWR(
        Setup(ONE, base=start(spec=ONE)), return_decay=0.5, hidden=(16,), critic_learning_rate=5e-3
    )
    near, far = torch.eye(3)[0], torch.eye(3)[1]
    obs, next_obs = torch.stack([near, near, far, far]), torch.stack([far, far, near, near])
    data = dataclasses.replace(
        batch(4, ONE), obs=obs, next_obs=next_obs, reward=torch.tensor([1.0, 3.0, 1.0, 1.0]),
        discount=torch.tensor([0.0, 0.0, 0.9, 0.9]),
        mc_return=torch.tensor([1.0, 3.0, 1.9, 3.7]), valid=torch.ones(4, 1, dtype=torch.bool),
    )  # fmt: skip
    for _ in range(250):
        algorithm.update(data)
    value = algorithm.critic(torch.stack([near, far])).flatten()
    assert value.tolist() == pytest.approx([2.0, 0.5 * 2.8 + 0.5 * (1 + 0.9 * 2)], abs=0.05)


def reward_of(obs: Tensor, action: Tensor) -> Tensor:
    return -(action[:, 0] - 0.5 * torch.tanh(obs[:, :2])).square().sum(1)


@pytest.mark.parametrize("kind", ["flow", "diffusion"])
def test_regression_by_returns_improves(kind: str) -> None:
    algorithm = DiffusionRWR(
        Setup(ONE, base=start(kind, ONE), num_envs=64),
        learning_rate=3e-3, rollout_steps=8, batch_size=128, epochs=6, beta=3.0,
    )  # fmt: skip
    torch.manual_seed(0)
    test = torch.randn(500, 3)
    before = reward_of(test, algorithm.policy.act(test)).mean().item()
    for _ in range(12):
        obs = torch.randn(8, 64, 3)
        found = [algorithm.explore(one, warmup=False)[0] for one in obs]
        reward = torch.stack([reward_of(o, a) for o, a in zip(obs, found, strict=True)])
        cut = torch.ones(8, 64, dtype=torch.bool)
        data = rollout(reward, cut, cut, plan=torch.stack(found))
        algorithm.update(dataclasses.replace(data, obs=obs))
    after = reward_of(test, algorithm.policy.act(test)).mean().item()
    assert after > 0.7 * before, (before, after)


@pytest.mark.parametrize("kind", ["flow", "diffusion"])
def test_regression_by_advantages_improves(kind: str) -> None:
    algorithm = DiffusionAWR(
        Setup(ONE, base=start(kind, ONE)), learning_rate=3e-3, hidden=(32,), beta=3.0
    )
    torch.manual_seed(0)
    test = torch.randn(500, 3)
    before = reward_of(test, algorithm.policy.act(test)).mean().item()
    for _ in range(250):
        obs, action = torch.randn(256, 3), 2 * torch.rand(256, 1, 2) - 1
        reward = reward_of(obs, action)
        algorithm.update(
            dataclasses.replace(
                batch(256, ONE),
                obs=obs,
                action=action,
                reward=reward,
                mc_return=reward,
                discount=torch.zeros(256),
                valid=torch.ones(256, 1, dtype=torch.bool),
            )  # fmt: skip
        )
    after = reward_of(test, algorithm.policy.act(test)).mean().item()
    assert after > 0.5 * before, (before, after)
