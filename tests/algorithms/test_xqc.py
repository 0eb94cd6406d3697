"""XQC against the published code's formulas in float64, and that it learns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.off_policy.xqc import XQC
from trimtab.benchmarks.contracts.methods import rebuilt, written
from trimtab.policies.networks.batch_norm import BatchNorm
from trimtab.policies.networks.unit import UnitPerceptron
from trimtab.types import Batch, PolicySpec

BatchOf = Callable[..., Batch]
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[str, Any] = {
    "actor_width": 8, "critic_width": 12, "layers": 2, "learning_rate": 1e-2, "atoms": 21,
}  # fmt: skip


def made(**settings: Any) -> XQC:
    torch.manual_seed(0)
    return XQC(Setup(SPEC, num_envs=3), **{**SMALL, **settings})


# The published code, on weights by name.


def network_of(
    x: Tensor, state: dict[str, Tensor], start: str, running: dict[str, Tensor] | None
) -> Tensor:
    """A perceptron of two layers; with ``running`` by the batch, whose statistics go there."""

    def normalised(x: Tensor, name: str) -> Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        if running is not None:
            rows, own_mean = len(x), x.sum(0) / len(x)
            own = ((x - own_mean) ** 2).sum(0) / rows
            running[f"{name}.running_mean"] = (0.99 * mean + 0.01 * own_mean).detach()
            unbiased = own * rows / (rows - 1)
            running[f"{name}.running_var"] = (0.99 * variance + 0.01 * unbiased).detach()
            mean, variance = own_mean, own
        scaled = (x - mean) / (variance + 0.001).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    x = normalised(x, f"{start}norms.0")
    for number in range(2):
        x = x @ state[f"{start}layers.{number}.weight"].T
        x = torch.relu(normalised(x, f"{start}norms.{number + 1}"))
    return x @ state[f"{start}output.weight"].T + state[f"{start}output.bias"]


def drawn(
    obs: Tensor, noise: Tensor, state: dict[str, Tensor], running: dict[str, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Squashed actions ``[B, D]`` and their log-densities."""
    mean, log_std = network_of(obs, state, "network.", running).chunk(2, 1)
    log_std = torch.clip(log_std, -10, 2)
    raw = mean + torch.exp(log_std) * noise
    normal = torch.distributions.Normal(mean, torch.exp(log_std)).log_prob(raw)
    return torch.tanh(raw), (normal - torch.log(1 - torch.tanh(raw) ** 2)).sum(1)


def norm_network(state: dict[str, Tensor]) -> None:
    for value in state.values():
        if value.ndim == 2:
            value.div_(value.norm(dim=1, keepdim=True))


