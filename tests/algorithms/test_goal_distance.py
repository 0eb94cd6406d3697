"""Goal-distance gradient: its targets by row, no rewards, TD3 on steps, and distances it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.goal_distance import GoalDistance
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.types import Batch, PolicySpec

SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16}
SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]


def made(kind: type[TD3], setup_of: SetupOf, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(setup_of(set()), **SMALL, **settings)


def test_without_the_bound_it_is_td3_on_steps_to_the_last_bit(
    setup_of: SetupOf, batch_of: BatchOf
) -> None:
    ours, theirs = made(GoalDistance, setup_of, bound_by_episode=False), made(TD3, setup_of)
    for method in (ours, theirs):  # distances are above 0, where a target is not cut
        with torch.no_grad():
            for critic in (method.critic, method.critic_target):
                critic.network[-1].bias.fill_(-20.0)
    for seed in range(4):
        data = batch_of(ours, seed=seed)
        assert data.goal_steps is not None
        goes_on = torch.where(data.goal_steps > 0, data.goal_steps > 1, data.discount > 0).float()
        steps = replace(data, reward=torch.full_like(data.reward, -1.0), discount=goes_on)
        for method, given in ((ours, data), (theirs, steps)):
            torch.manual_seed(seed)
            method.update(given)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def test_targets_and_losses_are_those_of_a_loop_by_row(
    setup_of: SetupOf, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = made(GoalDistance, setup_of, target_noise=0.0, actor_every=1)
    with torch.no_grad():  # about 4 steps: some bounds hold, others do not
        method.critic_target.network[-1].bias.fill_(-4.0)
    data = batch_of(method)
    assert data.goal_steps is not None
    normalizer = method.policy.normalizer
    action = normalizer.normalize_action(method.continue_chunks(data))
    squares, bound = 0.0, set()
    with torch.no_grad():
        for row, steps in enumerate(data.goal_steps.tolist()):
            one = data.next_obs[row : row + 1]
            far = -method.critic_target(one, method.policy_target.squashed(one)).flatten()
            target = 1.0
            if steps > 1 or (steps == 0 and float(data.discount[row]) > 0):
                target = 1.0 + max(float(far.max()), 0.0)
            if steps > 0:
                bound.add(steps < target)
                target = min(target, float(steps))
            values = method.critic(data.obs[row : row + 1], action[row : row + 1]).flatten()
            squares += sum((-float(value) - target) ** 2 for value in values)
        own = method.policy.squashed(data.obs)
        descended = -float(method.critic(data.obs, own, slice(1)).mean())
    assert bound == {True, False} and 0 in data.goal_steps.tolist()
    seen: list[torch.Tensor] = []
    policy_loss = GoalDistance.policy_loss

    def watched(self: GoalDistance, *given: Any) -> torch.Tensor:
        seen.append(policy_loss(self, *given))
        return seen[-1]

    monkeypatch.setattr(GoalDistance, "policy_loss", watched)
    monkeypatch.setattr(method.critic_optimizer, "step", lambda loss: None)  # before it moves
    metrics = method.update(data)
    assert float(metrics["distance_loss"]) == pytest.approx(squares / len(data), rel=1e-4)
    assert float(metrics["policy_distance"]) == pytest.approx(descended, rel=1e-4)
    assert seen[0].item() == pytest.approx(descended, rel=1e-4)


def test_rewards_are_not_read_nor_ends_where_a_goal_was_reached(
    setup_of: SetupOf, batch_of: BatchOf
) -> None:
    with_rewards, without = (made(GoalDistance, setup_of) for _ in range(2))
    for seed in range(3):
        data = batch_of(without, seed=seed)
        assert data.goal_steps is not None
        nothing = torch.full_like(data.reward, torch.nan)
        ends = torch.where(data.goal_steps > 0, nothing, data.discount)
        for method, given in (
            (with_rewards, data),
            (without, replace(data, reward=nothing, discount=ends)),
        ):
            torch.manual_seed(seed)
            method.update(given)
    torch.testing.assert_close(with_rewards.state_dict(), without.state_dict(), rtol=0, atol=0)


def test_no_distance_is_longer_than_the_longest(setup_of: SetupOf, batch_of: BatchOf) -> None:
    method = made(GoalDistance, setup_of, longest=7.0)
    with torch.no_grad():
        method.critic_target.network[-1].bias.fill_(-500.0)
    data = batch_of(method)
    assert data.goal_steps is not None
    known = torch.where(data.goal_steps > 0, data.goal_steps - 1, 7).clamp_max(7).float()
    assert torch.equal(-method.next_value(data), known)


STEP = 0.1


def episodes(method: GoalDistance, count: int, *, warmup: bool) -> dict[str, torch.Tensor]:
    """Return transitions in the plane; most goals are such that the episode reached them later.

    An action moves a point by up to 0.1 in each direction; observations are place and goal.
    """
    place, goal = 2 * torch.rand(count, 2) - 1, 2 * torch.rand(count, 2) - 1
    places, actions = [place], []
    for _ in range(20):
        action, _ = method.explore(torch.cat([place, goal], 1), warmup=warmup)
        place = (place + STEP * action[:, 0]).clamp(-1, 1)
        places.append(place)
        actions.append(action)
    rows = []
    for step, action in enumerate(actions):
        later = torch.randint(step + 1, 21, (count,))
        reached = torch.stack(places)[later, torch.arange(count)]
        own = torch.rand(count) < 0.2
        goals = torch.where(own[:, None], goal, reached)
        steps = torch.where(own, 0, later - step)
        seen = (torch.cat([place, goals], 1) for place in places[step : step + 2])
        rows.append((*seen, action, steps))
    before, after, taken, steps = (torch.cat(part) for part in zip(*rows, strict=True))
    return {
        "obs": before, "next_obs": after, "action": taken, "goal_steps": steps,
        "reward": torch.full((len(before),), torch.nan), "discount": torch.ones(len(before)),
        "valid": torch.ones(len(before), 1, dtype=torch.bool),
    }  # fmt: skip


def test_it_learns_the_number_of_transitions_and_reaches_goals() -> None:
    torch.manual_seed(1)
    spec = PolicySpec(4, 1, 2, (-1.0, -1.0), (1.0, 1.0))
    settings: dict[str, Any] = {"learning_rate": 1e-3, "tau": 0.02, "longest": 25.0}
    method = GoalDistance(Setup(spec=spec), hidden=(64, 64), exploration_noise=0.3, **settings)
    gathered = [episodes(method, 50, warmup=True)]
    for _ in range(8):
        together = {name: torch.cat([one[name] for one in gathered]) for name in gathered[0]}
        for _ in range(150):
            rows = torch.randint(len(together["obs"]), (256,))
            method.update(Batch(**{name: part[rows] for name, part in together.items()}))
        gathered.append(episodes(method, 20, warmup=False))
    place, goal = 1.6 * torch.rand(200, 2) - 0.8, 1.6 * torch.rand(200, 2) - 0.8
    obs = torch.cat([place, goal], 1)
    least = ((goal - place).abs().amax(1) / STEP).ceil()  # either direction takes its own steps
    with torch.no_grad():
        told = -method.critic(obs, method.policy.squashed(obs))[0]
    assert torch.corrcoef(torch.stack([told, least]))[0, 1] > 0.9
    for _ in range(20):
        obs = torch.cat([place, goal], 1)
        action = method.policy(obs, torch.zeros(200, *method.policy.noise_shape))
        place = (place + STEP * action[:, 0]).clamp(-1, 1).detach()
    away = (goal - place).abs().amax(1)
    assert (away < 2 * STEP).float().mean() > 0.9
