"""The offline baselines against sums that are written out: penalties, gaps, bounds and slopes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution, Uniform

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.conservative import importance_gap
from trimtab.algorithms.offline.awac import AWAC
from trimtab.algorithms.offline.cal_ql import CalQL
from trimtab.algorithms.offline.cql import CQL
from trimtab.algorithms.offline.edac import EDAC, likeness
from trimtab.algorithms.offline.rebrac import ReBRAC
from trimtab.algorithms.phases import Budget
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.types import Batch, TrimtabError

SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]
TINY = {"hidden": (16, 16)}


# ReBRAC


def test_rebrac_takes_the_penalty_of_the_next_action_off_the_target(
    setup_of: SetupOf, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    method = ReBRAC(setup_of({"dataset"}), critic_penalty=0.7, **TINY)
    data = batch_of(method)
    assert method.batch_spec.next_action and data.next_action is not None
    noise = torch.randn(len(data), 2, 2, generator=torch.Generator().manual_seed(5)) * 4
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    found = method.next_value(data)
    normalizer = method.policy.normalizer
    taken = normalizer.normalize_action(data.next_action)
    for row in range(len(data)):
        action = method.policy_target.squashed(data.next_obs[row : row + 1])[0]
        away, used = 0.0, torch.zeros(2, 2)
        for step in range(2):
            for entry in range(2):
                bump = max(-0.5, min(0.5, 0.2 * float(noise[row, step, entry])))
                used[step, entry] = max(-1.0, min(1.0, float(action[step, entry]) + bump))
                away += float(used[step, entry] - taken[row, step, entry]) ** 2
        values = method.critic_target(normalizer.obs(data.next_obs[row : row + 1]), used[None])
        assert float(found[row]) == pytest.approx(float(values.min()) - 0.7 * away, abs=1e-5)
    assert (noise.abs() > 2.5).any() and (noise.abs() < 2.5).any()


def test_rebracs_actor_ascends_the_least_value_at_scale_one_less_its_penalty(
    setup_of: SetupOf, batch_of: BatchOf
) -> None:
    torch.manual_seed(0)
    method = ReBRAC(setup_of({"dataset"}), actor_penalty=0.3, **TINY)
    data = batch_of(method)
    obs = method.policy.normalizer.obs(data.obs)
    squashed = method.policy.squashed(data.obs).detach()
    least = torch.minimum(*method.critic(obs, squashed)).detach()
    value = method.actor_value(obs, squashed)
    assert torch.equal(value, least) and not torch.equal(value, method.critic(obs, squashed)[0])
    target, away = method.policy.normalizer.normalize_action(data.action), []
    for row in range(len(data)):
        kept = [step for step in range(2) if data.valid[row, step]]
        away.append(sum(float((squashed - target)[row, step].square().sum()) for step in kept))
    known = 0.3 * sum(away) / len(away) - float(least.mean() / least.abs().mean())
    loss = method.policy_loss(data, value, squashed).detach()
    assert float(loss) == pytest.approx(known, abs=1e-5)


def test_rebrac_normalises_after_activations_and_begins_near_zero(setup_of: SetupOf) -> None:
    method = ReBRAC(setup_of({"dataset"}), **TINY)
    kinds = [type(layer).__name__ for layer in method.critic.network]
    part = ["EnsembleLinear", "ReLU", "EnsembleLayerNorm"]
    assert kinds == [*part, *part, "EnsembleLinear"]
    assert (method.critic.network[0].bias == 0.1).all()
    assert method.critic.network[-1].weight.abs().max() <= 3e-3
    assert (method.policy.network[0].bias == 0.1).all()
    assert method.policy.network[-1].weight.abs().max() <= 1e-3
    for mine, behind in zip(
        method.critic.parameters(), method.critic_target.parameters(), strict=True
    ):
        assert torch.equal(mine, behind)


def test_rebracs_penalties_fall_online(setup_of: SetupOf, batch_of: BatchOf) -> None:
    method = ReBRAC(setup_of({"dataset"}), actor_penalty=0.4, least_decay=0.3, **TINY)
    offline, online = method.phases(Budget(offline_steps=2, online_steps=8))  # 4 decisions of 2
    seen = []
    for phase in [offline] * 2 + [online] * 4:
        assert phase.update is not None
        phase.update(batch_of(method))
        seen.append((method.actor_penalty, method.critic_penalty))
    expected = [(0.4, 0.01)] * 2 + [(0.4 * left, 0.0) for left in (1.0, 0.75, 0.5, 0.3)]
    assert seen == [pytest.approx(pair) for pair in expected]


# CQL and Cal-QL


def asked(method: CQL, data: Batch, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Carry out an update, and return what its gap was made of."""
    seen: dict[str, torch.Tensor] = {}

    def recording(sampled, log_density, taken, least=None, **keywords):  # type: ignore[no-untyped-def]
        seen["gap"] = importance_gap(sampled, log_density, taken, least, **keywords)
        seen["sampled"], seen["density"], seen["taken"] = sampled, log_density, taken
        return seen["gap"]

    monkeypatch.setattr("trimtab.algorithms.offline.cql.importance_gap", recording)
    own = method.candidate_actions

    def remembering(here, there):  # type: ignore[no-untyped-def]
        seen["actions"], density = own(here, there)
        return seen["actions"], density

    monkeypatch.setattr(method, "candidate_actions", remembering)
    method.update(data)
    return seen


