"""Methods that choose among samples: what they play, and their losses by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.plans import as_plans, continued
from trimtab.algorithms.selection.best_of_n import BestOfN
from trimtab.algorithms.selection.idql import IDQL
from trimtab.algorithms.selection.qc import QChunking
from trimtab.policies.base import Policy
from trimtab.policies.kinds.best_of import BestOfPolicy, gumbel
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import Batch, PolicySpec, TrimtabError

small = load_module(Path(__file__).with_name("small.py"))
PLAN, RUN, SIZE = small.PLAN, small.RUN, small.SIZE
SMALL: dict[str, Any] = small.SMALL
follows = small.follows


def flow(spec: PolicySpec = PLAN, seed: int = 0) -> FlowPolicy:
    torch.manual_seed(seed)
    return FlowPolicy(spec, hidden=(16, 16), sampling_steps=2)


def few(count: int = 6, *, whole: bool = False) -> Batch:
    """Rows of two executed actions; the episode cut every second one after the first action."""
    generator = torch.Generator().manual_seed(5)
    valid = torch.ones(count, 2, dtype=torch.bool)
    if not whole:
        valid[::2, 1] = False
    action = SIZE * (2 * torch.rand(count, 2, 2, generator=generator) - 1)
    return Batch(
        obs=torch.randn(count, 3, generator=generator),
        action=torch.where(valid[..., None], action, action[:, :1]),
        reward=torch.randn(count, generator=generator),
        next_obs=torch.randn(count, 3, generator=generator),
        discount=torch.tensor([0.9, 0.9, 0.0, 0.9, 0.0, 0.9])[:count],
        valid=valid,
        whole=whole,
    )


def drawing(monkeypatch: pytest.MonkeyPatch, policy: Policy, sizes: list[int]) -> list[Tensor]:
    """Fix what noise a policy draws, one tensor after another."""
    generator = torch.Generator().manual_seed(6)
    noise = [torch.randn(size, *policy.noise_shape, generator=generator) for size in sizes]
    drawn = iter(noise)

    def sample_noise(n: int) -> Tensor:
        one = next(drawn)
        assert len(one) == n
        return one

    monkeypatch.setattr(policy, "sample_noise", sample_noise)
    return noise


# The policy that chooses.


@pytest.mark.parametrize("pessimistic", [True, False])
def test_the_best_by_least_or_by_mean_is_played(pessimistic: bool) -> None:
    torch.manual_seed(3)
    policy = BestOfPolicy(
        flow(), candidates=7, hidden=(16,), members=3, act_steps=2, layer_norm=True,
        pessimistic=pessimistic,
    )  # fmt: skip
    obs, noise = torch.randn(40, 3), torch.randn(40, 7, 3, 2)
    other = 0
    with torch.no_grad():
        played = policy(obs, noise)
        for row in range(40):
            worth, against, chunks = [], [], []
            for k in range(7):
                chunk = policy.base(obs[row : row + 1], noise[row : row + 1, k])
                values = policy.critic(obs[row : row + 1], chunk[:, :2] / SIZE)[:, 0]
                kinds = [float(values.min()), float(values.mean())]
                worth.append(kinds[0] if pessimistic else kinds[1])
                against.append(kinds[1] if pessimistic else kinds[0])
                chunks.append(chunk[0])
            other += int(np.argmax(worth) != np.argmax(against))
            assert torch.allclose(played[row], chunks[int(np.argmax(worth))], atol=1e-6)
    assert other > 3  # the two rules differ on these rows


def test_a_temperature_draws_by_the_softmax_of_the_values() -> None:
    torch.manual_seed(3)
    many, temperature = 4, 0.1
    policy = BestOfPolicy(flow(), candidates=many, hidden=(16,), temperature=temperature)
    assert policy.noise_shape == (many, 7)
    obs, latent = torch.randn(1, 3), torch.randn(1, many, 6)
    with torch.no_grad():
        chunks = policy.base(obs.expand(many, 3), latent.reshape(many, 3, 2))
        worth = policy.critic(obs.expand(many, 3), chunks / SIZE).amin(0)
        chances = torch.softmax(worth / temperature, 0)
        assert chances.min() > 0.01 and chances.max() < 0.9 and chances.std() > 0.05
        draws = 20_000
        noise = torch.cat([torch.randn(draws, many, 1), latent.expand(draws, many, 6)], dim=2)
        played = policy(obs.expand(draws, 3), noise)
        near = (played[:, None] - chunks[None]).abs().flatten(2).amax(2) < 1e-5
    assert (near.sum(1) == 1).all()
    shares = near.float().mean(0)
    assert ((shares - chances).abs() < 4 * (chances * (1 - chances) / draws).sqrt()).all()


def test_gumbel_variables_have_their_mean_and_variance() -> None:
    torch.manual_seed(0)
    drawn = gumbel(torch.randn(200_000))
    assert abs(float(drawn.mean()) - 0.57722) < 0.012
    assert abs(float(drawn.var()) - torch.pi**2 / 6) < 0.04
    assert torch.isfinite(gumbel(torch.tensor([-40.0, 0.0, 40.0]))).all()


@pytest.mark.parametrize(
    "wrong", [{"candidates": 0}, {"members": 0}, {"act_steps": 4}, {"temperature": 0.0}]
)
def test_settings_that_choose_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrimtabError, match=f"{next(iter(wrong))}="):
        BestOfPolicy(flow(), **wrong)


# Chunks, plans and where they were cut.


def test_cut_chunks_go_on_with_a_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    base, data = flow(), few()
    (noise,) = drawing(monkeypatch, base, [3])  # for the cut chunks alone
    action = continued(data, base)
    with torch.no_grad():
        plan = base(data.obs[::2], noise)
    for row in range(6):
        assert torch.equal(action[row, 0], data.action[row, 0])
        rest = plan[row // 2, 1] if row % 2 == 0 else data.action[row, 1]
        assert torch.equal(action[row, 1], rest)
    # Nothing is drawn, or the noise would end; whether it is known that none was cut, or not.
    for known in (True, False):
        kept = replace(few(whole=True), whole=known)
        assert torch.equal(continued(kept, base), kept.action)


def test_plans_are_as_long_as_the_policys_and_only_what_was_done_is_cloned() -> None:
    data = few()
    plans = as_plans(data, 3)
    assert plans.action.shape == (6, 3, 2) and not plans.whole
    assert plans.valid.tolist() == [[True, row % 2 == 1, False] for row in range(6)]
    assert torch.equal(plans.action[:, :2], data.action)
    assert torch.equal(plans.action[:, 2], data.action[:, 1])
    assert as_plans(data, 2) is data
    # What is not executed is no target: the error there does not count, by autograd.
    error = torch.ones(6, 3, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(flow().masked_mean(error, plans.valid), [error])
    assert torch.equal(gradient.abs().sum(2) > 0, plans.valid)


# Best of N and Q-chunking: critic.


def chooser(kind: type[BestOfN], **keywords: Any) -> BestOfN:
    made = kind(Setup(RUN, base=flow()), **{**SMALL, **keywords})
    torch.manual_seed(8)
    with torch.no_grad():  # so that learned and target critics choose differently
        for weight in made.target.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return made


@pytest.mark.parametrize("kind", [BestOfN, QChunking])
@pytest.mark.parametrize("pessimistic", [True, False])
@pytest.mark.parametrize("many", [1, 5])
def test_critic_loss_by_hand(
    kind: type[BestOfN], pessimistic: bool, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = chooser(kind, pessimistic=pessimistic, target_candidates=many)
    old, data = copy.deepcopy(algorithm), few()
    noise = drawing(monkeypatch, algorithm.policy.base, [6 * many, 3])
    metrics = algorithm.update(data)

    def worth(critic: nn.Module, obs: Tensor, chunk: Tensor) -> float:
        values = critic(obs, chunk[:, :2] / SIZE)[:, 0]
        return float(values.min() if pessimistic else values.mean())

    expected, swapped = 0.0, 0
    with torch.no_grad():
        for row in range(6):
            obs, next_obs = data.obs[row : row + 1], data.next_obs[row : row + 1]
            plans = [old.policy.base(next_obs, noise[0][row * many + k][None]) for k in range(many)]
            liked = [worth(old.policy.critic, next_obs, plan) for plan in plans]
            valued = [worth(old.target, next_obs, plan) for plan in plans]
            chosen = int(np.argmax(liked))
            swapped += int(chosen != int(np.argmax(valued)))
            backup = float(data.reward[row]) + float(data.discount[row]) * valued[chosen]
            action = data.action[row : row + 1].clone()
            if row % 2 == 0:
                action[:, 1] = old.policy.base(obs, noise[1][row // 2][None])[:, 1]
            error = old.policy.critic(obs, action / SIZE) - backup
            expected += float(error.square().sum()) / 6
    assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-4)
    assert many == 1 or swapped > 0  # the learned critic chooses and the target values


def test_q_chunking_clones_what_was_executed() -> None:
    """The clone's step is Adam's on the flow loss, in the draws that follow the critic's."""
    data = few()
    ours, by_hand = chooser(QChunking), chooser(QChunking)
    torch.manual_seed(4)
    metrics = ours.update(data)
    torch.manual_seed(4)
    BestOfN.update(by_hand, data)
    clone: Any = by_hand.policy.base
    clean = torch.cat([data.action, data.action[:, 1:]], dim=1) / SIZE
    epsilon, time = torch.randn(6, 3, 2), torch.rand(6)
    total, rows = torch.zeros(()), 0
    for row in range(6):
        noisy = (1 - time[row]) * epsilon[row] + time[row] * clean[row]
        condition = clone.network.condition(data.obs[row : row + 1])
        velocity = clone.network(noisy[None], time[row : row + 1], condition)[0]
        for step in range(2 if row % 2 else 1):
            total = total + (velocity - clean[row] + epsilon[row])[step].square().mean()
            rows += 1
    assert float(metrics["clone_loss"]) == pytest.approx(float(total.detach()) / rows, rel=1e-5)
    peer = torch.optim.Adam(clone.parameters(), 3e-3)
    (total / rows).backward()
    peer.step()
    for mine, theirs in zip(ours.policy.base.parameters(), clone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


# IDQL.


def idql(**keywords: Any) -> IDQL:
    torch.manual_seed(1)
    made = IDQL(Setup(RUN, base=flow()), **{**SMALL, **keywords})
    torch.manual_seed(8)
    with torch.no_grad():
        for weight in made.critic.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        for weight in made.learner.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def test_losses_of_implicit_q_learning_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, data = idql(expectile=0.8), few()
    with torch.no_grad():  # V stands in the middle of the values, so that both branches count
        gap = (
            algorithm.policy.value(data.obs, data.action).amin(0) - algorithm.value(data.obs)[:, 0]
        )
        last: Any = algorithm.value[-1]
        last.bias.add_(gap.median() + 1e-3)
    old = copy.deepcopy(algorithm)
    (noise,) = drawing(monkeypatch, algorithm.policy.base, [3])
    metrics = algorithm.update(data)
    value_loss, critic_loss, above = 0.0, 0.0, 0
    with torch.no_grad():
        for row in range(6):
            obs, next_obs = data.obs[row : row + 1], data.next_obs[row : row + 1]
            action = data.action[row : row + 1].clone()
            if row % 2 == 0:
                action[:, 1] = old.policy.base(obs, noise[row // 2][None])[:, 1]
            action = action / SIZE
            u = float(old.policy.critic(obs, action).min() - old.value(obs))
            value_loss += (0.8 if u > 0 else 0.2) * u**2 / 6
            above += int(u > 0)
            # V is the one after its step of this update, as in both authors' codes.
            later = float(algorithm.value(next_obs))
            backup = float(data.reward[row]) + float(data.discount[row]) * later
            critic_loss += float((old.critic(obs, action) - backup).square().sum()) / 6
    assert 0 < above < 6
    assert float(metrics["value_loss"]) == pytest.approx(value_loss, rel=1e-4)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss, rel=1e-4)


def test_target_and_average_follow_at_their_rates() -> None:
    algorithm = idql(tau=0.1, ema_decay=0.75)
    old = copy.deepcopy(algorithm)
    algorithm.update(few())
    follows(algorithm.policy.critic, old.policy.critic, algorithm.critic, 0.1)
    follows(algorithm.policy.base, old.policy.base, algorithm.learner, 0.25)


def test_the_implicit_policy_draws_samples_above_v_more_often() -> None:
    algorithm = idql(exploration_expectile=0.8, candidates=4)
    policy = algorithm.policy
    obs = torch.randn(1, 3)
    latent = torch.randn(4, 3, 2)
    draws = 8_000
    with torch.no_grad():
        chunks = policy.base(obs.expand(4, 3), latent)
        worth = policy.critic(obs.expand(4, 3), chunks[:, :2] / SIZE).amin(0)
        ranked = worth.sort().values
        last: Any = algorithm.value[-1]
        last.weight.zero_()
        last.bias.fill_(float(ranked[2:].mean()))  # one sample of the four lies above V
        policy.base.sample_noise = lambda n: latent.repeat(n // 4, 1, 1)  # type: ignore[method-assign]
        played = algorithm.implicit(obs.expand(draws, 3))
        near = (played[:, None] - chunks[None]).abs().flatten(2).amax(2) < 1e-5
    assert (near.sum(1) == 1).all()
    share = float(near[:, int(worth.argmax())].float().mean())
    expected = 0.8 / (0.8 + 3 * 0.2)
    assert abs(share - expected) < 4 * (expected * (1 - expected) / draws) ** 0.5


# What is refused.


@pytest.mark.parametrize("kind", [QChunking, IDQL])
def test_a_start_that_cannot_be_cloned_is_refused(kind: Callable[..., Any]) -> None:
    with pytest.raises(TrimtabError, match="no behaviour-cloning loss"):
        kind(Setup(RUN, base=TanhGaussianPolicy(RUN, hidden=(8,))))
