"""HNPG: its critic's two losses, what it imagines at the data's states, what data is good for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.ring import Ring
from trimtab.algorithms.offline_to_online.hnpg import HNPG, SampledValue, Snapshot
from trimtab.algorithms.on_policy.ppo import Samples
from trimtab.types import Batch, PolicySpec, Rollout, Statistics

DataOf = Callable[..., Rollout]
BatchOf = Callable[..., Batch]
Make = Callable[..., HNPG]


@pytest.fixture
def make(setup_of: Callable[..., Setup]) -> Make:
    def made(**keywords: Any) -> HNPG:
        torch.manual_seed(1)
        settings = {"hidden": (16, 16), "rollout_steps": 7, "batch_size": 16, "memory": 40}
        return HNPG(setup_of({"dataset"}), **{**settings, **keywords})

    return made


def critic_of(method: HNPG) -> SampledValue:
    assert isinstance(method.critic, SampledValue)
    return method.critic


def test_a_ring_keeps_the_newest() -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "obs": (1,), "action": (1, 1), "reward": (), "next_obs": (1,), "discount": ()
    }  # fmt: skip
    memory = Ring(5, **shapes)
    written = [torch.arange(first, first + 3.0) for first in (0, 3, 6)]
    for rows in written:
        memory.keep(rows[:, None], -rows[:, None, None], rows, rows[:, None] + 1, 0 * rows)
    assert memory.size == 5
    assert sorted(memory.obs[:, 0].tolist()) == [4, 5, 6, 7, 8]
    torch.manual_seed(0)
    drawn = Snapshot(*memory.draw(200))
    assert {*drawn.reward.tolist()} == {4.0, 5.0, 6.0, 7.0, 8.0}
    assert torch.equal(drawn.action[:, 0, 0], -drawn.reward)
    assert torch.equal(drawn.next_obs[:, 0], drawn.reward + 1)
    again = Ring(5, **shapes)
    again.load_state_dict(memory.state_dict())
    assert (again.written, again.size) == (9, 5)


def test_data_is_kept_in_the_policys_units(make: Make, batch_of: BatchOf) -> None:
    method, data = make(), batch_of(make())
    found = method.keep(data)
    assert float(found["kept"]) == 16 and method.memory.size == 16
    torch.testing.assert_close(method.memory.obs[:16], data.obs / 1.001)
    action = (data.action - torch.tensor([0.0, 0.75])) / torch.tensor([1.0, 1.25])
    kept = method.memory.action[:16]
    torch.testing.assert_close(kept[data.valid], action[data.valid])
    assert torch.equal(method.memory.discount[:16], data.discount)


def test_v_is_the_mean_of_sampled_q() -> None:
    torch.manual_seed(0)
    draws = 3 * torch.randn(12, 2, 1)
    value = SampledValue(2, 2, (8,), lambda obs: draws, 4)
    obs = torch.randn(3, 2)
    for row in range(3):
        worths = [
            value.network(torch.cat([obs[row], draws[number * 3 + row, :, 0].clamp(-1, 1)])).item()
            for number in range(4)
        ]
        assert value(obs)[row, 0].item() == pytest.approx(sum(worths) / 4, abs=1e-5)
    assert value(obs.reshape(3, 1, 2)).shape == (3, 1, 1)


def still(method: HNPG) -> Callable[[Tensor], Tensor]:
    """Let the policy's samples follow from the observation, so that they can be drawn by hand."""

    def drawn(obs: Tensor) -> Tensor:
        return torch.sin(obs[:, :4]).reshape(-1, 2, 2).detach()

    method.drawn = drawn  # type: ignore[method-assign]
    critic_of(method).draw = drawn
    return drawn


