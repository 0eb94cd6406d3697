"""FlashSAC against its formulas, row by row, and its parts: weights, statistics, held noise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.flash_sac import FlashSAC, HeldNoise
from trimtab.benchmarks.contracts.methods import rebuilt, written
from trimtab.policies.networks.batch_norm import BatchNorm
from trimtab.policies.networks.unit import UnitNetwork
from trimtab.types import Batch, PolicySpec, TrimtabError

BatchOf = Callable[..., Batch]
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[str, Any] = {"actor_width": 8, "critic_width": 12, "learning_rate": 1e-2}


def made(**keywords: Any) -> FlashSAC:
    torch.manual_seed(0)
    return FlashSAC(Setup(SPEC, num_envs=3), **{**SMALL, **keywords})


def unit_networks(part: nn.Module) -> Iterator[UnitNetwork]:
    return (one for one in part.modules() if isinstance(one, UnitNetwork))


# The weights.


def test_weights_keep_their_lengths_after_every_step(batch_of: BatchOf) -> None:
    algorithm = made()
    for step in range(4):
        before = copy.deepcopy(algorithm.state_dict())
        algorithm.update(batch_of(algorithm, seed=step))
        for network in [*unit_networks(algorithm.actor), *unit_networks(algorithm.critic)]:
            for layer in network.modules():
                if isinstance(layer, nn.Linear):
                    lengths = layer.weight.norm(dim=1)
                    torch.testing.assert_close(lengths, torch.ones_like(lengths))
                elif isinstance(layer, BatchNorm):
                    both = torch.cat([layer.weight, layer.bias])
                    assert float(both.detach().norm()) == pytest.approx(math.sqrt(len(layer.bias)))
                elif isinstance(layer, nn.RMSNorm):
                    width = len(layer.weight)
                    assert float(layer.weight.detach().norm()) == pytest.approx(math.sqrt(width))
        # The target is the average alone, so its rows are shorter.
        ahead = dict(algorithm.critic.named_parameters())
        for name, now in algorithm.target.named_parameters():
            was = before["target"][name]
            torch.testing.assert_close(now, 0.99 * was + 0.01 * ahead[name])
    shorter = [one.blocks[0].first.weight.norm(dim=1) for one in unit_networks(algorithm.target)]
    assert all(bool((lengths < 1 - 1e-6).any()) for lengths in shorter)


def test_weights_are_free_within_their_lengths() -> None:
    """Scaling a row, or a scale with its shift, changes nothing that is kept."""
    torch.manual_seed(0)
    network = UnitNetwork(3, 8, 4, blocks=1)
    before = copy.deepcopy(network.state_dict())
    with torch.no_grad():
        network.embedding.weight.mul_(torch.rand(8, 1) + 0.5)
        network.blocks[0].first_norm.weight.mul_(3.0)
        network.blocks[0].first_norm.bias.mul_(3.0)
        network.last_norm.weight.mul_(0.1)
    network.project()
    for name, now in network.state_dict().items():
        torch.testing.assert_close(now, before[name])


# The statistics.


def test_a_joint_batch_is_normalised_as_one() -> None:
    critic = made().critic
    torch.manual_seed(1)
    obs, action = torch.randn(8, 5), torch.randn(8, 2, 2)
    other = obs.clone()
    other[4:] += 1.0  # only what comes next is different
    with torch.no_grad():
        kept = critic(obs, action)[:, :4], critic(other, action)[:, :4]
        together = (critic(one, action, learning=True)[:, :4] for one in (obs, other))
    assert torch.equal(*kept)
    assert not torch.allclose(*together, atol=1e-2)


def test_the_average_leaves_the_statistics_of_the_target_alone(batch_of: BatchOf) -> None:
    algorithm = made()
    for step in range(2):
        algorithm.update(batch_of(algorithm, seed=step))
    held = [buffer.clone() for buffer in algorithm.target.buffers()]
    moved = [weight.clone() for weight in algorithm.target.parameters()]
    assert not all(map(torch.equal, held, algorithm.critic.buffers()))
    polyak(algorithm.target, algorithm.critic, 0.5, buffers=False)
    assert all(map(torch.equal, held, algorithm.target.buffers()))
    assert not any(map(torch.equal, moved, algorithm.target.parameters()))


def test_actions_do_not_depend_on_the_other_rows(batch_of: BatchOf) -> None:
    """Whatever the mode of the module; and the graph of a bundle acts as torch does."""
    algorithm = made()
    for step in range(3):
        algorithm.update(batch_of(algorithm, seed=step))
    policy = algorithm.policy
    obs, noise = torch.randn(6, 5), policy.sample_noise(6)
    with torch.no_grad():
        together = policy.train()(obs, noise)
        alone = torch.cat([policy(obs[i : i + 1], noise[i : i + 1]) for i in range(6)])
        assert torch.equal(policy.eval()(obs, noise), together)
    torch.testing.assert_close(alone, together)
    assert "onnx" in written(rebuilt(policy, SPEC))


# An update, against the published code's formulas written out.


def normalised(
    x: Tensor, state: dict[str, Tensor], name: str, running: dict[str, Tensor] | None
) -> Tensor:
    """Batch normalisation; with ``running`` by the batch, whose statistics are noted there."""
    mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    if running is not None:
        rows = len(x)
        own_mean = x.sum(0) / rows
        own = ((x - own_mean) ** 2).sum(0) / rows
        running[f"{name}.running_mean"] = (0.99 * mean + 0.01 * own_mean).detach()
        running[f"{name}.running_var"] = (0.99 * variance + 0.01 * own * rows / (rows - 1)).detach()
        mean, variance = own_mean, own
    scaled = (x - mean) / torch.sqrt(variance + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def network_of(
    x: Tensor, state: dict[str, Tensor], start: str, running: dict[str, Tensor] | None
) -> Tensor:
    """The residual network of two blocks, from its weights by name."""
    x = normalised(x, state, f"{start}first_norm", running) @ state[f"{start}embedding.weight"].T
    for number in range(2):
        block = f"{start}blocks.{number}"
        y = x @ state[f"{block}.first.weight"].T
        y = normalised(y, state, f"{block}.first_norm", running).clamp(min=0)
        y = y @ state[f"{block}.second.weight"].T
        x = x + normalised(y, state, f"{block}.second_norm", running).clamp(min=0)
    x = x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6) * state[f"{start}last_norm.weight"]
    return x @ state[f"{start}output.weight"].T + state[f"{start}output.bias"]


def act(
    obs: Tensor, noise: Tensor, state: dict[str, Tensor], running: dict[str, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Squashed actions ``[B, D]`` and their log-densities."""
    mean, width = network_of(obs, state, "network.", running).chunk(2, 1)
    log_std = -10 + 12 * 0.5 * (1 + torch.tanh(width))
    raw = mean + torch.exp(log_std) * noise
    normal = torch.distributions.Normal(mean, torch.exp(log_std)).log_prob(raw)
    return torch.tanh(raw), (normal - torch.log(1 - torch.tanh(raw) ** 2)).sum(1)


