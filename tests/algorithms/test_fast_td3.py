"""FastTD3 against the published code's formulas, written out, and that it learns."""

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
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.fast_td3 import CategoricalCritic, FastTD3
from trimtab.benchmarks.contracts.methods import written
from trimtab.benchmarks.training.collector import Collector
from trimtab.benchmarks.training.experience import batch_spec_of
from trimtab.benchmarks.training.identity import constructed
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.vector import make_vec
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.networks.critic import EnsembleLinear
from trimtab.types import Batch, PolicySpec

small = load_module(Path(__file__).with_name("small.py"))
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[str, Any] = {"hidden": (12, 8), "atoms": 21, "value_bound": 5.0}
BatchOf = Callable[..., Batch]


def taught(batch_of: BatchOf, updates: int = 3, **settings: Any) -> FastTD3:
    """Return a method after a few updates, whose observations and returns were counted."""
    torch.manual_seed(0)
    algorithm = FastTD3(Setup(SPEC, num_envs=3), **{**SMALL, **settings})
    for _ in range(20):
        algorithm.explore(3 * torch.randn(3, 5) + 1, warmup=True)
        algorithm.on_transition(torch.randn(3), *[torch.rand(3) < 0.2] * 2)
    for seed in range(updates):
        algorithm.update(batch_of(algorithm, seed=seed))
    return algorithm


def layers_of(network: nn.Sequential, number: int | None) -> list[tuple[Tensor, Tensor]]:
    """Return weights ``[outputs, inputs]`` and biases of a perceptron, or of one of several."""
    found = []
    for layer in network:
        if isinstance(layer, nn.Linear):
            found.append((layer.weight, layer.bias))
        elif isinstance(layer, EnsembleLinear):
            found.append((layer.weight[number].T, layer.bias[number, 0]))
    return [(w.detach().clone().requires_grad_(), b.detach().clone().requires_grad_())
            for w, b in found]  # fmt: skip


def run(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    for number, (weight, bias) in enumerate(layers):
        x = weight @ x + bias
        if number + 1 < len(layers):
            x = torch.clamp(x, min=0.0)
    return x


def adamw(
    layers: list[tuple[Tensor, Tensor]], loss: Tensor, rate: float, decay: float
) -> list[tuple[Tensor, ...]]:
    """Return weights after AdamW's first step down a loss."""
    stepped = []
    for pair in layers:
        slopes = torch.autograd.grad(loss, pair, retain_graph=True)
        stepped.append(
            tuple(
                (1 - rate * decay) * one.detach() - rate * slope / (slope.abs() + 1e-8)
                for one, slope in zip(pair, slopes, strict=True)
            )
        )
    return stepped


def split(atoms: list[float], mass: list[float]) -> np.ndarray[Any, Any]:
    """Return the published projection on -5 to 5 in steps of a half, one atom after another."""
    found = np.zeros(21)
    for atom, part in zip(atoms, mass, strict=True):
        place = (min(max(atom, -5.0), 5.0) + 5.0) / 0.5
        lower, upper = math.floor(place), math.ceil(place)
        if lower == upper and lower > 0:
            lower -= 1
        elif lower == upper:
            upper += 1
        found[lower] += part * (upper - place)
        found[upper] += part * (place - lower)
    return found


@pytest.mark.parametrize("pessimistic", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_an_update_is_that_of_the_published_formulas(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch, pessimistic: bool, scaled: bool
) -> None:
    rate, decay, tau = 3e-3, 0.1, 0.1
    algorithm = taught(
        batch_of, 0, pessimistic=pessimistic, normalize_rewards=scaled, learning_rate=rate,
        actor_every=1, target_noise=0.4,
    )  # fmt: skip
    for network in (algorithm.target, algorithm.policy.network):  # so that means differ by row
        for weight in network.parameters():
            weight.data.add_(0.3 * torch.randn_like(weight))
    rows = 12
    batch = batch_of(algorithm, count=rows, seed=7)
    reward = 4 * batch.reward - 1
    batch = replace(batch, reward=reward, valid=torch.ones_like(batch.valid), whole=True)
    noise = torch.randn(rows, 2, 2)
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)

    normalizer = algorithm.normalizer
    mean, deviation = normalizer.mean.float(), (normalizer.variance + 1e-8).sqrt().float()
    obs = ((batch.obs - mean) / deviation).clamp(-10, 10)
    next_obs = ((batch.next_obs - mean) / deviation).clamp(-10, 10)
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    stored = ((batch.action - (high + low) / 2) / ((high - low) / 2)).flatten(1)
    divisor = 1.0
    if scaled:
        scale = algorithm.reward_scale
        assert scale is not None
        divisor = max(math.sqrt(float(scale.variance) + 1e-8), float(scale.largest) / 5.0)
        assert abs(divisor - 1) > 0.05
    z = torch.linspace(-5, 5, 21)
    actor = layers_of(algorithm.policy.network, None)
    online = [layers_of(algorithm.critic.network, number) for number in range(2)]
    targets = [layers_of(algorithm.target.network, number) for number in range(2)]

    backups, chosen = np.zeros((2, rows, 21)), []
    with torch.no_grad():
        for row in range(rows):
            smoothing = (0.4 * noise[row].flatten()).clamp(-0.5, 0.5)
            action = (torch.tanh(run(actor, next_obs[row])) + smoothing).clamp(-1, 1)
            both = []
            for layers in targets:
                mass = torch.softmax(run(layers, torch.cat([next_obs[row], action])), 0)
                atoms = float(reward[row]) / divisor + float(batch.discount[row]) * z
                both.append(split(atoms.tolist(), mass.tolist()))
            chosen.append(int(np.argmin([one @ z.numpy() for one in both])))
            backups[:, row] = both[chosen[-1]] if pessimistic else both
    assert {*chosen} == {0, 1}  # either is the least somewhere
    critic_loss = torch.zeros(())
    for row in range(rows):
        for number in range(2):
            logits = run(online[number], torch.cat([obs[row], stored[row]]))
            target = torch.tensor(backups[number, row], dtype=torch.float32)
            critic_loss = critic_loss - (target * torch.log_softmax(logits, 0)).sum() / rows
    critics = [adamw(layers, critic_loss, rate, decay) for layers in online]
    actor_loss = torch.zeros(())
    for row in range(rows):
        action = torch.tanh(run(actor, obs[row]))
        values = torch.stack([
            (torch.softmax(run(layers, torch.cat([obs[row], action])), 0) * z).sum()
            for layers in critics
        ])  # fmt: skip
        actor_loss = actor_loss - (values.min() if pessimistic else values.mean()) / rows
    moved = adamw(actor, actor_loss, rate, decay)

    metrics = algorithm.update(batch)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-4)
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-3, abs=1e-4)
    # Where a slope is nearly 0, its sign, and so Adam's first step, is one of rounding.
    close: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-3}
    for number in range(2):
        found = layers_of(algorithm.critic.network, number)
        averaged = layers_of(algorithm.target.network, number)
        both_steps = zip(found, averaged, critics[number], targets[number], strict=True)
        for mine, slow, expected, before in both_steps:
            for part in range(2):
                torch.testing.assert_close(mine[part].detach(), expected[part], **close)
                average = (1 - tau) * before[part] + tau * expected[part]
                torch.testing.assert_close(slow[part], average, **close)
    for mine, expected in zip(layers_of(algorithm.policy.network, None), moved, strict=True):
        for part in range(2):
            torch.testing.assert_close(mine[part].detach(), expected[part], **close)


