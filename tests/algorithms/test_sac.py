"""Soft actor-critic against its formulas and plain torch, and that it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.policies.networks.critic import EnsembleCritic, EnsembleLinear
from trimtab.types import Batch, PolicySpec

SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))


def by_hand(algorithm: SAC, batch: Batch, next_noise: Tensor, *, entropy: bool) -> float:
    """The critic's loss from the formulas at the top of ``sac.py``, one row at a time.

    A chunk that was cut short goes on as the actor would, here with the same noise.
    """
    total = 0.0
    normalizer = algorithm.actor.normalizer
    with torch.no_grad():
        for row in range(len(batch)):
            obs, next_obs = batch.obs[row : row + 1], batch.next_obs[row : row + 1]
            action, log_prob = algorithm.actor.sample_with_log_prob(
                next_obs, next_noise[row : row + 1]
            )
            value = algorithm.target(next_obs, action).min()
            if entropy:
                value = value - algorithm.temperature() * log_prob[0]
            backup = batch.reward[row] + batch.discount[row] * value
            planned = algorithm.actor(obs, next_noise[row : row + 1])
            executed = batch.valid[row : row + 1, :, None]
            stored = torch.where(executed, batch.action[row : row + 1], planned)
            stored = normalizer.normalize_action(stored)
            total += 0.5 * float((algorithm.critic(obs, stored) - backup).square().sum())
    return total / len(batch)


@pytest.mark.parametrize("entropy", [True, False])
def test_critic_loss_by_hand(
    batch_of: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch, entropy: bool
) -> None:
    torch.manual_seed(0)
    algorithm = SAC(Setup(SPEC), hidden=(16,), initial_temperature=0.5, backup_entropy=entropy)
    algorithm.update(batch_of(algorithm, seed=1))  # so that targets and critics differ
    batch = batch_of(algorithm)
    noise = torch.randn(len(batch), 2, 2)
    monkeypatch.setattr(algorithm.actor, "sample_noise", lambda n: noise)
    expected = by_hand(algorithm, batch, noise, entropy=entropy)
    assert algorithm.update(batch)["critic_loss"] == pytest.approx(expected, rel=1e-4)


def test_ensemble_is_separate_perceptrons() -> None:
    torch.manual_seed(0)
    critic = EnsembleCritic(3, 4, hidden=(8, 6), members=3, layer_norm=True)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(
                0.1 * torch.randn_like(parameter)
            )  # so that the layer norms are not trivial
    obs, action = torch.randn(10, 3), torch.randn(10, 2, 2)
    values = critic(obs, action)
    assert values.shape == (3, 10)
    for member in range(3):
        alone: list[nn.Module] = []
        for layer in critic.network:
            if isinstance(layer, nn.ReLU):
                alone.append(nn.ReLU())
                continue
            weight, bias = (stacked[member] for stacked in layer.parameters())
            linear = isinstance(layer, EnsembleLinear)
            single = nn.Linear(*weight.shape) if linear else nn.LayerNorm(weight.shape[-1])
            single.load_state_dict({"weight": weight.T if linear else weight[0], "bias": bias[0]})
            alone.append(single)
        expected = nn.Sequential(*alone)(torch.cat([obs, action.flatten(1)], dim=1))[:, 0]
        torch.testing.assert_close(values[member], expected, atol=1e-5, rtol=1e-5)


def test_ensemble_starts_as_linear_layers_do() -> None:
    torch.manual_seed(0)
    ours, theirs = EnsembleLinear(4, 64, 256), nn.Linear(64, 256)
    for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        assert mine.abs().max() <= 1 / 8
        assert mine.std().item() == pytest.approx(other.std().item(), rel=0.1)
    assert not torch.equal(ours.weight[0], ours.weight[1])


def test_polyak_moves_by_its_rate() -> None:
    torch.manual_seed(0)
    target, online = nn.Linear(3, 2), nn.Linear(3, 2)
    start = copy.deepcopy(target)
    for step in range(1, 5):
        polyak(target, online, 0.2)
        for now, first, end in zip(
            target.parameters(), start.parameters(), online.parameters(), strict=True
        ):
            torch.testing.assert_close(now, end + (first - end) * 0.8**step)
    polyak(target, online, 1.0)
    assert torch.equal(target.weight, online.weight)


def test_polyak_copies_batch_statistics() -> None:
    target, online = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    online(torch.randn(8, 3) * 4 + 1)
    polyak(target, online, 0.1)
    assert torch.equal(target.running_mean, online.running_mean)  # type: ignore[arg-type]
    assert int(target.num_batches_tracked) == 1  # type: ignore[arg-type]


class Tied(nn.Module):
    """A part that is there twice, a weight that two layers have, and layers without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.parts = nn.ModuleList([nn.BatchNorm1d(2)] * 2)


def test_polyak_moves_what_is_shared_once() -> None:
    torch.manual_seed(0)
    target, online = Tied(), Tied()
    first = target.first.weight.detach().clone()
    nn.init.constant_(online.parts[0].weight, 3.0)
    polyak(target, online, 0.25)
    torch.testing.assert_close(target.first.weight, 0.75 * first + 0.25 * online.first.weight)
    torch.testing.assert_close(target.parts[1].weight, torch.full((2,), 1.5))