def logits_of(
    x: Tensor, state: dict[str, Tensor], running: dict[str, Tensor] | None
) -> list[Tensor]:
    return [network_of(x, state, f"members.{number}.", running) for number in range(2)]


def lengths_back(state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if value.ndim == 2:
            value.div_(value.norm(dim=1, keepdim=True))
        elif name.endswith("norm.weight"):
            bias = state.get(name.replace("weight", "bias"))
            squares = (value**2).sum() + (0 if bias is None else (bias**2).sum())
            factor = math.sqrt(len(value)) / torch.sqrt(squares + 1e-8)
            value.mul_(factor)
            if bias is not None:
                bias.mul_(factor)


class ByHand:
    """FlashSAC with torch's own Adam, on weights by name."""

    def __init__(self, algorithm: FlashSAC, rates: tuple[float, float, int]) -> None:
        parts = (algorithm.actor, algorithm.critic, algorithm.target)
        self.actor, self.critic, self.target = (
            {name: value.clone() for name, value in part.state_dict().items()} for part in parts
        )
        self.log_alpha = algorithm.temperature.log.detach().clone()
        self.rates, self.updates = rates, 0
        self.optimizers: dict[str, torch.optim.Adam] = {}
        self.steps = {"actor": 0, "critic": 0, "temperature": 0}
        self.target_entropy = 0.5 * 4 * math.log(2 * math.pi * math.e * 0.15**2)

    def learned(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: value
            for name, value in state.items()
            if name.endswith((".weight", ".bias")) and value.ndim
        }

    def step(self, name: str, weights: list[Tensor], loss: Tensor) -> None:
        start, end, length = self.rates
        progress = min(self.steps[name] / length, 1.0)
        rate = end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))
        optimizer = self.optimizers.setdefault(name, torch.optim.Adam(weights))
        optimizer.param_groups[0]["lr"] = rate
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        with torch.no_grad():
            optimizer.step()
        self.steps[name] += 1

    def update(self, batch: Batch, action: Tensor, noises: dict[int, Tensor], scale: float) -> None:
        rows = len(batch.obs)
        noises = {count: noise.flatten(1) for count, noise in noises.items()}
        z = self.critic["support"]
        torch.testing.assert_close(z, torch.linspace(-5, 5, 101, dtype=torch.float64))
        if self.updates % 2 == 0:
            weights = self.learned(self.actor)
            for one in weights.values():
                one.requires_grad_(True)
            running: dict[str, Tensor] = {}
            both = torch.cat([batch.obs, batch.next_obs])
            tried, log_prob = act(both, noises[2 * rows], self.actor, running)
            tried, log_prob = tried[:rows], log_prob[:rows]
            judged = logits_of(torch.cat([batch.obs, tried], 1), self.critic, None)
            values = [(torch.softmax(one, 1) * z).sum(1) for one in judged]
            alpha = self.log_alpha.exp()
            loss = (log_prob * alpha - torch.minimum(*values)).mean()
            self.step("actor", list(weights.values()), loss)
            for one in weights.values():
                one.requires_grad_(False)
            self.actor.update(running)
            lengths_back(self.actor)
            self.log_alpha.requires_grad_(True)
            entropy = -log_prob.detach().mean()
            loss = self.log_alpha.exp() * (entropy - self.target_entropy)
            self.step("temperature", [self.log_alpha], loss)
            self.log_alpha.requires_grad_(False)
        alpha = self.log_alpha.exp()
        following, log_prob = act(batch.next_obs, noises[rows], self.actor, None)
        seen = torch.cat([batch.obs, batch.next_obs])
        done = torch.cat([action, following])
        both = torch.cat([seen, done], 1)
        running = {}
        judged = [one[rows:].softmax(1) for one in logits_of(both, self.target, running)]
        self.target.update(running)
        target = torch.zeros(rows, 101, dtype=torch.float64)
        for row in range(rows):
            means = [float((one[row] * z).sum()) for one in judged]
            mass = judged[means.index(min(means))][row]
            for atom in range(101):
                later = z[atom] - alpha * log_prob[row]
                place = batch.reward[row] / scale + batch.discount[row] * later
                place = (place.clamp(-5, 5) + 5) / (z[1] - z[0])
                low = int(torch.floor(place))
                share = float(place) - low
                target[row, low] += mass[atom] * (1 - share)
                target[row, min(low + 1, 100)] += mass[atom] * share
        weights = self.learned(self.critic)
        for one in weights.values():
            one.requires_grad_(True)
        running = {}
        said = [one[:rows].log_softmax(1) for one in logits_of(both, self.critic, running)]
        loss = sum((-(target * one).sum(1)).mean() for one in said) / 2
        self.loss = float(loss.detach())
        self.step("critic", list(weights.values()), loss)
        for one in weights.values():
            one.requires_grad_(False)
        self.critic.update(running)
        lengths_back(self.critic)
        for name, value in self.learned(self.target).items():
            value.mul_(0.99).add_(0.01 * self.critic[name])
        self.updates += 1


