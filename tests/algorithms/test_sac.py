"""Soft actor-critic against Stable-Baselines3 and plain torch, and that it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn

from trimtab.algorithms.base import Setup, polyak
from trimtab.algorithms.critic import EnsembleCritic, EnsembleLinear
from trimtab.algorithms.sac import SAC
from trimtab.types import Batch, PolicySpec

# Two actions of two dimensions to us are one action of four to Stable-Baselines3.
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
BATCH, GAMMA, TAU = 64, 0.97, 0.05


class Nothing(gymnasium.Env[Any, Any]):
    """An environment that has spaces and is never stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> stable_baselines3.SAC:
    """Theirs in double precision, without the 1e-6 that it adds inside a logarithm.

    Adam divides a gradient by its own size, so that rounding, or that 1e-6, would decide the sign
    of a step wherever a gradient is nearly zero.
    """
    made = stable_baselines3.SAC(
        "MlpPolicy",
        Nothing(),
        seed=0,
        gamma=GAMMA,
        tau=TAU,
        learning_rate=3e-3,
        buffer_size=10,
        policy_kwargs={"net_arch": [32, 32]},
        device="cpu",
    )
    made.policy.double()
    assert made.log_ent_coef is not None
    made.log_ent_coef.data = made.log_ent_coef.data.double()
    # Where observations would be made single again.
    monkeypatch.setattr(
        "stable_baselines3.common.policies.preprocess_obs", lambda obs, *a, **k: obs
    )
    made.actor.action_dist.epsilon = 0.0
    return made


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def pairs(ours: SAC, theirs: stable_baselines3.SAC) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Every weight of ours beside the same of theirs, in our layout."""
    body = linear_layers(theirs.actor.latent_pi)
    layers = [layer for layer in ours.actor.network if isinstance(layer, nn.Linear)]
    for index, layer in enumerate(body):
        yield f"actor {index} weight", layers[index].weight, layer.weight
        yield f"actor {index} bias", layers[index].bias, layer.bias
    heads: tuple[Any, ...] = theirs.actor.mu, theirs.actor.log_std
    yield "actor head", layers[-1].weight, torch.cat([head.weight for head in heads])
    yield "actor head bias", layers[-1].bias, torch.cat([head.bias for head in heads])
    for name, critic, family in (
        ("critic", ours.critic, theirs.critic),
        ("target", ours.target, theirs.critic_target),
    ):
        members = [linear_layers(member) for member in family.q_networks]
        stacked = [layer for layer in critic.network if isinstance(layer, EnsembleLinear)]
        for index, ensemble in enumerate(stacked):
            weights = torch.stack([member[index].weight.T for member in members])
            yield f"{name} {index} weight", ensemble.weight, weights
            biases = torch.stack([member[index].bias[None] for member in members])
            yield f"{name} {index} bias", ensemble.bias, biases
    assert theirs.log_ent_coef is not None
    yield "temperature", ours.temperature.log, theirs.log_ent_coef[0]


def test_updates_are_those_of_stable_baselines3(
    reference: stable_baselines3.SAC, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    ours = SAC(Setup(SPEC), hidden=(32, 32), learning_rate=3e-3, tau=TAU)
    for part in (ours.actor, ours.critic, ours.target, ours.temperature):
        part.double()
    with torch.no_grad():
        for _, mine, other in pairs(ours, reference):
            mine.copy_(other)
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    for step in range(3):
        obs, next_obs = torch.randn(2, BATCH, 5).double()
        scaled, reward = 2 * torch.rand(BATCH, 4).double() - 1, torch.randn(BATCH).double()
        done = (torch.rand(BATCH) < 0.3).double()
        actor_noise, next_noise = torch.randn(2, BATCH, 4).double()

        # Stable-Baselines3 samples the actor's action first, and we the next action.
        drawn = iter([actor_noise, next_noise])
        monkeypatch.setattr(
            torch.distributions.Normal,
            "rsample",
            lambda self, *shape, drawn=drawn: self.loc + self.scale * next(drawn),
        )
        stored = ReplayBufferSamples(obs, scaled, next_obs, done[:, None], reward[:, None])
        monkeypatch.setattr(
            reference.replay_buffer, "sample", lambda *a, stored=stored, **k: stored
        )
        reference._logger = stable_baselines3.common.logger.Logger(None, [])
        reference.train(gradient_steps=1, batch_size=BATCH)

        wanted = iter([next_noise.reshape(-1, 2, 2), actor_noise.reshape(-1, 2, 2)])
        monkeypatch.setattr(ours.actor, "sample_noise", lambda n, wanted=wanted: next(wanted))
        ours.update(
            Batch(
                obs=obs,
                action=low + (high - low) * (scaled.reshape(-1, 2, 2) + 1) / 2,
                reward=reward,
                next_obs=next_obs,
                discount=GAMMA * (1 - done),
                valid=torch.ones(BATCH, 2, dtype=torch.bool),
            )
        )
        assert next(drawn, None) is None and next(wanted, None) is None
        for name, weight, other in pairs(ours, reference):
            assert (weight - other).abs().max() < 1e-9, f"{name} after step {step + 1}"


def by_hand(algorithm: SAC, batch: Batch, next_noise: Tensor, *, entropy: bool) -> float:
    """The critic's loss from the formulas at the top of ``sac.py``, one row at a time."""
    total = 0.0
    normalizer = algorithm.actor.normalizer
    with torch.no_grad():
        for row in range(len(batch)):
            obs, next_obs = batch.obs[row : row + 1], batch.next_obs[row : row + 1]
            action, log_prob = algorithm.actor.sample_with_log_prob(
                next_obs, next_noise[row : row + 1]
            )
            value = algorithm.target(next_obs, normalizer.normalize_action(action)).min()
            if entropy:
                value = value - algorithm.temperature() * log_prob[0]
            backup = batch.reward[row] + batch.discount[row] * value
            stored = normalizer.normalize_action(batch.action[row : row + 1])
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
        assert online.requires_grad  # it was frozen only while the actor climbed it


def test_temperature_follows_the_entropy(batch_of: Callable[..., Batch]) -> None:
    for target, rises in ((50.0, True), (-50.0, False)):
        torch.manual_seed(0)
        algorithm = SAC(Setup(SPEC), hidden=(16,), target_entropy=target, initial_temperature=0.5)
        algorithm.update(batch_of(algorithm))
        assert (algorithm.temperature().item() > 0.5) == rises
    assert SAC(Setup(SPEC), hidden=(16,)).target_entropy == -4.0


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
            drawn = torch.randint(len(obs), (algorithm.batch_size,))
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
