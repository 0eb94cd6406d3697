"""PA-RL: slopes against autograd, both steps of the optimisation by brute force, the losses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.editing.pa_rl import PARL
from trimtab.algorithms.phases import Budget
from trimtab.policies.kinds.edited_ascent import EditedAscentPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.action_gradient import obs_share, value_and_gradient
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.types import Batch, PolicySpec, Statistics, TrimtabError

# The run executes two of the three actions that the policy plans.
RUN = PolicySpec(3, 2, 2, (-2.0, -1.0), (2.0, 1.0))
PLAN = PolicySpec(3, 3, 2, (-2.0, -1.0), (2.0, 1.0))


def flow() -> FlowPolicy:
    base = FlowPolicy(PLAN, hidden=(12, 12), sampling_steps=2)
    zero = torch.zeros(3)
    base.fit_normalizer(
        Statistics(zero, zero + 1, zero - 2, zero + 3, torch.tensor([-1.0, -0.8]), torch.ones(2))
    )
    return base


def policy_of(**keywords: Any) -> EditedAscentPolicy:
    torch.manual_seed(0)
    settings = {
        "act_steps": 2, "candidates": 6, "kept": 3, "ascent_steps": 4, "step_size": 0.5,
        "hidden": (16, 16), "critics": 4,
    }  # fmt: skip
    policy = EditedAscentPolicy(flow(), **{**settings, **keywords})
    with torch.no_grad():  # steeper, and with scales and shifts that are not those of the start
        for weight in policy.critic.parameters():
            weight.mul_(1.5).add_(0.1 * torch.randn_like(weight))
    return policy


def made(**keywords: Any) -> PARL:
    torch.manual_seed(0)
    settings = {
        "hidden": (16, 16), "learning_rate": 3e-3, "critics": 5, "candidates": 6, "kept": 3,
        "backup_candidates": 4, "ascent_steps": 2, "step_size": 0.1, "base_every": 1,
        "proposal_tau": 1.0,
    }  # fmt: skip
    return PARL(Setup(RUN, base=flow()), **{**settings, **keywords})


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
        whole=True,
    )


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("hidden", [(7,), (16, 9), (8, 8, 8)])
def test_slopes_are_those_of_autograd(layer_norm: bool, hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    critic = EnsembleCritic(5, 4, hidden=hidden, members=3, layer_norm=layer_norm).double()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    obs = torch.randn(20, 5, dtype=torch.float64)
    action = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    value = critic(obs, action).mean(0)
    (slope,) = torch.autograd.grad(value.sum(), action)
    with torch.no_grad():
        ours, gradient = value_and_gradient(critic, obs_share(critic, obs), action)
    torch.testing.assert_close(ours, value.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-11)
    assert float(slope.abs().max()) > 1e-2


def mean_value(policy: EditedAscentPolicy, obs: Tensor, action: Tensor) -> Tensor:
    """Q of one normalised action of two steps, the mean of all critics."""
    value: Tensor = policy.critic(policy.normalizer.obs(obs[None]), action[None]).mean()
    return value


def optimized_by_hand(policy: EditedAscentPolicy, obs: Tensor, noise: Tensor) -> Any:
    """One row's plans by a sort and by autograd, best first before the ascent."""
    normalizer, rated = policy.normalizer, []
    for one in noise:
        plan = policy.base(obs[None], one[None])[0].detach()
        first = normalizer.normalize_action(plan[:2])
        rated.append((mean_value(policy, obs, first).item(), plan))
    rated.sort(key=lambda pair: -pair[0])
    found = []
    limit = torch.tensor(RUN.action_high)
    for value, plan in rated[: policy.kept]:
        best, best_action = value, normalizer.normalize_action(plan[:2])
        action, moved = best_action, []
        for _ in range(policy.ascent_steps):
            action = action.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(mean_value(policy, obs, action), action)
            raw = (action.detach() + policy.step_size * slope) * normalizer.action_scale
            raw = (raw + normalizer.action_shift).clamp(-limit, limit)
            action = (raw - normalizer.action_shift) / normalizer.action_scale
            value = mean_value(policy, obs, action).item()
            moved.append(value > best)
            if value > best:
                best, best_action = value, action
        raw = best_action * normalizer.action_scale + normalizer.action_shift
        found.append((torch.cat([raw, plan[2:]]), best, moved))
    return found


@pytest.mark.parametrize("step_size", [0.5, 8.0])
def test_the_best_proposals_climb_and_the_best_is_played(step_size: float) -> None:
    policy = policy_of(step_size=step_size)
    obs, noise = torch.randn(25, 3), torch.randn(25, *policy.noise_shape)
    with torch.no_grad():
        plans, values = policy.optimized(obs, noise)
        played = policy(obs, noise)
    assert plans.shape == (25, 3, 3, 2)
    fell = rose = 0
    for row in range(25):
        expected = optimized_by_hand(policy, obs[row], noise[row])
        for place, (plan, value, moved) in enumerate(expected):
            assert torch.allclose(plans[row, place], plan, atol=1e-4)
            assert values[row, place].item() == pytest.approx(value, abs=1e-4)
            fell += not all(moved)
            rose += any(moved)
        assert torch.allclose(played[row], max(expected, key=lambda one: one[1])[0], atol=1e-4)
    assert rose > 40
    assert (fell > 20) is (step_size > 1)  # steps that are too long are not kept