class ByHand:
    """XQC with torch's own Adam, in float64."""

    z = torch.linspace(-5, 5, 21, dtype=torch.float64)

    def __init__(self, algorithm: XQC, length: int) -> None:
        parts = (algorithm.actor, algorithm.critic, algorithm.target)
        self.actor, self.critic, self.target = (
            {name: value.clone() for name, value in part.state_dict().items()} for part in parts
        )
        self.log_alpha = algorithm.temperature.log.detach().clone()
        self.length, self.updates = length, 0
        self.optimizers: dict[str, torch.optim.Adam] = {}
        self.steps = dict.fromkeys(("actor", "critic", "temperature"), 0)

    @staticmethod
    def learned(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: value.requires_grad_(True)
            for name, value in state.items()
            if name.endswith((".weight", ".bias")) and not name.startswith("normalizer")
        }

    def step(self, name: str, weights: list[Tensor], loss: Tensor) -> None:
        progress = min(self.steps[name] / self.length, 1.0)
        optimizer = self.optimizers.setdefault(name, torch.optim.Adam(weights))
        optimizer.param_groups[0]["lr"] = 1e-2 + (1e-3 - 1e-2) * progress
        for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = slope
        with torch.no_grad():
            optimizer.step()
        for weight in weights:
            weight.requires_grad_(False)
        self.steps[name] += 1

    def values(self, x: Tensor, state: dict[str, Tensor]) -> list[Tensor]:
        """Expected values by the running statistics."""
        found = [network_of(x, state, f"members.{number}.", None) for number in range(2)]
        return [(torch.softmax(one, 1) * self.z).sum(1) for one in found]

    def update(
        self, batch: Batch, action: Tensor, noises: list[Tensor], deviation: float
    ) -> tuple[float, float]:
        rows, alpha = len(batch.reward), self.log_alpha.exp()
        obs, next_obs = batch.obs, batch.next_obs
        assert isinstance(obs, Tensor) and isinstance(next_obs, Tensor)
        following, log_prob = drawn(next_obs, noises[0].flatten(1), self.actor, None)
        both = torch.cat([torch.cat([obs, action], 1), torch.cat([next_obs, following], 1)])
        said, running = [], {}
        for number in range(2):
            logits = network_of(both, self.target, f"members.{number}.", running)[rows:]
            said.append(torch.softmax(logits, 1))
        self.target.update(running)
        target = torch.zeros(rows, 21, dtype=torch.float64)
        for row in range(rows):
            means = [float((one[row] * self.z).sum()) for one in said]
            mass = said[means.index(min(means))][row]
            for atom in range(21):
                later = self.z[atom] - alpha * log_prob[row]
                place = batch.reward[row] / deviation + batch.discount[row] * later
                place = (place.clamp(-5, 5) + 5) / 0.5
                lower = min(int(torch.floor(place)), 19)
                target[row, lower] += mass[atom] * (lower + 1 - place)
                target[row, lower + 1] += mass[atom] * (place - lower)
        weights, running, loss = self.learned(self.critic), {}, torch.zeros(())
        for number in range(2):
            logits = network_of(both, self.critic, f"members.{number}.", running)[:rows]
            loss = loss - (target * torch.log_softmax(logits, 1)).sum(1).mean()
        critic_loss = loss.item()
        self.step("critic", list(weights.values()), loss)
        self.critic.update(running)
        norm_network(self.critic)
        for name in weights:
            self.target[name].mul_(0.995).add_(0.005 * self.critic[name])

        weights, running = self.learned(self.actor), {}
        tried, log_prob = drawn(obs, noises[1].flatten(1), self.actor, running)
        values = self.values(torch.cat([obs, tried], 1), self.critic)
        loss = (alpha * log_prob - torch.minimum(*values)).mean()
        actor_loss = loss.item()
        if self.updates % 3 == 0:
            self.step("actor", list(weights.values()), loss)
            self.log_alpha.requires_grad_(True)
            entropy = -log_prob.detach().mean()
            self.step("temperature", [self.log_alpha], self.log_alpha.exp() * (entropy + 2.0))
        for weight in weights.values():
            weight.requires_grad_(False)
        self.actor.update(running)  # of every batch, also where nothing is learned
        norm_network(self.actor)
        self.updates += 1
        return critic_loss, actor_loss