def test_the_actor_learns_every_other_update_and_the_target_always(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, 0)
    for number in range(4):
        actor, target = copy.deepcopy(algorithm.policy), copy.deepcopy(algorithm.target)
        algorithm.update(batch_of(algorithm, seed=number))
        same = all(
            torch.equal(a, b)
            for a, b in zip(actor.parameters(), algorithm.policy.parameters(), strict=True)
        )
        assert same == (number % 2 == 0)
        small.follows(algorithm.target, target, algorithm.critic, 0.1)


def test_its_start_and_pace_are_the_published_ones() -> None:
    torch.manual_seed(0)
    algorithm = FastTD3(Setup(SPEC, num_envs=128), hidden=(64, 32, 16), n_step=3)
    assert algorithm.pace.updates_per_decision * 128 == 2.0
    assert algorithm.pace.warmup_steps == 10 * 128 and algorithm.batch_spec.n_step == 3
    widths = [one.out_features for one in algorithm.policy.network if isinstance(one, nn.Linear)]
    assert widths == [32, 16, 8, 4]  # half of the critics' each
    last = algorithm.policy.network[-1]
    assert isinstance(last, nn.Linear) and (last.bias == 0).all()
    assert last.weight.std().item() == pytest.approx(0.01, rel=0.4)
    assert algorithm.critic_optimizer.weight_decays == [0.1]
    own = FastTD3(Setup(SPEC), hidden=(64,), actor_hidden=(5,)).policy.network[0]
    assert isinstance(own, nn.Linear) and own.out_features == 5
    with pytest.raises(ValueError, match=r"most_noise=0.1: must be at least 0.2"):
        FastTD3(Setup(SPEC), least_noise=0.2, most_noise=0.1)


def test_members_are_separate_perceptrons() -> None:
    torch.manual_seed(0)
    critic = CategoricalCritic(9, (12, 8), 3, 21, 5.0)
    obs, action = torch.randn(6, 5), torch.randn(6, 2, 2)
    for number in range(3):
        layers = layers_of(critic.network, number)
        for row in range(6):
            alone = run(layers, torch.cat([obs[row], action[row].flatten()]))
            torch.testing.assert_close(critic(obs, action)[number, row], alone)
    assert critic.support.tolist() == pytest.approx(np.linspace(-5, 5, 21).tolist())


# Exploration.


