"""SimbaV2 against the published code's formulas, written out, and that it learns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.off_policy.simba_v2 import SimbaV2
from trimtab.benchmarks.contracts.methods import Subject, check_captured, written
from trimtab.policies.networks.hyperspherical import (
    Block,
    Embedding,
    Head,
    HypersphericalCritic,
    HypersphericalLinear,
    Scaler,
    make_body,
    project_weights_,
)
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.types import Batch, PolicySpec

small = load_module(Path(__file__).with_name("small.py"))
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
NETWORKS: dict[str, Any] = {
    "actor_width": 8, "critic_width": 12, "critic_blocks": 2, "atoms": 21,
}  # fmt: skip
BatchOf = Callable[..., Batch]


def norms(network: torch.nn.Module) -> Tensor:
    """Return the norm of the weights of every output unit."""
    layers = [one for one in network.modules() if isinstance(one, HypersphericalLinear)]
    assert len(layers) > 3
    return torch.cat([one.weight.detach().norm(dim=-2).flatten() for one in layers])


def taught(batch_of: BatchOf, updates: int = 4, **settings: Any) -> SimbaV2:
    """Return a method after a few updates, whose observations and returns were counted."""
    torch.manual_seed(0)
    algorithm = SimbaV2(Setup(SPEC, num_envs=2), **NETWORKS, **settings)
    for _ in range(20):
        algorithm.explore(3 * torch.randn(2, 5) + 1, warmup=True)
        algorithm.on_transition(torch.randn(2), *[torch.rand(2) < 0.2] * 2)
    for seed in range(updates):
        algorithm.update(batch_of(algorithm, seed=seed))
    return algorithm


# The networks.


def test_weights_and_features_have_norm_1_after_every_step(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, updates=0, learning_rate=1e-2)
    ones = torch.ones(1)
    for seed in range(5):
        batch = batch_of(algorithm, seed=seed)
        obs = algorithm.actor.normalizer.obs(batch.obs)
        algorithm.update(batch)
        for network in (algorithm.actor, algorithm.critic):
            found = norms(network)
            torch.testing.assert_close(found, ones.expand_as(found))
        rows = torch.cat([obs, batch.action.flatten(1)], 1)
        for body, read in ((algorithm.actor.body, obs), (algorithm.critic.body, rows)):
            features = read
            for layer in body:  # after the embedding and after every block
                features = layer(features)
                length = features.norm(dim=-1)
                torch.testing.assert_close(length, ones.expand_as(length))


def test_the_target_is_the_plain_average(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, learning_rate=3e-2, tau=0.3)
    before = copy.deepcopy(algorithm.target)
    algorithm.update(batch_of(algorithm, seed=9))
    small.follows(algorithm.target, before, algorithm.critic, 0.3)
    assert norms(algorithm.target).min() < 0.999  # an average of unit vectors is shorter


def test_a_scaler_begins_with_what_it_is_told() -> None:
    x = torch.randn(7, 8)
    for initial, stored in ((0.5, 0.5), (1.0 / 3.0, 1.0 / math.sqrt(8))):
        scaler = Scaler(8, initial, stored, None)
        assert (scaler.weight == stored).all()
        torch.testing.assert_close(scaler(x), initial * x)
    same = math.sqrt(2 / 8)
    assert torch.equal(Scaler(8, same, same, None)(x), x * torch.tensor(same))
    embedding, block, _ = make_body(3, 8, 2)
    assert isinstance(embedding, Embedding) and isinstance(block, Block)
    assert embedding.scaler.ratio == block.scaler.ratio == 1.0
    torch.testing.assert_close(embedding.scaler.weight[0], torch.full((8,), math.sqrt(2 / 8)))
    torch.testing.assert_close(block.scaler.weight[0], torch.full((32,), math.sqrt(2 / 8) / 2))
    torch.testing.assert_close(block.step.weight[0], torch.full((8,), 1 / math.sqrt(8)))
    assert block.step.ratio * (1 / math.sqrt(8)) == pytest.approx(1 / 3)
    assert (Head(8, 2).scaler.weight == 1).all()


def test_weights_begin_orthogonal() -> None:
    for shape in ((9, 4), (4, 9), (6, 6)):
        weight = HypersphericalLinear(*shape, members=3).weight
        assert weight.shape == (3, *shape) and not torch.equal(weight[0], weight[1])
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(3, shape[1]))
    tall = HypersphericalLinear(9, 4).weight.detach()
    torch.testing.assert_close(tall.T @ tall, torch.eye(4), atol=1e-6, rtol=0)


def test_members_are_separate_networks() -> None:
    torch.manual_seed(0)
    three = HypersphericalCritic(3, 2, width=8, blocks=2, members=3, atoms=11, bound=5.0)
    for weight in three.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    project_weights_(three)
    obs, action = torch.randn(6, 3), torch.randn(6, 1, 2)
    for member in range(3):
        body, head = make_body(5, 8, 2), Head(8, 11)
        for own, shared in ((body, three.body), (head, three.head)):
            own.load_state_dict({k: v[member] for k, v in shared.state_dict().items()})
        alone = head(body(torch.cat([obs, action[:, 0]], 1)))
        torch.testing.assert_close(alone, three(obs, action)[member])


# An update, by the formulas of the published code, one row and one unit at a time.

Weights = dict[str, Tensor]


def unit(x: Tensor) -> Tensor:
    return x / torch.clamp(torch.sqrt((x * x).sum()), min=1e-8)


def features(w: Weights, x: Tensor, width: int, blocks: int) -> Tensor:
    """Return the encoder's features of one row; scalers are given by their names in ``w``."""
    scale = math.sqrt(2.0 / width)
    x = unit(torch.cat([x, torch.full((1,), 3.0, dtype=x.dtype)]))
    x = unit(w["body.0.scaler.weight"] * (scale / scale) * (w["body.0.linear.weight"].T @ x))
    for number in range(1, blocks + 1):
        name = f"body.{number}"
        hidden = w[f"{name}.scaler.weight"] * (w[f"{name}.first.weight"].T @ x)
        hidden = torch.clamp(hidden, min=0.0) + 1e-8
        hidden = unit(w[f"{name}.second.weight"].T @ hidden)
        pace = w[f"{name}.step.weight"] * ((1.0 / (blocks + 1)) / (1.0 / math.sqrt(width)))
        x = unit(x + pace * (hidden - x))
    return x