def test_updates_are_those_of_the_published_code(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five updates, two of them with the actor."""
    algorithm = made(decay_steps=20, final_learning_rate=1e-3)
    for name in ("actor", "critic", "temperature"):
        weights = getattr(algorithm, name).double().parameters()
        setattr(algorithm, f"{name}_optimizer", Adam(weights, 0.0))
    algorithm.target.double()
    for reward in ([2.0, 30.0, 2.0], [2.0, 2.0, 2.0]):  # the second one's episode goes on
        ended = torch.tensor([True, False, True])
        algorithm.on_transition(torch.tensor(reward), ended, ended)
    returns = torch.tensor([2, 30, 2, 2, 2 + 0.99 * 30, 2], dtype=torch.float64)
    deviation = math.sqrt(float(returns.var(correction=0)) + 1e-8)
    by_hand = ByHand(algorithm, 20)  # two updates for each of ten decisions of two steps
    for step in range(5):
        made_up = batch_of(algorithm, seed=step, count=6)
        fields = ("obs", "action", "next_obs", "reward", "discount")
        doubled = {name: getattr(made_up, name).double() for name in fields}
        whole = torch.ones_like(made_up.valid)
        batch = replace(made_up, **doubled, valid=whole, whole=True)
        noises = [torch.randn(6, 2, 2, dtype=torch.float64) for _ in range(2)]
        left = list(noises)
        monkeypatch.setattr(algorithm.actor, "sample_noise", lambda rows, left=left: left.pop(0))
        low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
        chunk = batch.action.flip(0)  # as if episodes had cut the stored ones
        monkeypatch.setattr(algorithm, "continue_chunks", lambda data, chunk=chunk: chunk)
        scaled = 2 * (chunk - low) / (high - low) - 1
        metrics = algorithm.update(batch)
        critic_loss, actor_loss = by_hand.update(batch, scaled.flatten(1), noises, deviation)
        assert float(metrics["critic_loss"]) == pytest.approx(critic_loss, rel=1e-6)
        if step % 3 == 0:
            assert float(metrics["actor_loss"]) == pytest.approx(actor_loss, rel=1e-6)
        for part in ("actor", "critic", "target"):
            expected = getattr(by_hand, part)
            for name, value in getattr(algorithm, part).state_dict().items():
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(algorithm.temperature.log.detach(), by_hand.log_alpha)
    assert by_hand.steps == {"actor": 2, "critic": 5, "temperature": 2}


def test_rows_keep_their_length_and_all_else_is_free(batch_of: BatchOf) -> None:
    algorithm = made(learning_rate=3e-2)
    for step in range(4):
        algorithm.update(batch_of(algorithm, seed=step))
    networks = [
        one
        for part in (algorithm.actor, algorithm.critic)
        for one in part.modules()
        if isinstance(one, UnitPerceptron)
    ]
    assert len(networks) == 3
    for network in networks:
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                lengths = layer.weight.norm(dim=1)
                torch.testing.assert_close(lengths, torch.ones_like(lengths))
            if isinstance(layer, BatchNorm):
                both = torch.cat([layer.weight, layer.bias]).detach()
                assert abs(float(both.norm()) - math.sqrt(len(layer.bias))) > 1e-4
        assert network.output.bias.abs().max() > 0
    behind = algorithm.target.members[0]
    assert isinstance(behind, UnitPerceptron)
    assert (behind.layers[0].weight.norm(dim=1) < 1 - 1e-6).any()  # type: ignore[operator]


def test_it_begins_as_published() -> None:
    algorithm = XQC(Setup(SPEC), decay_steps=1000)
    shapes = [
        [tuple(one.weight.shape) for one in part.modules() if isinstance(one, nn.Linear)]
        for part in (algorithm.actor, algorithm.critic.members[1])
    ]
    assert shapes == [
        [(256, 5), (256, 256), (256, 256), (256, 256), (8, 256)],
        [(512, 9), (512, 512), (512, 512), (512, 512), (101, 512)],
    ]
    assert algorithm.target_entropy == -2 and algorithm.rate(1) == pytest.approx(3e-4)
    algorithm.count.updates += 1000  # two for each of 500 decisions of two steps: the end
    assert float(algorithm.rate(1)) == pytest.approx(3e-5)
    assert float(algorithm.rate(3)) == pytest.approx(2.1e-4)  # a third of the way


def test_it_warms_up_with_uniform_actions() -> None:
    actions, _ = made().explore(torch.zeros(4000, 5), warmup=True)
    scaled = (actions - torch.tensor([0.0, 0.75])) / torch.tensor([1.0, 1.25])
    for low in (-1, -1 / 3, 1 / 3):
        third = ((scaled > low) & (scaled < low + 2 / 3)).float().mean((0, 1))
        assert (third - 1 / 3).abs().max() < 0.03


def test_an_export_acts_by_running_statistics(batch_of: BatchOf) -> None:
    algorithm = made()
    for step in range(3):
        algorithm.update(batch_of(algorithm, seed=step))
    policy, obs = algorithm.policy, torch.randn(6, 5)
    noise = policy.sample_noise(6)
    with torch.no_grad():
        together = policy.train()(obs, noise)
        alone = torch.cat([policy(obs[i : i + 1], noise[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(alone, together)
    assert "onnx" in written(rebuilt(policy, SPEC))
    before = copy.deepcopy(policy.state_dict())
    policy.act(obs)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_solves_a_point_mass() -> None:
    """As SAC does in its tests."""
    sac = load_module(Path(__file__).with_name("test_sac.py"))
    torch.manual_seed(0)
    algorithm = XQC(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), num_envs=16, discount=0.9), actor_width=32,
        critic_width=64, layers=2, learning_rate=3e-3, batch_size=128, tau=0.02, actor_every=1,
    )  # fmt: skip
    rows: list[tuple[Tensor, ...]] = []
    for episode in range(25):
        mass = sac.PointMass(16)
        for step in range(20):
            obs = mass.x
            action, _ = algorithm.explore(obs, warmup=episode < 5)
            rows.append((obs, action, mass.step(action), mass.x))
            algorithm.on_transition(rows[-1][2], *[torch.full((16,), step == 19)] * 2)
        if episode < 5:
            continue
        stored = [torch.cat(column) for column in zip(*rows, strict=True)]
        for _ in range(20):
            chosen = torch.randint(len(stored[0]), (128,))
            obs, action, reward, next_obs = (column[chosen] for column in stored)
            whole = torch.ones(128, 1, dtype=torch.bool)
            algorithm.update(Batch(obs, action, reward, next_obs, torch.full((128,), 0.9), whole))
    assert sac.cost(None) > 0.8
    assert sac.cost(algorithm) < 0.1