def test_an_environment_keeps_its_width_until_its_episode_ends() -> None:
    torch.manual_seed(0)
    spec = PolicySpec(3, 1, 2, (-100.0, -100.0), (100.0, 100.0))
    algorithm = FastTD3(Setup(spec, num_envs=4), hidden=(8,), least_noise=0.001, most_noise=0.4)
    nn.init.zeros_(algorithm.policy.network[-1].weight)  # type: ignore[arg-type]
    first = algorithm.noise.width.clone()
    assert first.unique().numel() == 4 and first.min() >= 0.001 and first.max() <= 0.4

    def spreads() -> Tensor:
        tried = [algorithm.explore(torch.randn(4, 3), warmup=False)[0] for _ in range(2000)]
        return torch.stack(tried).div(100).std((0, 2, 3))

    torch.testing.assert_close(spreads(), first, rtol=0.05, atol=0)
    assert torch.equal(algorithm.noise.width, first)
    algorithm.on_episode_end([1, 3])
    second = algorithm.noise.width.clone()
    assert (second != first).tolist() == [False, True, False, True]
    torch.testing.assert_close(spreads(), second, rtol=0.05, atol=0)
    drawn = algorithm.noise.draw(4000)  # uniform within the range
    assert drawn.mean().item() == pytest.approx(0.2005, rel=0.03)
    assert drawn.std().item() == pytest.approx(0.399 / math.sqrt(12), rel=0.05)


def test_a_run_redraws_widths_at_resets_alone() -> None:
    """Through the loop that gathers, with episodes that end at different times."""
    torch.manual_seed(0)
    envs = make_vec("gym/InvertedPendulum-v5", 3, seed=0)
    size = envs.single_observation_space.shape[0]
    spec = PolicySpec(size, 1, 1, (-3.0,), (3.0,))
    algorithm = FastTD3(Setup(spec, num_envs=3), hidden=(8,), most_noise=1.0)
    buffer = ReplayBuffer(
        400, size, (1, 1), discount=0.99, num_envs=3, seed=0, batch_spec=batch_spec_of(algorithm)
    )
    ended: list[int] = []
    redraw = algorithm.on_episode_end
    algorithm.on_episode_end = lambda rows: (ended.extend(rows), redraw(rows))[1]  # type: ignore[method-assign,func-returns-value]
    collector = Collector(envs, algorithm, buffer, "cpu")
    for _ in range(60):
        before = algorithm.noise.width.clone()
        ended.clear()
        collector.step(warmup=False)
        changed = (algorithm.noise.width != before).nonzero()[:, 0].tolist()
        assert changed == sorted(ended)
    assert collector.episodes > 3


def test_observations_are_counted_once_where_they_are_acted_on(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, 0)
    assert float(algorithm.normalizer.count) == 60
    batch = batch_of(algorithm)
    assert not batch.valid.all()  # chunks are continued in the update
    before = copy.deepcopy(algorithm.normalizer.state_dict())
    algorithm.update(batch)
    for name, value in algorithm.normalizer.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_export_acts_as_the_policy_does(batch_of: BatchOf) -> None:
    algorithm = taught(batch_of, learning_rate=1e-2)
    assert algorithm.policy.config()["normalize_observations"] is True
    assert "onnx" in written(algorithm.policy)


def test_a_policy_without_statistics_is_what_it_was() -> None:
    torch.manual_seed(0)
    policy = DeterministicPolicy(SPEC, hidden=(8,))
    assert "normalize_observations" not in policy.config()
    assert not hasattr(policy.normalizer, "see")
    target = f"{DeterministicPolicy.__module__}.DeterministicPolicy"
    for chosen in (False, True):
        section = {"_target_": target, "normalize_observations": chosen}
        known = constructed("policy", "deterministic", section)
        assert ("normalize_observations" in str(known)) == chosen  # what a run is known by


def test_solves_a_point_mass() -> None:
    """As SAC does in its tests, with 64 environments that share two updates a step."""
    sac = load_module(Path(__file__).with_name("test_sac.py"))
    torch.manual_seed(0)
    algorithm = FastTD3(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), num_envs=64, discount=0.9),
        hidden=(64, 32), learning_rate=3e-3, batch_size=512, value_bound=10.0,
        normalize_rewards=True,
    )  # fmt: skip
    rows: list[tuple[Tensor, ...]] = []
    for _ in range(15):
        mass = sac.PointMass(64)
        for step in range(20):
            obs = mass.x
            action, _ = algorithm.explore(obs, warmup=False)
            rows.append((obs, action, mass.step(action), mass.x))
            algorithm.on_transition(rows[-1][2], *[torch.full((64,), step == 19)] * 2)
            stored = [torch.cat(column) for column in zip(*rows, strict=True)]
            for _ in range(2):
                drawn = torch.randint(len(stored[0]), (512,))
                obs, action, reward, next_obs = (column[drawn] for column in stored)
                whole = torch.ones(512, 1, dtype=torch.bool)
                algorithm.update(
                    Batch(obs, action, reward, next_obs, torch.full((512,), 0.9), whole)
                )
        algorithm.on_episode_end(range(64))
    assert sac.cost(None) > 0.8
    assert sac.cost(algorithm) < 0.1
