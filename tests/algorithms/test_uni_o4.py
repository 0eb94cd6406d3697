"""Uni-O4: disagreement, ratios, gate and surrogate against torch's distributions and loops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor, nn
from torch.distributions import Normal

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.gate import Gate
from trimtab.algorithms.common.rollouts import Decisions
from trimtab.algorithms.offline_to_online.uni_o4 import UniO4, apartness
from trimtab.algorithms.phases import Budget
from trimtab.policies.kinds.bounded_gaussian import MemberGaussians, density
from trimtab.types import Batch, Rollout, TrimtabError

Known = load_module(Path(__file__).with_name("small.py")).Known

SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]
SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16, "rollout_steps": 6, "epochs": 2,
                         "members": 3, "gate_decisions": 2, "minibatch_size": 6}  # fmt: skip


@pytest.fixture
def make(setup_of: SetupOf) -> Callable[..., UniO4]:
    def made(**keywords: Any) -> UniO4:
        torch.manual_seed(4)
        return UniO4(setup_of({"dataset"}), **{**SMALL, **keywords})

    return made


def perturbed(network: nn.Module, scale: float = 0.05) -> None:
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(scale * torch.randn_like(weight))


def normal(members: MemberGaussians, member: int, obs: Tensor) -> Normal:
    """One member's Gaussian at one state, from its own rows of the weights."""
    x = obs[None]
    linear = [layer for layer in members.network if not isinstance(layer, nn.ReLU)]
    for number, layer in enumerate(linear):
        x = x @ layer.weight[member] + layer.bias[member]
        x = torch.tanh(x) if number == len(linear) - 1 else torch.relu(x)
    mean, width = x[0].reshape(2, 2, 2)
    return Normal(mean, (-5.0 + 2.5 * (width + 1.0)).exp())


def test_cloning_by_hand(make: Callable[..., UniO4], batch_of: BatchOf) -> None:
    method = make(disagreement=0.3)
    perturbed(method.accepted)
    data, before = batch_of(method), copy.deepcopy(method.accepted)
    obs = method.policy.normalizer.obs(data.obs)
    action = method.policy.normalizer.normalize_action(data.action)
    torch.manual_seed(8)
    found = method.clone(data)
    torch.manual_seed(8)
    noise = torch.randn(3, 16, 2, 2)
    total, likely, apart = torch.zeros(()), 0.0, 0.0
    for row in range(16):
        kept = data.valid[row].float()[:, None]
        own = [normal(before, member, obs[row]) for member in range(3)]
        frozen = [Normal(one.loc.detach(), one.scale.detach()) for one in own]
        for member in range(3):
            drawn = own[member].loc + own[member].scale * noise[member, row]
            others = [frozen[j].log_prob(drawn).sum() for j in range(3) if j != member]
            gap = own[member].log_prob(drawn).sum() - max(others)
            close = (own[member].log_prob(action[row]) * kept).sum()
            total = total - (close + 0.3 * gap) / 16
            likely, apart = likely + close.item() / 48, apart + gap.item() / 48
    assert float(found["bc_loss"]) == pytest.approx(-likely, rel=1e-4)
    assert float(found["apart"]) == pytest.approx(apart, rel=1e-4)
    slopes = torch.autograd.grad(total, list(before.parameters()))
    rows = zip(method.accepted.parameters(), before.parameters(), slopes, strict=True)
    for mine, old, slope in rows:  # Adam's first step
        known = old - 1e-4 * slope / (slope.abs() + 1e-8)
        torch.testing.assert_close(mine, known, atol=2e-6, rtol=1e-4)
    # What is judged is the first member.
    mean, log_std = method.policy.head(obs)
    torch.testing.assert_close(mean, method.accepted(obs)[0][0])
    torch.testing.assert_close(log_std, method.accepted(obs)[1][0])


def test_disagreement_is_a_divergence_from_the_nearest() -> None:
    """Two members: E [log p_i - log p_j] is KL(p_i || p_j), in the mean of many samples."""
    torch.manual_seed(0)
    mean = torch.tensor([0.0, 0.5]).reshape(2, 1, 1, 1).expand(2, 20000, 1, 1)
    log_std = torch.tensor([-1.0, -0.5]).reshape(2, 1, 1, 1).expand(2, 20000, 1, 1)
    drawn = mean + log_std.exp() * torch.randn(2, 20000, 1, 1)
    one, two = (Normal(mean[i, 0, 0, 0], log_std[i, 0, 0, 0].exp()) for i in range(2))
    found = apartness(drawn, mean, log_std).mean(1)
    known = [
        torch.distributions.kl_divergence(one, two),
        torch.distributions.kl_divergence(two, one),
    ]
    torch.testing.assert_close(found, torch.stack(known), atol=0.03, rtol=0.03)