@pytest.mark.parametrize("kind", [CQL, CalQL])
def test_the_gap_is_a_log_sum_over_weighed_samples(
    kind: type[CQL], setup_of: SetupOf, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row and sample by sample, with torch's own densities, from the weights before."""
    torch.manual_seed(0)
    method = kind(setup_of({"dataset"}), candidates=3, **TINY)
    data = replace(batch_of(method), mc_return=torch.linspace(-2.0, 2.0, 16))
    data = replace(data, valid=torch.ones_like(data.valid))
    with torch.no_grad():
        here = method.actor.distribution(data.obs)
        there = method.actor.distribution(data.next_obs)
    critic = EnsembleCritic(5, 4, hidden=(16, 16))
    critic.load_state_dict(method.critic.state_dict())
    seen = asked(method, data, monkeypatch)
    obs = method.actor.normalizer.obs(data.obs)
    action = method.actor.normalizer.normalize_action(data.action)
    uniform = Uniform(-torch.ones(2, 2), torch.ones(2, 2))
    for row in range(16):
        densities = [uniform] * 3 + [
            TransformedDistribution(Normal(mean[row], log_std[row].exp()), TanhTransform())
            for mean, log_std in [there] * 3 + [here] * 3
        ]
        for member in range(2):
            total = 0.0
            for number, density in enumerate(densities):
                sample = seen["actions"][number, row]
                worth = float(critic(obs[row : row + 1], sample[None])[member, 0])
                if kind is CalQL and number >= 3:
                    worth = max(worth, -2.0 + row * 4 / 15)
                total += math.exp(worth - float(density.log_prob(sample).sum()))
            taken = float(critic(obs[row : row + 1], action[row : row + 1])[member, 0])
            known = math.log(total) - taken
            assert float(seen["gap"][member, row]) == pytest.approx(known, abs=2e-3)


def test_the_lower_bound_counts_before_the_density_is_taken_off() -> None:
    """One critic, one row: exp(max(Q, G) - log p), and nothing for a bound of minus infinity."""
    sampled = torch.tensor([[[1.0], [2.0], [-3.0]]])
    density = torch.tensor([[0.5], [-1.0], [0.25]])
    least = torch.tensor([[-math.inf], [2.5], [0.0]])
    known = math.log(math.exp(1 - 0.5) + math.exp(2.5 + 1.0) + math.exp(0 - 0.25)) - 0.75
    found = importance_gap(sampled, density, torch.tensor([[0.75]]), least)
    assert float(found) == pytest.approx(known, abs=1e-6)


def test_the_multiplier_ascends_the_gap(setup_of: SetupOf) -> None:
    """Its first step is Adam's, of one learning rate, in the gradient's direction."""
    for gap, sign in ((torch.tensor([2.0, 1.0]), 1), (torch.tensor([0.1, 0.2]), -1)):
        method = CQL(
            setup_of({"dataset"}), conservative_weight=5.0, lagrange_gap=0.8, **TINY,
        )  # fmt: skip
        loss = method.conservative_loss(gap)
        assert float(loss) == pytest.approx(math.e * 5.0 * float((gap - 0.8).sum()), rel=1e-5)
        assert float(method.multiplier.log) == pytest.approx(1.0 + sign * 3e-4, abs=1e-6)
    plain = CQL(setup_of({"dataset"}), conservative_weight=5.0, **TINY)
    assert float(plain.conservative_loss(torch.tensor([2.0, 1.0]))) == pytest.approx(15.0)


def test_the_best_of_several_next_actions_is_backed_up(
    setup_of: SetupOf, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    method = CQL(setup_of({"dataset"}), candidates=4, max_backup=True, backup_entropy=True, **TINY)
    data = batch_of(method)
    noise = torch.randn(4, 16, 2, 2)
    monkeypatch.setattr(method, "noise", lambda many, rows: noise)
    there = method.actor.distribution(data.next_obs)
    next_obs = method.actor.normalizer.obs(data.next_obs)
    found = method.backup(next_obs, there, torch.tensor(0.3))
    for row in range(16):
        worth = []
        for number in range(4):
            action, density = method.actor.sample_with_log_prob(
                data.next_obs[row : row + 1], noise[number, row : row + 1]
            )
            values = method.target(next_obs[row : row + 1], action)
            worth.append((float(values.min()), float(density)))
        best, density = max(worth)
        assert float(found[row]) == pytest.approx(best - 0.3 * density, abs=1e-4)


def test_cal_ql_asks_for_returns_and_bounds_all_but_uniform_actions(
    setup_of: SetupOf, batch_of: BatchOf
) -> None:
    method = CalQL(setup_of({"dataset"}), candidates=2, **TINY)
    assert method.batch_spec.mc_return
    data = batch_of(method)
    least = method.least_values(data, 6)
    assert least.shape == (6, 16) and (least[:2] == -math.inf).all()
    assert data.mc_return is not None
    assert all(torch.equal(row, data.mc_return) for row in least[2:])


# AWAC


def test_awacs_weights_are_those_of_the_moved_critics(
    setup_of: SetupOf, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    method = AWAC(setup_of({"dataset"}), advantage_scale=0.01, most_weight=2.0, **TINY)
    data = replace(batch_of(method), valid=torch.ones(16, 2, dtype=torch.bool))
    noise = torch.randn(16, 2, 2)
    monkeypatch.setattr(method.policy, "sample_noise", lambda rows: noise)
    with torch.no_grad():
        mean = method.policy.mean(data.obs)
    action = method.policy.normalizer.normalize_action(data.action)
    loss = float(method.update(data)["actor_loss"])
    obs, total, weights = method.policy.normalizer.obs(data.obs), 0.0, []
    for row in range(16):
        own = (mean[row] + noise[row]).clamp(-1, 1)  # the width is 1 at the start
        critic = [
            float(method.critic(obs[row : row + 1], one[None]).min()) for one in (action[row], own)
        ]
        weights.append(min(math.exp((critic[0] - critic[1]) / 0.01), 2.0))
        total -= weights[-1] * float(Normal(mean[row], 1.0).log_prob(action[row]).sum()) / 2
    assert min(weights) < 1.0 and max(weights) == 2.0
    assert loss == pytest.approx(total / 16, rel=1e-3)


# EDAC and SAC-N


def test_likeness_is_the_sum_over_pairs_of_slopes() -> None:
    """Each slope by autograd of one critic alone, at one action."""
    torch.manual_seed(0)
    critic = EnsembleCritic(3, 2, hidden=(16, 16), members=4)
    obs, action = torch.randn(5, 3), torch.rand(5, 2) * 2 - 1
    copies = action.repeat(4, 1, 1).requires_grad_()
    value = critic.of_rows(torch.cat([obs.expand(4, -1, -1), copies], 2))
    torch.testing.assert_close(value, critic(obs, action[:, None]))
    total = 0.0
    for row in range(5):
        slopes = []
        for member in range(4):
            one = action[row : row + 1].clone().requires_grad_()
            own = critic(obs[row : row + 1], one[:, None])[member, 0]
            (slope,) = torch.autograd.grad(own, one)
            slopes.append(slope[0] / (slope.norm() + 1e-10))  # some slopes are 0
        for first in range(4):
            for second in range(4):
                total += float(slopes[first] @ slopes[second]) if first != second else 0.0
    assert float(likeness(value, copies)) == pytest.approx(total / 5 / 3, abs=1e-5)


def test_diversity_turns_slopes_apart_and_sac_n_leaves_them(
    setup_of: SetupOf, batch_of: BatchOf
) -> None:
    found = {}
    for diversity in (0.0, 30.0):
        torch.manual_seed(0)
        method = EDAC(
            setup_of({"dataset"}), diversity=diversity, critics=4, learning_rate=3e-3, **TINY
        )
        for seed in range(60):
            metrics = method.update(batch_of(method, seed=seed))
        data = batch_of(method, seed=99)
        obs = method.actor.normalizer.obs(data.obs)
        copies = method.actor.normalizer.normalize_action(data.action).flatten(1).repeat(4, 1, 1)
        copies.requires_grad_()
        value = method.critic.of_rows(torch.cat([obs.expand(4, -1, -1), copies], 2))
        found[diversity] = float(likeness(value, copies).detach())
        assert (float(metrics["likeness"]) == 0.0) == (diversity == 0.0)
    assert found[30.0] < found[0.0] - 0.5, found


def test_edac_needs_two_critics(setup_of: SetupOf) -> None:
    with pytest.raises(TrimtabError, match=r"algorithm.critics=1: diversity is between two"):
        EDAC(setup_of({"dataset"}), critics=1)
    assert EDAC(setup_of({"dataset"}), critics=1, diversity=0.0).critic.members == 1