def read(w: Weights, name: str, x: Tensor) -> Tensor:
    """Return what one head says of one row's features."""
    hidden = w[f"{name}.scaler.weight"] * (w[f"{name}.first.weight"].T @ x)
    return w[f"{name}.second.weight"].T @ hidden + w[f"{name}.bias"]


def act(w: Weights, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a squashed action of one row and its log-density, by the change of variables."""
    x = features(w, obs, 8, 1)
    mean = read(w, "mean_head", x)
    log_std = -10.0 + 12.0 * 0.5 * (1 + torch.tanh(read(w, "log_std_head", x)))
    before = mean + torch.exp(log_std) * noise
    density = torch.distributions.Normal(mean, torch.exp(log_std)).log_prob(before).sum()
    action = torch.tanh(before)
    return action, density - torch.log(1 - action**2).sum()


def member(module: torch.nn.Module, number: int | None) -> Weights:
    """Return one member's weights as vectors and matrices that gradients can be taken by."""
    found = {}
    for name, value in module.state_dict().items():
        mine = value if number is None or name == "support" else value[number]
        if name.endswith(("scaler.weight", "step.weight", "bias")):
            mine = mine[0]
        found[name] = mine.clone().requires_grad_(mine.dtype == torch.float64)
    return {name: value for name, value in found.items() if "normalizer" not in name}


def adam_and_unit(w: Weights, loss: Tensor, rate: float) -> Weights:
    """Return weights after Adam's first step down a loss, columns of matrices normalised."""
    stepped = {}
    for name, value in w.items():
        if name == "support":
            stepped[name] = value
            continue
        (slope,) = torch.autograd.grad(loss, value, retain_graph=True)
        moved = value.detach() - rate * slope / (slope.abs() + 1e-8)
        if moved.ndim == 2:
            moved = torch.stack([unit(column) for column in moved.T], 1)
        stepped[name] = moved
    return stepped


@pytest.mark.parametrize("critics", [1, 2])
def test_an_update_is_that_of_the_published_formulas(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch, critics: int
) -> None:
    rate, tau, rows = 3e-3, 0.2, 16
    algorithm = taught(batch_of, updates=0, critics=critics, initial_temperature=0.3)
    # So that the target is not the critic, and either of its members is the least somewhere.
    for weight in algorithm.target.parameters():
        weight.add_(0.3 * torch.randn_like(weight))
    algorithm.target.head.second.weight.normal_()
    algorithm.target.head.bias.copy_(algorithm.critic.head.bias.detach())
    for network in (algorithm.actor, algorithm.critic, algorithm.target, algorithm.temperature):
        network.double()
    for name in ("actor", "critic", "temperature"):  # with fresh moments, and 64 bits
        weights = getattr(algorithm, name).parameters()
        setattr(algorithm, f"{name}_optimizer", Adam(weights, rate))
    algorithm.tau = tau
    batch = batch_of(algorithm, count=rows, seed=7)
    doubled = {n: v.double() for n, v in vars(batch).items() if torch.is_tensor(v)}
    doubled["next_obs"] = 20 * doubled["next_obs"]
    doubled["valid"] = torch.ones_like(batch.valid)
    batch = replace(batch, **doubled, whole=True)
    drawn = [torch.randn(rows, 2, 2, dtype=torch.float64) for _ in range(2)]
    noises = iter(drawn)
    monkeypatch.setattr(algorithm.actor, "sample_noise", lambda n: next(noises))

    actor = member(algorithm.actor, None)
    online = [member(algorithm.critic, number) for number in range(critics)]
    targets = [member(algorithm.target, number) for number in range(critics)]
    log_alpha = float(algorithm.temperature.log.detach())
    z = torch.linspace(-5, 5, 21, dtype=torch.float64)
    normalizer = algorithm.actor.normalizer
    mean, deviation = normalizer.mean, (normalizer.variance + 1e-8).sqrt()
    obs, next_obs = (
        ((part - mean.float()) / deviation.float()).double() for part in (batch.obs, batch.next_obs)
    )
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    stored = ((batch.action - (high + low) / 2) / ((high - low) / 2)).flatten(1)
    scale = algorithm.reward_scale
    divisor = max(math.sqrt(float(scale.variance) + 1e-8), float(scale.largest) / 5.0)
    assert abs(divisor - 1) > 0.05

    def logits(w: Weights, state: Tensor, action: Tensor) -> Tensor:
        return read(w, "head", features(w, torch.cat([state, action]), 12, 2))

    def value(w: Weights, state: Tensor, action: Tensor) -> Tensor:
        return (torch.softmax(logits(w, state, action), 0) * z).sum()

    # Actor.
    loss, entropy = torch.zeros((), dtype=torch.float64), 0.0
    for row in range(rows):
        action, log_prob = act(actor, obs[row], drawn[0][row].flatten())
        least = torch.stack([value(w, obs[row], action) for w in online]).min()
        loss = loss + (math.exp(log_alpha) * log_prob - least) / rows
        entropy -= float(log_prob.detach()) / rows
    new_actor = adam_and_unit(actor, loss, rate)
    # Temperature: the slope of exp(l) (H - H_target) by l, in Adam's first step.
    slope = math.exp(log_alpha) * (entropy - (-0.5 * 4))
    new_log = log_alpha - rate * slope / (abs(slope) + 1e-8)
    # Critic.
    critic_loss = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        backups, chosen = np.zeros((rows, 21)), []
        for row in range(rows):
            action, log_prob = act(new_actor, next_obs[row], drawn[1][row].flatten())
            means = [float(value(w, next_obs[row], action)) for w in targets]
            chosen.append(int(np.argmin(means)))
            mass = torch.softmax(logits(targets[chosen[-1]], next_obs[row], action), 0)
            bonus = math.exp(new_log) * float(log_prob)
            for atom in range(21):
                place = float(batch.reward[row]) / divisor
                place += float(batch.discount[row]) * (float(z[atom]) - bonus)
                place = (min(max(place, -5.0), 5.0) + 5.0) / 0.5
                lower, upper = math.floor(place), math.ceil(place)
                backups[row, lower] += float(mass[atom]) * (upper + (lower == upper) - place)
                backups[row, upper] += float(mass[atom]) * (place - lower)
    assert len({*chosen}) == critics  # either is the least somewhere
    for row in range(rows):
        for w in online:
            log_mass = torch.log_softmax(logits(w, obs[row], stored[row]), 0)
            critic_loss = critic_loss - (torch.tensor(backups[row]) * log_mass).sum() / rows
    new_critics = [adam_and_unit(w, critic_loss, rate) for w in online]

    metrics = algorithm.update(batch)
    close: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}  # statistics have 32 bits
    torch.testing.assert_close(metrics["actor_loss"], loss.detach(), **close)
    torch.testing.assert_close(metrics["critic_loss"], critic_loss.detach(), **close)
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(algorithm.temperature.log.detach()) == pytest.approx(new_log, rel=1e-9)
    found = member(algorithm.actor, None)
    for name, expected in new_actor.items():
        torch.testing.assert_close(found[name].detach(), expected, **close)
    for number, expected_weights in enumerate(new_critics):
        found = member(algorithm.critic, number)
        averaged = member(algorithm.target, number)
        for name, expected in expected_weights.items():
            torch.testing.assert_close(found[name].detach(), expected.detach(), **close)
            average = (1 - tau) * targets[number][name] + tau * expected
            torch.testing.assert_close(averaged[name].detach(), average.detach(), **close)