def test_disagreement_keeps_members_apart(make: Callable[..., UniO4], batch_of: BatchOf) -> None:
    found = []
    for weight in (0.0, 0.2):
        method = make(disagreement=weight, clone_learning_rate=3e-3)
        for _ in range(150):
            method.clone(batch_of(method))
        mean, log_std = method.accepted(method.policy.normalizer.obs(batch_of(method).obs))
        drawn = mean + log_std.exp() * torch.randn_like(mean)
        found.append(apartness(drawn, mean, log_std).mean().item())
    assert found[1] > found[0] + 0.1, found


def test_improvement_by_hand(make: Callable[..., UniO4], batch_of: BatchOf) -> None:
    method = make(offline_learning_rate=0.0, offline_clip=0.2)
    method.gate.updates = 1  # the candidates are others already
    perturbed(method.candidates, 0.01)
    data = batch_of(method)
    obs = method.policy.normalizer.obs(data.obs)
    torch.manual_seed(9)
    found = method.improve(data)
    torch.manual_seed(9)
    noise = torch.randn(3, 16, 2, 2)
    total, cut = 0.0, 0
    for member in range(3):
        rows = []
        for row in range(16):
            old = normal(method.accepted, member, obs[row])
            drawn = old.loc + old.scale * noise[member, row]
            worth = method.values(obs[row][None], drawn.clamp(-1, 1)[None]).min()
            new = normal(method.candidates, member, obs[row])
            ratio = (new.log_prob(drawn).sum() - old.log_prob(drawn).sum()).exp()
            rows.append((float(ratio), float(worth - method.critic(obs[row]))))
        usual = torch.tensor([worth for _, worth in rows])
        for ratio, worth in rows:
            advantage = float((worth - usual.mean()) / usual.std())
            bounded = min(max(ratio, 0.8), 1.2)
            cut += bounded != ratio
            total -= min(ratio * advantage, bounded * advantage) / 48
    assert 0 < cut < 48
    assert float(found["policy_loss"]) == pytest.approx(total, rel=1e-3, abs=1e-4)


def test_rates_fall_and_candidates_begin_as_the_clones(
    make: Callable[..., UniO4], batch_of: BatchOf
) -> None:
    method = make(offline_learning_rate=1.0e-3, clone_share=0.25, value_share=0.5, gate_every=2)
    budget = Budget(offline_steps=16, online_steps=36)
    phases = method.phases(budget)
    assert [(p.name, p.length) for p in phases] == [
        ("clone", 4), ("values", 6), ("improve", 6), ("online", 36)
    ]  # fmt: skip
    perturbed(method.accepted)
    rates = []
    for step in range(6):
        method.improve(batch_of(method, seed=step))
        rates.append(method.candidates_optimizer.learning_rate)
        if step == 0:
            for one, two in zip(
                method.candidates.parameters(), method.accepted.parameters(), strict=True
            ):
                assert 0 < float((one - two).abs().max()) < 2e-3  # one step of Adam
    assert rates == pytest.approx([1e-3 * (6 - step) / 6 for step in range(6)])


def test_scores_of_several_candidates_are_those_of_each_alone() -> None:
    both, alone = Gate(2, 2, decisions=3, candidates=2), Gate(2, 2, decisions=3)
    both.dynamics = alone.dynamics = Known()
    obs = torch.randn(5, 2)

    def value(s: Tensor, a: Tensor) -> Tensor:
        return torch.stack([s.sum(1), a[:, 0].sum(1) + 1.0])

    def act(rows: Tensor) -> Tensor:
        one, two = rows.unflatten(0, (2, -1))
        return torch.cat([0.5 * one, -0.25 * two])[:, None]

    found = both.score(obs, act, value)
    for number, factor in enumerate((0.5, -0.25)):
        known = alone.score(obs, lambda s, f=factor: f * s[:, None], value)  # type: ignore[misc]
        torch.testing.assert_close(found[number], known)