def test_target_follows_the_critic_and_takes_no_gradients(batch_of: Callable[..., Batch]) -> None:
    torch.manual_seed(0)
    algorithm = SAC(Setup(SPEC), hidden=(16,), tau=0.3)
    before = copy.deepcopy(algorithm.target)
    algorithm.update(batch_of(algorithm))
    for now, first, online in zip(
        algorithm.target.parameters(),
        before.parameters(),
        algorithm.critic.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(now, 0.7 * first + 0.3 * online)
        assert now.grad is None and not now.requires_grad
        assert online.requires_grad and online.grad is None


def test_temperature_follows_the_entropy(batch_of: Callable[..., Batch]) -> None:
    for target, rises in ((50.0, True), (-50.0, False)):
        torch.manual_seed(0)
        algorithm = SAC(Setup(SPEC), hidden=(16,), target_entropy=target, initial_temperature=0.5)
        algorithm.update(batch_of(algorithm))
        assert (algorithm.temperature().item() > 0.5) == rises
    assert SAC(Setup(SPEC), hidden=(16,)).target_entropy == -4.0


@pytest.mark.parametrize("limit", [-5.0, -20.0])
def test_log_standard_deviation_stops_at_its_lower_bound(limit: float) -> None:
    torch.manual_seed(0)
    algorithm = SAC(Setup(SPEC), hidden=(16,), log_std_min=limit)
    last = algorithm.actor.network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias[SPEC.horizon * SPEC.action_dim :] = -100.0
    _, log_std = algorithm.actor.distribution(torch.randn(9, 5))
    assert (log_std == limit).all()
    assert algorithm.actor.config()["log_std_min"] == limit
    assert SAC(Setup(SPEC), hidden=(16,)).actor.log_std_range == (-5.0, 2.0)


def test_warmup_is_uniform_over_the_limits() -> None:
    torch.manual_seed(0)
    action, _ = SAC(Setup(SPEC), hidden=(16,)).explore(torch.zeros(4000, 5), warmup=True)
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    share = ((action - low) / (high - low)).flatten(0, 1)
    assert share.min() >= 0 and share.max() <= 1
    assert (share.mean(0) - 0.5).abs().max() < 0.03
    assert (share.std(0) - 1 / 12**0.5).abs().max() < 0.03


class PointMass:
    """A point on [-2, 2] that actions push, paid for being at the origin; N of them, 20 steps."""

    def __init__(self, count: int) -> None:
        self.x = 3 * torch.rand(count, 1) - 1.5

    def step(self, action: Tensor) -> Tensor:
        """Push by ``action`` ``[N, 1, 1]`` in [-1, 1] and return the reward ``[N]``."""
        self.x = (self.x + 0.3 * action[:, 0]).clamp(-2, 2)
        return -self.x[:, 0].square()


def cost(algorithm: SAC | None) -> float:
    """Mean cost of a step at the end of an episode; of random pushes without an algorithm."""
    torch.manual_seed(100)
    mass = PointMass(256)
    for _ in range(20):
        push = 2 * torch.rand(256, 1, 1) - 1
        reward = mass.step(push if algorithm is None else algorithm.policy.act(mass.x))
    return -float(reward.mean())


def test_solves_a_point_mass() -> None:
    torch.manual_seed(0)
    algorithm = SAC(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,))),
        hidden=(32, 32),
        learning_rate=3e-3,
        batch_size=128,
        tau=0.02,
        initial_temperature=0.1,
    )
    rows: list[tuple[Tensor, ...]] = []
    for episode in range(30):
        mass = PointMass(16)
        for _ in range(20):
            obs = mass.x
            action, _ = algorithm.explore(obs, warmup=episode < 5)
            rows.append((obs, action, mass.step(action), mass.x))
        if episode < 5:
            continue
        obs, action, reward, next_obs = (torch.cat(column) for column in zip(*rows, strict=True))
        for _ in range(30):
            drawn = torch.randint(len(obs), (algorithm.pace.batch_size,))
            algorithm.update(
                Batch(
                    obs=obs[drawn],
                    action=action[drawn],
                    reward=reward[drawn],
                    next_obs=next_obs[drawn],
                    discount=torch.full((len(drawn),), 0.9),  # a time limit, never an end
                    valid=torch.ones(len(drawn), 1, dtype=torch.bool),
                )
            )
    assert cost(None) > 0.8
    assert cost(algorithm) < 0.1


def test_a_true_end_is_not_bootstrapped(batch_of: Callable[..., Batch]) -> None:
    torch.manual_seed(0)
    algorithm = SAC(Setup(SPEC), hidden=(16, 16), learning_rate=1e-2)
    batch = batch_of(algorithm)
    ended = replace(batch, discount=torch.zeros(16), reward=torch.full((16,), 3.0))
    for _ in range(300):
        metrics = algorithm.update(ended)
    assert metrics["q_mean"] == pytest.approx(3.0, abs=0.1)