# What goes along a run.


def test_learning_rates_fall_in_a_line_and_stay(batch_of: BatchOf) -> None:
    # 20 steps are 10 decisions of two actions, with two updates each.
    algorithm = taught(batch_of, updates=0, decay_steps=20)
    for number in range(30):
        algorithm.update(batch_of(algorithm, seed=number))
        expected = 1e-4 - 5e-5 * min(number / 20, 1.0)
        for part in ("actor", "critic", "temperature"):
            found = float(getattr(algorithm, f"{part}_optimizer").learning_rate)
            assert found == pytest.approx(expected, rel=1e-6)

    def make(seed: int, device: str) -> SimbaV2:
        torch.manual_seed(seed)
        return SimbaV2(Setup(SPEC, device=device), **NETWORKS, decay_steps=10)

    assert "same bits" in check_captured(Subject(make, "simba_v2"))


def test_observations_are_counted_once_where_they_are_acted_on(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, updates=0)
    normalizer = algorithm.actor.normalizer
    assert isinstance(normalizer, RunningNormalizer) and float(normalizer.count) == 40
    batch = batch_of(algorithm)
    assert not batch.valid.all() and not batch.whole  # chunks are continued in the update
    before = copy.deepcopy(normalizer.state_dict())
    algorithm.update(batch)
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, before[name])
    seen = torch.randn(50, 5) * 4 + 2
    fresh = SimbaV2(Setup(SPEC, num_envs=5), **NETWORKS)
    for number in range(10):
        fresh.explore(seen[5 * number : 5 * number + 5], warmup=number < 5)
    found = fresh.actor.normalizer.obs(seen)
    torch.testing.assert_close(found, (seen - seen.mean(0)) / seen.std(0, correction=0))
    far = fresh.actor.normalizer.obs(seen[:1] + 1e3)
    assert far.min() > 100  # nothing is clipped