def test_members_that_got_better_are_accepted_and_the_best_is_judged(
    make: Callable[..., UniO4], batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(gate_every=2, offline_learning_rate=1e-2)
    told = iter([torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.5, 2.0, -1.0])])
    monkeypatch.setattr(method, "score", lambda *_: next(told))
    before = copy.deepcopy(method.accepted)
    for step in range(2):
        found = method.improve(batch_of(method, seed=step))
    same = zip(
        method.accepted.parameters(), method.candidates.parameters(), before.parameters(),
        strict=True,
    )  # fmt: skip
    for mine, candidate, old in same:
        assert torch.equal(mine[0], candidate[0]) and not torch.equal(mine[0], old[0])
        assert torch.equal(mine[1:], old[1:])
    assert float(found["best_score"]) == 2.0 and float(found["accepted"]) == 1.0
    for mine, weight in zip(
        method.policy.network.parameters(), method.accepted.parameters(), strict=True
    ):
        assert torch.equal(mine[0], weight[1])  # with the best score, though it did not change


def test_the_score_is_that_of_each_members_mean(make: Callable[..., UniO4]) -> None:
    method = make(gate_decisions=1)
    perturbed(method.accepted, 0.3)
    obs = torch.randn(10, 5)
    found = method.score(method.accepted, obs)
    for member in range(3):
        means = torch.stack([normal(method.accepted, member, one).loc for one in obs])
        known = method.values(obs, means).amin(0).mean()
        torch.testing.assert_close(found[member], known)


def test_online_surrogate_and_rates(
    make: Callable[..., UniO4], data_of: Callable[..., Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(decay_steps=0)  # of a run that never goes online
    method = make(
        entropy_weight=0.2,
        clip=0.1,
        decay_steps=72,
        learning_rate=1e-3,
        minibatch_size=18,
        epochs=1,
    )
    obs, noise = torch.randn(18, 5), torch.randn(18, 1, 2, 2)
    mean, log_std = method.policy.head(obs)
    chain = (mean + log_std.exp() * noise[:, 0]).detach()[:, None]
    old = density(chain[:, 0], mean, log_std).detach()
    perturbed(method.policy.network)
    given, network = torch.randn(18), copy.deepcopy(method.policy.network)
    with monkeypatch.context() as patch:
        samples = Decisions(obs, chain, old, given, torch.zeros(18))
        patch.setattr(method, "decisions", lambda *_: samples)
        metrics = method.update(data_of(method))
    advantage = (given - given.mean()) / given.std()  # of the whole rollout
    total, cut = 0.0, 0
    for row in range(18):
        one = normal(network, 0, obs[row])
        ratio = float((one.log_prob(chain[row, 0]).sum() - old[row]).exp())
        bounded = min(max(ratio, 0.9), 1.1)
        cut += bounded != ratio
        a = float(advantage[row])
        entropy = float((one.entropy() - 1.4189385).sum())
        total -= (min(ratio * a, bounded * a) + 0.2 * entropy) / 18
    assert cut > 0 and float(metrics["clip_share"]) == pytest.approx(cut / 18)
    assert float(metrics["policy_loss"]) == pytest.approx(total, rel=1e-4, abs=1e-4)
    rates = [float(method.actor_optimizer.learning_rate)]
    for seed in range(2):  # 36 steps each
        method.update(data_of(method, seed=seed))
        rates.append(float(method.actor_optimizer.learning_rate))
    assert rates == pytest.approx([1e-3, 5e-4, 0.0])


def test_density_counts_valid_actions_alone() -> None:
    torch.manual_seed(0)
    action, mean, log_std = torch.randn(3, 5, 2, 3)[:, :, :, None].unbind()
    action, mean, log_std = (part.squeeze(2) for part in (action, mean, log_std))
    valid = torch.tensor([[True, False]]).expand(5, 2)
    each = Normal(mean, log_std.exp()).log_prob(action)
    torch.testing.assert_close(density(action, mean, log_std), each.sum((1, 2)))
    torch.testing.assert_close(density(action, mean, log_std, valid), each[:, 0].sum(1))


def test_bad_settings_are_one_line(setup_of: SetupOf) -> None:
    for name, value in (("members", 0), ("minibatch_size", 1), ("gate_decisions", 0)):
        with pytest.raises(TrimtabError, match=rf"algorithm\.{name}={value}: "):
            UniO4(setup_of({"dataset"}), **{name: value})
    with pytest.raises(TrimtabError, match=r"algorithm\.value_share=1\.5: must be from 0 to 1"):
        UniO4(setup_of({"dataset"}), value_share=1.5)