@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_the_critics_losses_by_hand(
    make: Make, batch_of: BatchOf, data_of: DataOf, weight: float
) -> None:
    method = make(data_weight=weight, critic_updates=1, value_samples=1)
    drawn = still(method)
    method.keep(batch_of(method))
    data = data_of(method)
    critic = copy.deepcopy(critic_of(method))
    met = Snapshot(*method.memory.draw(21)) if weight else None
    found = method.fit(data, met)
    obs, next_obs = data.obs / 1.001, data.next_obs / 1.001

    def v(rows: Tensor) -> Tensor:
        return critic.worth(rows, drawn(rows))

    on_loss = torch.zeros(())
    for column in range(3):
        following = v(next_obs[-1])[column]
        for step in reversed(range(7)):
            if data.cut[step, column]:
                following = v(next_obs[step])[column]
            goal = data.reward[step, column] + data.discount[step, column] * following
            action = data.aux["unclipped"][step, column][None]
            error = critic.worth(obs[step, column][None], action)[0] - goal.detach()
            on_loss = on_loss + error**2 / 21
            following = goal
    assert float(found["value_loss"]) == pytest.approx(on_loss.item(), rel=1e-4)
    total = on_loss
    if met is not None:
        backup = (met.reward + met.discount * v(met.next_obs)).detach()
        data_loss = ((critic.worth(met.obs, met.action) - backup) ** 2).mean()
        assert float(found["data_loss"]) == pytest.approx(data_loss.item(), rel=1e-4)
        total = total + 0.6 * data_loss
    else:
        assert float(found["data_loss"]) == 0.0
    slopes = torch.autograd.grad(total, list(critic.parameters()))
    rows = zip(critic_of(method).parameters(), critic.parameters(), slopes, strict=True)
    for mine, old, slope in rows:  # Adam's first step
        known = old - 3e-4 * slope / (slope.abs() + 1e-8)
        torch.testing.assert_close(mine, known, atol=3e-6, rtol=1e-4)


def test_what_is_imagined_is_the_policys_own(make: Make) -> None:
    method = make(value_samples=3)
    obs = torch.randn(6, 5)
    torch.manual_seed(3)
    found = method.model_rollout(obs)
    torch.manual_seed(3)
    mean = method.actor.head(obs)
    action = mean + method.actor.log_std.exp() * torch.randn(6, 2, 2)
    torch.testing.assert_close(found.action, action)
    torch.testing.assert_close(found.log_prob, method.actor.log_prob(mean, action))
    noise = torch.randn(18, 2, 2)
    many = obs.repeat(3, 1)
    critic = critic_of(method)
    value = critic.worth(many, method.actor.head(many) + method.actor.log_std.exp() * noise)
    known = critic.worth(obs, action) - value.reshape(3, 6).mean(0)
    torch.testing.assert_close(found.advantage, known)


def test_the_policy_steps_over_rollout_and_data(
    make: Make, batch_of: BatchOf, data_of: DataOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Samples] = []
    usual = HNPG.improve_policy

    def recording(self: HNPG, samples: Samples) -> Any:
        seen.append(samples)
        return usual(self, samples)

    monkeypatch.setattr(HNPG, "improve_policy", recording)
    counts = []
    for weight, kept in ((1.0, True), (0.0, True), (1.0, False)):
        method = make(data_weight=weight, delta=0.02)
        if kept:
            method.keep(batch_of(method))
        found = method.update(data_of(method))
        assert 0 < float(found["kl"]) <= 0.02
        counts.append(len(seen[-1]))
        assert (float(found["data_loss"]) > 0) == (weight > 0 and kept)
    assert counts == [42, 21, 21]
    rows = {tuple(row) for row in seen[0].obs[21:].tolist()}
    assert rows <= {tuple(row) for row in (batch_of(method).obs / 1.001).tolist()}


@pytest.mark.parametrize("side", [-1, 1])
def test_data_shows_what_rollouts_rarely_see(side: int) -> None:
    """One state; far to one side an action earns 1, which the policy at first hardly ever does."""
    spec = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
    zero, one = torch.zeros(1), torch.ones(1)
    torch.manual_seed(0)
    method = HNPG(
        Setup(spec, statistics=Statistics(zero, one, -one, one, -one, one), num_envs=4),
        hidden=(16,), rollout_steps=8, batch_size=256, memory=256, initial_log_std=-1.5,
        delta=0.05, learning_rate=1e-2,
    )  # fmt: skip

    def earned(action: Tensor) -> Tensor:
        return (side * action[..., 0, 0] > 0.7).float()

    action = 2 * torch.rand(256, 1, 1) - 1
    obs, ended = torch.zeros(256, 1), torch.zeros(256)
    whole = torch.ones(256, 1, dtype=torch.bool)
    method.keep(Batch(obs, action, earned(action), obs, ended, whole))
    for _ in range(12):
        obs = torch.zeros(8, 4, 1)
        acted, aux = method.explore(obs.reshape(-1, 1), warmup=False)
        action, unclipped = (part.reshape(8, 4, 1, 1) for part in (acted, aux["unclipped"]))
        ends = torch.ones(8, 4, dtype=torch.bool)
        none = torch.zeros(8, 4)
        method.update(
            Rollout(obs, action, earned(action), obs, none, ends, {"unclipped": unclipped})
        )
    # Without data it drifts to one side, the same whichever earns.
    assert side * method.policy.act(torch.zeros(1, 1), deterministic=True).item() > 0.5