def test_an_export_acts_as_the_policy_does(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, learning_rate=1e-2)
    assert "onnx" in written(algorithm.policy)


def test_one_critic_has_one_target(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, critics=1)
    assert algorithm.critic(torch.zeros(3, 5), torch.zeros(3, 2, 2)).shape == (1, 3, 21)
    with pytest.raises(ValueError, match=r"algorithm\.critics=0: must be from 1"):
        SimbaV2(Setup(SPEC), critics=0)


@pytest.mark.slow
def test_finds_the_riccati_solution() -> None:
    lq = load_module(Path(__file__).with_name("test_linear_quadratic.py"))
    chain, exact = lq.chain, lq.exact
    torch.manual_seed(0)
    algorithm = chain.built(
        "simba_v2", actor_width=32, critic_width=32, learning_rate=1e-2, tau=0.2, decay_steps=None,
        initial_temperature=1e-3, entropy_per_dimension=-4.0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    weight, feedback = lq.riccati()
    position = torch.linspace(-0.8, 0.8, 9)[:, None]
    obs = torch.cat([position, torch.zeros(9, chain.STATES - 1)], 1)
    push = position.flip(0)
    reached = lq.DRIFT * position + lq.GAIN * push
    paid = position.square() + lq.COST * push.square()
    known = -(paid + chain.GAMMA * weight * reached.square())[:, 0]
    values = chain.critics_of(algorithm)

    def error() -> float:
        with torch.no_grad():
            action = algorithm.policy.act(obs, deterministic=True)
            missed = [action[:, 0] + feedback * position, *(values(obs, push[:, None])[0] - known)]
        return float(exact.largest(float(each.abs().mean()) for each in missed))

    def update() -> None:
        algorithm.update(lq.quadratic(128, False, generator))

    bound = 0.12
    assert bound < feedback / 3 and bound < float(known.std()) / 2
    assert exact.settled(update, error, bound, 600) < bound


def test_solves_a_point_mass() -> None:
    """As SAC does in its tests, by the loop of a run: it acts, counts, and learns."""
    sac = load_module(Path(__file__).with_name("test_sac.py"))
    torch.manual_seed(0)
    algorithm = SimbaV2(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), num_envs=16, discount=0.9),
        actor_width=16, critic_width=32, critic_blocks=1, learning_rate=1e-2, tau=0.05,
        batch_size=64,
    )  # fmt: skip
    rows: list[tuple[Tensor, ...]] = []
    for episode in range(20):
        mass = sac.PointMass(16)
        for step in range(20):
            obs = mass.x
            action, _ = algorithm.explore(obs, warmup=episode < 5)
            rows.append((obs, action, mass.step(action), mass.x))
            algorithm.on_transition(rows[-1][2], *[torch.full((16,), step == 19)] * 2)
        if episode < 5:
            continue
        obs, action, reward, next_obs = (torch.cat(column) for column in zip(*rows, strict=True))
        for _ in range(20):
            drawn = torch.randint(len(obs), (64,))
            algorithm.update(
                Batch(
                    obs=obs[drawn], action=action[drawn], reward=reward[drawn],
                    next_obs=next_obs[drawn], discount=torch.full((64,), 0.9),
                    valid=torch.ones(64, 1, dtype=torch.bool),
                )
            )  # fmt: skip
    assert sac.cost(None) > 0.8
    assert sac.cost(algorithm) < 0.1