def test_no_ascent_is_the_best_of_the_proposals() -> None:
    policy = policy_of(ascent_steps=0)
    obs, noise = torch.randn(9, 3), torch.randn(9, *policy.noise_shape)
    with torch.no_grad():
        played = policy(obs, noise)
        for row in range(9):
            plans = policy.base(obs[row].expand(6, -1), noise[row])
            scaled = policy.normalizer.normalize_action(plans[:, :2])
            values = [float(mean_value(policy, obs[row], one)) for one in scaled]
            assert torch.allclose(played[row], plans[values.index(max(values))], atol=1e-6)


@pytest.mark.parametrize("proposal_tau", [1.0, 0.3])
def test_losses_by_a_loop_over_rows(proposal_tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(proposal_tau=proposal_tau)
    data = few()
    for _ in range(5):
        algorithm.update(data)
    old = copy.deepcopy(algorithm)
    noises = iter(noise := torch.randn(2, 6, 4, 3, 2))
    monkeypatch.setattr(algorithm, "noise", lambda rows: next(noises))
    monkeypatch.setattr(algorithm.target, "drawn", lambda _: torch.tensor([3, 1]))
    monkeypatch.setattr(algorithm, "draw", lambda values: torch.full((6,), 1))
    seeds = torch.get_rng_state()
    metrics = algorithm.update(data)
    normalizer, critic_loss = old.policy.normalizer, 0.0
    for row in range(6):
        obs, next_obs = data.obs[row], data.next_obs[row]  # type: ignore[index]
        found = optimized_by_hand(old.policy, next_obs, noise[0, row])
        best = normalizer.normalize_action(max(found, key=lambda one: one[1])[0][:2])
        with torch.no_grad():
            targets = old.target(normalizer.obs(next_obs[None]), best[None])[:, 0]
            backup = data.reward[row] + data.discount[row] * min(targets[3], targets[1])
            stored = normalizer.normalize_action(data.action[row])
            error = old.policy.critic(normalizer.obs(obs[None]), stored[None])[:, 0] - backup
        critic_loss += float(error.square().mean()) / 6
    assert metrics["critic_loss"] == pytest.approx(critic_loss, rel=1e-3)
    # The policy imitates what the critics, after their step, made of its own actions, or of those
    # of its copy that follows.
    moved = copy.deepcopy(algorithm.policy)
    moved.base = old.proposer
    same = [
        torch.equal(*pair)
        for pair in zip(old.proposer.parameters(), old.policy.base.parameters(), strict=True)
    ]
    assert all(same) is (proposal_tau == 1)
    found = [optimized_by_hand(moved, data.obs[row], noise[1, row]) for row in range(6)]  # type: ignore[index]
    chosen = torch.stack([one[1][0] for one in found])
    spread = sum(one[1][1] - min(value for _, value, _ in one) for one in found) / 6
    imitated = Batch(
        data.obs, chosen, data.reward, data.next_obs, data.discount,
        torch.ones(6, 3, dtype=torch.bool),
    )  # fmt: skip
    torch.set_rng_state(seeds)
    assert metrics["bc_loss"] == pytest.approx(old.policy.base.bc_loss(imitated).item(), rel=1e-4)
    assert metrics["q_spread"] == pytest.approx(spread, abs=1e-4)
    three = (old.proposer, algorithm.policy.base, algorithm.proposer)
    for behind, ahead, now in zip(*(one.parameters() for one in three), strict=True):
        torch.testing.assert_close(now, torch.lerp(behind, ahead.detach(), proposal_tau))


def test_draws_follow_the_softmax() -> None:
    algorithm = made(temperature=0.5)
    values = torch.tensor([0.3, -0.2, 0.9])
    drawn = algorithm.draw(values.expand(60_000, 3))
    counted = torch.bincount(drawn, minlength=3) / 60_000
    torch.testing.assert_close(counted, (values / 0.5).softmax(0), atol=0.01, rtol=0)


def test_the_policy_itself_acts_during_warm_up() -> None:
    algorithm, obs = made(), torch.randn(9, 3)
    torch.manual_seed(3)
    played, _ = algorithm.explore(obs, warmup=True)
    torch.manual_seed(3)
    assert torch.equal(played, algorithm.policy.base.act(obs)[:, :2])
    torch.manual_seed(3)
    later, _ = algorithm.explore(obs, warmup=False)
    assert later.shape == played.shape and not torch.equal(later, played)


def test_who_learns_from_what() -> None:
    algorithm = made(base_every=2)
    parts = {
        "base": algorithm.policy.base, "critic": algorithm.policy.critic,
        "target": algorithm.target, "proposer": algorithm.proposer,
    }  # fmt: skip

    def moved(step: Any) -> set[str]:
        before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        step()
        return {
            name
            for name, part in parts.items()
            if any(not torch.equal(before[name][key], v) for key, v in part.state_dict().items())
        }

    assert moved(lambda: algorithm.update_critic(few())) == {"critic", "target"}
    assert moved(lambda: algorithm.update(few())) == {
        "base", "critic", "proposer", "target",
    }  # fmt: skip
    assert moved(lambda: algorithm.update(few())) == {"critic", "target"}
    assert moved(lambda: algorithm.clone(few())) == {"base", "proposer"}
    budget = Budget(offline_steps=8, online_steps=9)
    assert [(p.name, p.length) for p in algorithm.phases(budget)] == [("critic", 8), ("online", 9)]
    algorithm.starts_cloned = False
    assert [(p.name, p.length) for p in algorithm.phases(budget)] == [
        ("clone", 4), ("critic", 4), ("online", 9),
    ]  # fmt: skip


@pytest.mark.parametrize("proposal_tau", [1.0, 0.05])
def test_its_own_actions_become_better(proposal_tau: float) -> None:
    """The policy itself, without its critics, moves to what is rewarded."""
    algorithm = made(
        base_learning_rate=1e-2, temperature=0.05, critics=2, step_size=0.05, ascent_steps=1,
        proposal_tau=proposal_tau,
    )  # fmt: skip
    torch.manual_seed(1)

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return action[:, 0, 0] * obs[:, 0].sign()

    obs = torch.randn(1000, 3)
    before = float(reward(obs, algorithm.policy.base.act(obs)).mean())
    for step in range(120):
        seen = torch.randn(128, 3)
        action, _ = algorithm.explore(seen, warmup=step < 30)
        algorithm.update(
            Batch(
                obs=seen,
                action=action,
                reward=reward(seen, action),
                next_obs=seen,
                discount=torch.zeros(128),
                valid=torch.ones(128, 2, dtype=torch.bool),
                whole=True,
            )
        )
    own = float(reward(obs, algorithm.policy.base.act(obs)).mean())
    chosen = float(reward(obs, algorithm.policy.act(obs)).mean())
    assert abs(before) < 0.3
    assert own > before + 0.4 and chosen > own + 0.1


def anything(action: Tensor) -> Batch:
    """Decisions ``[128]`` of an action in random states, all worth the same."""
    obs, nothing = torch.randn(128, 3), torch.zeros(128)
    valid = torch.ones(128, 2, dtype=torch.bool)
    return Batch(obs, action.expand(128, 2, 2), nothing, obs, nothing, valid, whole=True)


def clone_of_two_ways() -> FlowPolicy:
    """A flow that was taught to go either way, and stopped early."""
    torch.manual_seed(1)
    base, zero = FlowPolicy(RUN, hidden=(32, 32), sampling_steps=5), torch.zeros(3)
    base.fit_normalizer(
        Statistics(zero, zero + 1, zero - 2, zero + 3, -torch.ones(2), torch.ones(2))
    )
    optimizer = torch.optim.Adam(base.parameters(), 3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        base.bc_loss(anything(1.6 * torch.randint(2, (128, 1, 1)) - 0.8)).backward()
        optimizer.step()
    return base


@pytest.mark.parametrize(("proposal_tau", "least", "most"), [(1.0, 0.3, 9.0), (0.005, 0.0, 0.15)])
def test_an_early_clone_stays_itself_if_a_slow_copy_proposes(
    proposal_tau: float, least: float, most: float
) -> None:
    """Where every action is worth the same, there is nothing to learn, and nothing should move."""
    clone = clone_of_two_ways()
    algorithm = PARL(
        Setup(RUN, base=copy.deepcopy(clone)), hidden=(16,), critics=2, candidates=4, kept=4,
        ascent_steps=0, temperature=1e6, base_learning_rate=1e-3, proposal_tau=proposal_tau,
    )  # fmt: skip
    for _ in range(200):
        algorithm.distill(anything(torch.zeros(2)))
    obs, noise = torch.randn(500, 3), clone.sample_noise(500)
    with torch.no_grad():
        moved = float((algorithm.policy.base(obs, noise) - clone(obs, noise)).abs().mean())
    assert least < moved < most


def test_cut_chunks_go_on_as_a_new_plan() -> None:
    algorithm = made()
    data = few()
    valid = data.valid.clone()
    valid[2, 1] = False
    data = Batch(**{**vars(data), "valid": valid, "whole": False})
    torch.manual_seed(3)
    taken = algorithm.executed(data)
    torch.manual_seed(3)
    plan = algorithm.policy.base.act(data.obs)
    expected = data.action.clone()
    expected[2, 1] = plan[2, 1]
    assert torch.equal(taken, algorithm.policy.normalizer.normalize_action(expected))


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in (
        {"kept": 7},
        {"target_critics": 6},
        {"temperature": 0.0},
        {"ascent_steps": -1},
        {"proposal_tau": 1.5},
    ):
        with pytest.raises(TrimtabError):
            made(**wrong)
    for wrong in ({"kept": 7}, {"act_steps": 4}, {"critics": 0}, {"step_size": -1.0}):
        with pytest.raises(TrimtabError, match=next(iter(wrong))):
            policy_of(**wrong)