def test_updates_are_those_of_the_formulas(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three updates, two of them with the actor, in float64."""
    algorithm = made(decay_steps=20, final_learning_rate=1e-3)
    learned = {
        "actor_optimizer": algorithm.actor,
        "critic_optimizer": algorithm.critic,
        "temperature_optimizer": algorithm.temperature,
    }
    for name, part in learned.items():
        setattr(algorithm, name, Adam(part.double().parameters(), 0.0))
    algorithm.target.double()
    # What the returns of three environments were: 2, and of the second 2 + 0.99 * 30.
    for reward in ([2.0, 30.0, 2.0], [2.0, 2.0, 2.0]):
        ended = torch.tensor([True, False, True])
        algorithm.on_transition(torch.tensor(reward), ended, ended)
    largest = 2 + 0.99 * 30
    deviation = float(
        torch.tensor([2, 30, 2, 2, largest, 2], dtype=torch.float64).std(correction=0)
    )
    assert deviation > largest / 5  # so the other divisor is tested in test_categorical.py
    by_hand = ByHand(algorithm, (1e-2, 1e-3, 10))  # a decision of two steps
    for step in range(3):
        drawn = batch_of(algorithm, seed=step, count=6)
        batch = replace(
            drawn,
            **{
                name: getattr(drawn, name).double()
                for name in ("obs", "action", "next_obs", "reward", "discount")
            },
            valid=torch.ones_like(drawn.valid),
            whole=True,
        )
        noises = {count: torch.randn(count, 2, 2, dtype=torch.float64) for count in (6, 12)}
        monkeypatch.setattr(algorithm.actor, "sample_noise", noises.__getitem__)
        low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
        scaled = 2 * (batch.action - low) / (high - low) - 1
        metrics = algorithm.update(batch)
        by_hand.update(batch, scaled.flatten(1), noises, deviation)
        assert float(metrics["critic_loss"]) == pytest.approx(by_hand.loss, rel=1e-6)
        for part in ("actor", "critic", "target"):
            expected = getattr(by_hand, part)
            for name, value in getattr(algorithm, part).state_dict().items():
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(algorithm.temperature.log.detach(), by_hand.log_alpha)


# Acting.


def test_noise_is_held_by_its_law() -> None:
    torch.manual_seed(0)
    held = HeldNoise((3, 1, 2), 2.0, 16)
    drawn = torch.stack([held() for _ in range(20_000)])
    changed = (drawn[1:] != drawn[:-1]).flatten(1)
    assert bool((changed.any(1) == changed.all(1)).all())  # all environments at the same time
    starts = torch.cat([torch.zeros(1, dtype=torch.long), changed[:, 0].nonzero()[:, 0] + 1])
    lengths = starts.diff()
    assert int(lengths.max()) == 16
    found = torch.bincount(lengths, minlength=17)[1:] / len(lengths)
    law = torch.arange(1.0, 17) ** -2
    assert float((found - law / law.sum()).abs().max()) < 0.01
    # Each of them is standard normal.
    fresh = drawn[starts]
    assert abs(float(fresh.mean())) < 0.02 and abs(float(fresh.std()) - 1) < 0.02


def test_acting_holds_the_noise_of_each_environment() -> None:
    algorithm = made()
    obs = torch.randn(1, 5).expand(3, 5)
    algorithm.held_noise.left.zero_()
    with torch.no_grad():
        actions = [algorithm.explore(obs, warmup=False)[0] for _ in range(40)]
    assert not torch.equal(actions[0][0], actions[0][1])  # each has its own
    same = [torch.equal(*pair) for pair in zip(actions, actions[1:], strict=False)]
    assert 5 < sum(same) < 35
    alone = made(longest_hold=1)
    fresh = [alone.explore(obs, warmup=False)[0] for _ in range(10)]
    assert not any(torch.equal(*pair) for pair in zip(fresh, fresh[1:], strict=False))


def test_updates_and_warm_up_do_not_advance_the_held_noise(batch_of: BatchOf) -> None:
    algorithm = made()
    algorithm.explore(torch.randn(3, 5), warmup=False)
    before = copy.deepcopy(algorithm.held_noise.state_dict())
    algorithm.update(batch_of(algorithm))  # with chunks that were cut, which go on as the actor
    algorithm.explore(torch.randn(3, 5), warmup=True)
    after = algorithm.held_noise.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert set(before) == {"noise", "left"}


def test_a_deviation_whose_square_is_0_is_refused() -> None:
    with pytest.raises(TrimtabError, match="target_std=1e-300: must be at least"):
        made(target_std=1e-300)
    assert math.isfinite(made(target_std=1e-9).target_entropy)
