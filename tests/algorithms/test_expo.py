"""EXPO: the choice, both draws of critics, the editor's density, the base that only imitates."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.editing.expo import EXPO
from trimtab.algorithms.phases import Budget
from trimtab.policies.kinds.edited import CHUNK
from trimtab.policies.kinds.edited_best_of import EditedBestOfPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, PolicySpec, Statistics, TrimtabError

# The run executes two of the three actions that the base plans.
RUN = PolicySpec(3, 2, 2, (-2.0, -1.0), (2.0, 1.0))
PLAN = PolicySpec(3, 3, 2, (-2.0, -1.0), (2.0, 1.0))
BETA = 0.4


def made(**keywords: Any) -> EXPO:
    torch.manual_seed(0)
    base = FlowPolicy(PLAN, hidden=(12, 12), sampling_steps=2)
    zero = torch.zeros(3)
    base.fit_normalizer(
        Statistics(zero, zero + 1, zero - 2, zero + 3, torch.tensor([-1.0, -0.8]), torch.ones(2))
    )
    settings = {
        "hidden": (16, 16), "learning_rate": 3e-3, "scale": BETA, "critics": 5, "actor_every": 1,
        "candidates": 3, "backup_candidates": 3,
    }  # fmt: skip
    return EXPO(Setup(RUN, base=base), **{**settings, **keywords})


def few(rows: int = 6) -> Batch:
    torch.manual_seed(5)
    low, high = torch.tensor(RUN.action_low), torch.tensor(RUN.action_high)
    return Batch(
        obs=torch.randn(rows, 3),
        action=low + (high - low) * torch.rand(rows, 2, 2),
        reward=torch.randn(rows),
        next_obs=torch.randn(rows, 3),
        discount=0.9 * (torch.rand(rows) < 0.7).float(),
        valid=torch.ones(rows, 2, dtype=torch.bool),
    )


def warmed(**keywords: Any) -> EXPO:
    """Take steps, so that critics and targets, base and average differ."""
    algorithm = made(**keywords)
    with torch.enable_grad():
        for _ in range(8):
            algorithm.update(few())
    return algorithm


def edited_by_hand(policy: EditedBestOfPolicy, obs: Tensor, plan: Tensor, noise: Tensor) -> Any:
    """One row's raw plan with its first two actions edited, and the edit's log-density."""
    normalizer = policy.normalizer
    first = normalizer.normalize_action(plan[:2])
    mean, log_std = policy.editor.distribution({"obs": obs[None], CHUNK: first.flatten()[None]})
    raw = mean[0] + log_std[0].exp() * noise
    density = torch.distributions.Normal(mean[0], log_std[0].exp()).log_prob(raw)
    density = (density - torch.log(1 - torch.tanh(raw).square())).sum()
    wanted = (first + BETA * torch.tanh(raw)) * normalizer.action_scale + normalizer.action_shift
    limit = torch.tensor(RUN.action_high)
    return torch.cat([wanted.clamp(-limit, limit), plan[2:]]), density


def worth(policy: EditedBestOfPolicy, obs: Tensor, plan: Tensor, members: list[int]) -> float:
    """The least of some target critics of one plan."""
    normalizer = policy.normalizer
    seen, action = normalizer.obs(obs[None]), normalizer.normalize_action(plan[None, :2])
    return min(float(policy.critic(seen, action)[member]) for member in members)


@torch.no_grad()
def test_the_best_of_all_proposals_is_played_by_the_critics_that_the_noise_draws() -> None:
    policy = warmed().policy
    rows, many = 40, 3
    obs, noise = torch.randn(rows, 3), torch.randn(rows, *policy.noise_shape)
    assert policy.noise_shape == (3 * 6 + 3 * 4 + 5,)
    played = policy(obs, noise)
    edited, judges = 0, set()
    for row in range(rows):
        base_noise, edit_noise, lots = noise[row].split([18, 12, 5])
        members = sorted(range(5), key=lambda i: -float(lots[i]))[:2]
        plans = []
        for i in range(many):
            plans.append(policy.base(obs[row][None], base_noise.view(3, 3, 2)[i][None])[0])
        for i in range(many):
            plan, _ = edited_by_hand(policy, obs[row], plans[i], edit_noise.view(3, 2, 2)[i])
            plans.append(plan)
        values = [worth(policy, obs[row], plan, members) for plan in plans]
        best = values.index(max(values))
        assert torch.allclose(played[row], plans[best], atol=1e-5)
        edited += best >= many
        judges.add(tuple(members))
    assert 0 < edited < rows and len(judges) > 3


@torch.no_grad()
def test_one_draw_of_critics_chooses_and_another_values(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = warmed()
    policy, obs = algorithm.policy, torch.randn(20, 3)
    base_noise, edit_noise = torch.randn(20, 3, 3, 2), torch.randn(20, 3, 2, 2)
    monkeypatch.setattr(algorithm.base, "sample_noise", lambda n: base_noise.flatten(0, 1))
    monkeypatch.setattr(policy.editor, "sample_noise", lambda n: edit_noise.flatten(0, 1))
    draws = iter([torch.tensor([0, 3]), torch.tensor([4, 1])])
    monkeypatch.setattr(algorithm, "members", lambda: next(draws))
    value = algorithm.next_value(obs)
    greedy = 0
    for row in range(20):
        plans = [algorithm.base(obs[row][None], base_noise[row, i][None])[0] for i in range(3)]
        plans += [
            edited_by_hand(policy, obs[row], plans[i], edit_noise[row, i])[0] for i in range(3)
        ]
        chosen = max(plans, key=lambda plan: worth(policy, obs[row], plan, [0, 3]))
        expected = worth(policy, obs[row], chosen, [4, 1])
        assert float(value[row]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        greedy += expected >= max(worth(policy, obs[row], plan, [4, 1]) for plan in plans) - 1e-6
    assert greedy < 20  # the highest value of the second draw is another number


def test_the_two_draws_are_independent() -> None:
    algorithm = made(critics=4)
    torch.manual_seed(0)
    pairs = [(algorithm.members(), algorithm.members()) for _ in range(3000)]
    same = sum(bool(set(a.tolist()) == set(b.tolist())) for a, b in pairs)
    assert all(len(set(a.tolist())) == 2 for a, _ in pairs)
    assert abs(same / 3000 - 1 / 6) < 0.03  # two of four: six sets


def test_losses_by_a_loop_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = warmed()
    data, old = Batch(**{**vars(few()), "whole": True}), copy.deepcopy(algorithm)
    monkeypatch.setattr(algorithm, "next_value", lambda obs: obs[:, 0])
    noise = torch.randn(6, 2, 2)
    monkeypatch.setattr(algorithm.policy.editor, "sample_noise", lambda n: noise)
    torch.manual_seed(9)
    metrics = algorithm.update(data)
    torch.manual_seed(9)
    normalizer, alpha = old.policy.normalizer, old.temperature().item()
    critic_loss, editor_loss, entropy = 0.0, 0.0, 0.0
    with torch.no_grad():
        for row in range(6):
            obs, next_obs = data.obs[row], data.next_obs[row]  # type: ignore[index]
            backup = data.reward[row] + data.discount[row] * next_obs[0]
            seen = normalizer.obs(obs[None])
            stored = normalizer.normalize_action(data.action[row])[None]
            critic_loss += float((old.critic(seen, stored) - backup).square().mean()) / 6
            plan, density = edited_by_hand(old.policy, obs, data.action[row], noise[row])
            density = density - 4 * math.log(BETA)  # of beta u, which has four numbers
            action = normalizer.normalize_action(plan)[None]
            editor_loss += float(alpha * density - algorithm.critic(seen, action).mean()) / 6
            entropy -= float(density) / 6
        imitation = old.base.bc_loss(as_plans(data, 3))
    assert metrics["critic_loss"] == pytest.approx(critic_loss, rel=1e-4)
    assert metrics["editor_loss"] == pytest.approx(editor_loss, rel=1e-4, abs=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-4)
    assert metrics["bc_loss"] == pytest.approx(float(imitation), rel=1e-5)


def test_density_of_an_edit_is_that_of_what_is_added() -> None:
    """By counting how much of many edits falls into a small box around one of them."""
    spec = PolicySpec(1, 1, 1, (-9.0,), (9.0,))
    torch.manual_seed(0)
    base = FlowPolicy(spec, hidden=(8,), sampling_steps=1)
    algorithm = EXPO(Setup(spec, base=base), hidden=(8,), scale=0.05)
    obs, action = torch.zeros(200_000, 1), torch.zeros(200_000, 1, 1)
    with torch.no_grad():
        moved, log_prob = algorithm.edited(obs, action)
    added = moved[:, 0, 0]
    assert added.abs().max() <= 0.05
    width = 0.002
    for place in (-0.03, 0.0, 0.02):
        near = (added - place).abs() < width / 2
        counted = float(near.float().mean()) / width
        assert float(log_prob[near].mean().exp()) == pytest.approx(counted, rel=0.05)
    assert counted > 5  # a density of u itself is below 1


@pytest.mark.parametrize("shift", [True, False])
def test_temperature_settles_only_where_its_target_can_be_reached(shift: bool) -> None:
    algorithm = made(scale=0.05, shift_target_entropy=shift)
    expected = -2.0 + (4 * math.log(0.05) if shift else 0.0)
    assert algorithm.target_entropy == pytest.approx(expected)
    assert (4 * math.log(2 * 0.05) > algorithm.target_entropy) is shift  # the most there can be


def test_a_plan_beyond_what_was_executed_is_not_imitated() -> None:
    algorithm, data = made(), few()
    valid = data.valid.clone()
    valid[1, 1] = False
    data = Batch(**{**vars(data), "valid": valid})
    longer = as_plans(data, 3)
    assert torch.equal(longer.action[:, 2], data.action[:, 1]) and not longer.valid[:, 2].any()
    assert torch.equal(longer.action[:, :2], data.action)
    assert torch.equal(longer.valid[:, :2], valid) and not longer.whole
    assert as_plans(data, 2) is data
    torch.manual_seed(2)
    loss = algorithm.base.bc_loss(longer)
    torch.manual_seed(2)
    clean = algorithm.policy.normalizer.normalize_action(longer.action)
    epsilon, time = torch.randn(6, 3, 2), torch.rand(6)
    assert isinstance(algorithm.base, FlowPolicy)
    network, total, counted = algorithm.base.network, 0.0, 0
    with torch.no_grad():
        for row in range(6):
            noisy = (1 - time[row]) * epsilon[row] + time[row] * clean[row]
            seen = network.condition(algorithm.base.normalizer.obs(data.obs[row : row + 1]))  # type: ignore[index]
            field = network(noisy[None], time[row : row + 1], seen)[0]
            for step in range(2):
                if valid[row, step]:
                    wanted = clean[row, step] - epsilon[row, step]
                    total += float((field[step] - wanted).square().mean())
                    counted += 1
    assert counted == 11 and loss.item() == pytest.approx(total / counted, rel=1e-4)


def test_cut_chunks_go_on_as_an_edited_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, data = warmed(), few()
    valid = data.valid.clone()
    valid[4, 1] = False
    data = Batch(**{**vars(data), "valid": valid})
    base_noise, edit_noise = torch.randn(6, 3, 2), torch.randn(6, 2, 2)
    monkeypatch.setattr(algorithm.base, "sample_noise", lambda n: base_noise)
    monkeypatch.setattr(algorithm.policy.editor, "sample_noise", lambda n: edit_noise)
    with torch.no_grad():
        taken = algorithm.executed(data)
        expected = algorithm.policy.normalizer.normalize_action(data.action)
        plan = algorithm.base(data.obs, base_noise)[4]
        edited, _ = edited_by_hand(algorithm.policy, data.obs[4], plan, edit_noise[4])  # type: ignore[index]
        expected[4, 1] = algorithm.policy.normalizer.normalize_action(edited)[1]
    assert torch.allclose(taken, expected, atol=1e-5)


def test_who_learns_from_what() -> None:
    algorithm = made(actor_every=3)
    parts = {
        "base": algorithm.base, "acts": algorithm.policy.base, "editor": algorithm.policy.editor,
        "critic": algorithm.critic, "target": algorithm.policy.critic,
    }  # fmt: skip

    def moved(step: Any) -> set[str]:
        before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        step()
        after = {name: part.state_dict() for name, part in parts.items()}
        return {
            name
            for name in parts
            if any(not torch.equal(before[name][key], after[name][key]) for key in before[name])
        }

    assert moved(lambda: algorithm.imitate(few())) == {"base", "acts"}
    assert moved(lambda: algorithm.update(few())) == {"critic", "target"}
    assert moved(lambda: algorithm.update(few())) == {"critic", "target"}
    assert moved(lambda: algorithm.update(few())) == set(parts)
    phases = algorithm.phases(Budget(offline_steps=5, online_steps=9))
    assert [(phase.length, phase.update) for phase in phases] == [
        (5, algorithm.imitate), (9, algorithm.update),
    ]  # fmt: skip


def test_learns_to_choose_and_to_edit() -> None:
    algorithm = made(initial_temperature=0.05, candidates=4, base_learning_rate=0.0)
    torch.manual_seed(1)

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return action[:, 0, 0] * obs[:, 0].sign()

    for step in range(200):
        obs = torch.randn(128, 3)
        action, _ = algorithm.explore(obs, warmup=step < 100)
        algorithm.update(
            Batch(
                obs=obs,
                action=action,
                reward=reward(obs, action),
                next_obs=obs,
                discount=torch.zeros(128),
                valid=torch.ones(128, 2, dtype=torch.bool),
                whole=True,
            )
        )
    obs = torch.randn(1000, 3)
    of_base = float(reward(obs, algorithm.policy.base.act(obs)).mean())
    ours = float(reward(obs, algorithm.policy.act(obs)).mean())
    noise = torch.randn(1000, 3, 2)
    plan = algorithm.policy.base(obs, noise).detach()[:, :2]
    action = algorithm.policy.normalizer.normalize_action(plan)
    with torch.no_grad():
        edited, _ = algorithm.edited(obs, action)
        gain = (edited - action)[:, 0, 0] * obs[:, 0].sign()
    assert ours > of_base + 0.8  # of which its edits alone, of at most 0.4, are a third
    assert float(gain.mean()) > 0.15 and float((gain > 0).float().mean()) > 0.85


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in ({"candidates": 0}, {"critics": 2, "target_critics": 3}, {"scale": 0.0}):
        with pytest.raises(TrimtabError):
            made(**wrong)
    policy = made().policy
    for wrong in ({"candidates": 0}, {"critics": 2, "target_critics": 3}):
        with pytest.raises(TrimtabError, match="|".join(wrong)):
            EditedBestOfPolicy(policy.base, policy.editor, **wrong)
