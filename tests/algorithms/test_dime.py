"""DIME against the published code's formulas in float64; the cost of its paths; what it keeps."""

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
from trimtab.algorithms.off_policy.dime import DIME
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.controlled_diffusion import ControlledDiffusionPolicy
from trimtab.policies.networks.renormed import RenormedPerceptron
from trimtab.types import Batch, PolicySpec

small = load_module(Path(__file__).with_name("small.py"))
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[str, Any] = {
    "hidden": (12, 8), "critic_hidden": (10, 9), "atoms": 21, "value_bound": 5.0,
    "diffusion_steps": 3,
}  # fmt: skip
LINE = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
BatchOf = Callable[..., Batch]


def made(**settings: Any) -> DIME:
    torch.manual_seed(0)
    algorithm = DIME(Setup(SPEC, num_envs=3, discount=0.9), **{**SMALL, **settings})
    stir(algorithm.actor)
    return algorithm


def stir(actor: ControlledDiffusionPolicy, size: float = 0.3) -> None:
    """Give a policy's weights, of which some begin at almost 0, values that matter."""
    for weight in actor.parameters():
        weight.data.add_(size * torch.randn_like(weight))


# An independent reading of the published code.


def doubled(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.detach().double().requires_grad_() for name, value in module.named_parameters()
    }


def dense(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def normal(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-densities of rows, all constants included."""
    std = std.expand_as(x)
    return (-0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)


def path(
    weights: dict[str, Tensor], obs: Tensor, noise: Tensor, steps: int, layers: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions, running costs and terminal costs, as the code names them, with full densities."""
    prior = torch.tensor(2.5, dtype=torch.float64)
    width = len(weights["phase"])
    frequency = torch.linspace(0.1, 100, width, dtype=torch.float64)
    x = prior * noise[:, 0]
    terminal = normal(x, torch.zeros_like(x), prior)
    log_ratio = torch.zeros(len(obs), dtype=torch.float64)
    for step in range(steps):
        t = (steps - step) / steps
        shrink = 0.99 * math.cos(0.5 * math.pi * (1.008 - t) / 1.008) ** 2 + 0.01
        dt = (weights["raw_step"].exp() + 1).log() * shrink
        eta = dt / (weights["raw_friction"].exp() + 1).log()
        scale = (2 * eta).sqrt()
        angle = frequency * step + weights["phase"]
        features = torch.cat([angle.sin(), angle.cos()])
        time = dense(weights, "time.2", gelu(dense(weights, "time.0", features)))
        read = [dense(weights, "point", x), dense(weights, "observation", obs)]
        h = torch.cat([*read, time.expand(len(obs), -1)], dim=1)
        for layer in range(layers):
            h = torch.relu(dense(weights, f"network.{2 * layer}", h))
        control = dense(weights, f"network.{2 * layers}", h)
        forward = x + eta * (-x / prior**2 + control)
        new = forward + scale * noise[:, step + 1]
        backward = new + eta * (-new / prior**2)
        log_ratio = log_ratio + normal(x, backward, scale) - normal(new, forward, scale)
        x = new
    slope = torch.log(1 - torch.tanh(x) ** 2).sum(1)
    return torch.tanh(x), -(log_ratio + slope), terminal


def renormed(
    weights: dict[str, Tensor], x: Tensor, statistics: list[tuple[Tensor, Tensor]] | None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Logits by the batch's statistics, or by given ones; and the batch's statistics."""
    seen = []
    for layer in range(3):
        mean, variance = x.mean(0), x.var(0, correction=0)
        seen.append((mean.detach(), variance.detach()))
        if statistics is not None:
            mean, variance = statistics[layer]
        x = (x - mean) / (variance + 1e-3).sqrt()
        x = x * weights[f"norms.{layer}.weight"][0] + weights[f"norms.{layer}.bias"][0]
        x = dense(weights, f"layers.{layer}", x)
        if layer < 2:
            x = torch.relu(x)
    return x, seen


def split(atoms: Tensor, mass: Tensor) -> Tensor:
    """The projection on -5 to 5 in steps of a half, one atom after another."""
    found = torch.zeros(21, dtype=torch.float64)
    for atom, part in zip(atoms.tolist(), mass.tolist(), strict=True):
        place = (min(max(atom, -5.0), 5.0) + 5.0) / 0.5
        lower = min(math.floor(place), 19)
        found[lower] += part * (lower + 1 - place)
        found[lower + 1] += part * (place - lower)
    return found


@pytest.mark.parametrize("scaled", [True, False])
def test_an_update_is_that_of_the_published_formulas(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch, scaled: bool
) -> None:
    rows, rate = 12, 1e-3
    algorithm = made(
        actor_every=1, learning_rate=rate, initial_temperature=0.3, normalize_rewards=scaled,
        max_gradient=0.02,
    )  # fmt: skip
    for _ in range(20):
        algorithm.on_transition(torch.randn(3), *[torch.rand(3) < 0.2] * 2)
    batch = batch_of(algorithm, count=rows, seed=7)
    batch = replace(batch, valid=torch.ones_like(batch.valid), whole=True)
    divisor = 1.0
    if scaled:
        scale = algorithm.reward_scale
        assert scale is not None
        divisor = max(math.sqrt(float(scale.variance) + 1e-8), float(scale.largest) / 5.0)
        assert abs(divisor - 1) > 0.05
    middle, half = torch.tensor([0.0, 0.75]), torch.tensor([1.0, 1.25])
    obs, next_obs = batch.obs.double(), batch.next_obs.double()  # type: ignore[union-attr]
    chunk = batch.action.flip(0)  # as if episodes had cut the stored ones
    monkeypatch.setattr(algorithm, "continue_chunks", lambda data: chunk)
    stored = ((chunk - middle) / half).flatten(1).double()
    torch.manual_seed(9)
    noises = [torch.randn(rows, 4, 2, 2).flatten(2).double() for _ in range(2)]
    actor = doubled(algorithm.actor)
    critics = [doubled(one) for one in algorithm.critic.members]
    z = torch.linspace(-5, 5, 21, dtype=torch.float64)

    action, running, terminal = (
        one.detach() for one in path(actor, next_obs, noises[0], steps=3, layers=2)
    )
    x = torch.cat([torch.cat([obs, stored], 1), torch.cat([next_obs, action], 1)])
    both = [renormed(weights, x, None) for weights in critics]
    critic_loss = torch.zeros((), dtype=torch.float64)
    for row in range(rows):
        soft = z - 0.3 * (running[row] + terminal[row])
        atoms = float(batch.reward[row]) / divisor + float(batch.discount[row]) * soft
        targets = [split(atoms, torch.softmax(one[0][rows + row], 0).detach()) for one in both]
        target = (targets[0] + targets[1]) / 2
        for logits, _ in both:
            mass = torch.softmax(logits[row], 0)
            cross = -(target * mass.log()).sum()
            critic_loss = critic_loss + (cross + 0.005 * (mass * mass.log()).sum()) / rows
    slopes = [list(torch.autograd.grad(critic_loss, [*one.values()], retain_graph=True))
              for one in critics]  # fmt: skip
    # After the step the critics are asked by their running statistics, a hundredth of the batch's.
    stepped, kept = [], []
    for weights, one, (_, seen) in zip(critics, slopes, both, strict=True):
        moved = [
            value.detach() - rate * slope / (slope.abs() + 1e-8)
            for value, slope in zip(weights.values(), one, strict=True)
        ]
        stepped.append(dict(zip(weights, moved, strict=True)))
        kept.append([(0.01 * mean, 0.99 + 0.01 * variance) for mean, variance in seen])
    action, running, terminal = path(actor, obs, noises[1], steps=3, layers=2)
    x = torch.cat([obs, action], 1)
    values = [
        (torch.softmax(renormed(weights, x, own)[0], 1) * z).sum(1)
        for weights, own in zip(stepped, kept, strict=True)
    ]
    actor_loss = (0.3 * (running + terminal) - sum(values) / 2).mean()
    expected = torch.autograd.grad(actor_loss, [*actor.values()])
    sizes = torch.cat([one.flatten().abs() for one in expected])
    assert (sizes > 0.02).any() and (sizes < 0.02).any()

    torch.manual_seed(9)
    metrics = algorithm.update(batch)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-5)
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-3)
    bound = -(running + terminal).mean().item()
    assert float(metrics["entropy_bound"]) == pytest.approx(bound, rel=1e-4)
    flat = [one for member in slopes for one in member]
    # Adam's first decay is a half, so its first moment is half of the gradient.
    for moment, slope in zip(algorithm.critic_optimizer.first_moment, flat, strict=True):
        torch.testing.assert_close(2 * moment.double(), slope, atol=1e-5, rtol=1e-3)
    for moment, slope in zip(algorithm.actor_optimizer.first_moment, expected, strict=True):
        slope = slope.clamp(-0.02, 0.02)
        torch.testing.assert_close(2 * moment.double(), slope, atol=2e-4, rtol=1e-2)
    (moment,) = algorithm.temperature_optimizer.first_moment
    slope = 0.3 * (16 - running.mean().item())  # 4 for each of 4 numbers; by the logarithm of alpha
    assert 10 * float(moment) == pytest.approx(slope, rel=1e-3)


def test_the_actor_learns_every_third_update(batch_of: BatchOf) -> None:
    algorithm = made()
    for number in range(6):
        before = copy.deepcopy(algorithm.state_dict())
        algorithm.update(batch_of(algorithm, seed=number))
        after = algorithm.state_dict()
        for part, always in (("critic", True), ("actor", False), ("temperature", False)):
            moved = any(not torch.equal(after[part][k], v) for k, v in before[part].items())
            assert moved == (always or number % 3 == 2)


# The cost of paths.


@pytest.fixture(scope="module")
def paths() -> tuple[Tensor, Tensor]:
    """Actions and costs of many paths of a policy on a line, in one state, in float64."""
    torch.manual_seed(1)
    policy = ControlledDiffusionPolicy(
        LINE, steps=6, hidden=(16, 16), initial_std=1.0, step_size=0.3
    )
    stir(policy, 0.15)
    policy.double()
    obs = torch.tensor([[0.3, -0.7]], dtype=torch.float64).expand(50_000, -1)
    with torch.no_grad():
        noise = torch.randn(50_000, 7, 1, 1, dtype=torch.float64)
        action, cost, _ = policy.sample_with_cost(obs, noise)
    return action[:, 0, 0], cost


def test_costs_are_those_of_densities(paths: tuple[Tensor, Tensor]) -> None:
    """The mean of exp(-cost) over paths that end in a set is the set's volume, whatever f is."""
    action, cost = paths
    for low, high in ((-1.0, 1.0), (-1.0, -0.5), (-0.5, 0.0), (0.0, 0.5), (0.5, 1.0)):
        weight = (-cost).exp() * ((action >= low) & (action < high))
        error = float(weight.std()) / math.sqrt(len(weight))
        assert error < 0.02
        assert abs(float(weight.mean()) - (high - low)) < 4 * error


def test_mean_costs_bound_the_density(paths: tuple[Tensor, Tensor]) -> None:
    action, cost = paths
    edges = torch.linspace(-1, 1, 21, dtype=torch.float64)
    entropy = gap = 0.0
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (action >= low) & (action < high)
        share = float(inside.double().mean())
        if share < 0.005:
            continue
        log_density = math.log(share / 0.1)
        assert float(cost[inside].mean()) > log_density - 0.05
        gap = max(gap, float(cost[inside].mean()) - log_density)
        entropy -= share * log_density
    assert gap > 0.05  # it is a bound, not the density
    assert -float(cost.mean()) < entropy + 0.02


def test_without_control_small_steps_lead_from_the_prior_to_itself() -> None:
    """Then q is pi backwards, and a path costs what the prior says of its end."""
    torch.manual_seed(2)
    policy = ControlledDiffusionPolicy(LINE, steps=50, hidden=(8,), step_size=0.004).double()
    noise = torch.randn(500, 51, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        end, _ = policy.walk(torch.zeros(500, 2, dtype=torch.float64), noise)
        _, cost, prior = policy.sample_with_cost(torch.zeros(500, 2, dtype=torch.float64), noise)
    deviation = torch.tensor(2.5, dtype=torch.float64)
    expected = normal(end, torch.zeros_like(end), deviation)
    slope = torch.log(1 - torch.tanh(end) ** 2)[:, 0]
    torch.testing.assert_close(cost + slope, expected, atol=2e-3, rtol=0)
    assert (expected - prior).abs().max() > 0.1  # the ends are others than the starts


def test_gradients_go_through_the_whole_path() -> None:
    torch.manual_seed(3)
    policy = ControlledDiffusionPolicy(LINE, steps=4, hidden=(6, 6)).double()
    stir(policy)
    obs, noise = torch.randn(5, 2).double(), torch.randn(5, 5, 1, 1).double()

    def loss() -> Tensor:
        action, cost, _ = policy.sample_with_cost(obs, noise)
        return cost.mean() + 3 * action.mean()

    parameters = dict(policy.named_parameters())
    slopes = dict(zip(parameters, torch.autograd.grad(loss(), [*parameters.values()]), strict=True))
    assert all(slope.abs().max() > 0 for slope in slopes.values())
    for name, weight in parameters.items():
        place = int(slopes[name].abs().argmax())
        with torch.no_grad():
            values = []
            for step in (1e-6, -2e-6):
                weight.view(-1)[place] += step
                values.append(float(loss()))
            weight.view(-1)[place] += 1e-6
        measured = (values[0] - values[1]) / 2e-6
        assert measured == pytest.approx(float(slopes[name].view(-1)[place]), rel=1e-4), name


def test_its_start_is_the_published_one() -> None:
    policy = ControlledDiffusionPolicy(LINE)
    sizes = policy.step_sizes[:, 0]
    assert sizes.shape == (16,) and sizes[0].item() == pytest.approx(0.1, rel=1e-3)
    assert sizes[8].item() == pytest.approx(
        0.1 * (0.99 * math.cos(math.pi * 0.508 / 2.016) ** 2 + 0.01)
    )
    assert (sizes.diff() < 0).all()
    obs, noise = torch.randn(4000, 2), torch.randn(4000, 17, 1, 1)
    end, _ = policy.walk(obs, noise)
    assert end.std().item() == pytest.approx(2.5, rel=0.06)  # nothing steers at first
    algorithm = DIME(Setup(SPEC))
    member = algorithm.critic.members[0]
    assert isinstance(member, RenormedPerceptron)
    assert [tuple(one.weight.shape) for one in member.layers] == [
        (2048, 9), (2048, 2048), (101, 2048)
    ]  # fmt: skip
    assert algorithm.target_cost == 16 and float(algorithm.temperature()) == 1
    assert algorithm.critic.support.tolist() == pytest.approx(torch.linspace(-10, 10, 101).tolist())


def test_a_first_step_may_have_any_size_and_the_network_needs_a_layer() -> None:
    for size in (1e-9, 0.1, 1e4):
        policy = ControlledDiffusionPolicy(LINE, steps=1, step_size=size)
        assert policy.step_sizes[0].item() == pytest.approx(size, rel=1e-3)
    with pytest.raises(TrimtabError, match=r"hidden=\[\]: the network needs a hidden layer"):
        DIME(Setup(SPEC), hidden=())


def test_it_warms_up_with_uniform_actions() -> None:
    algorithm = DIME(Setup(small.RUN), **SMALL)
    actions, stored = algorithm.explore(torch.zeros(4000, 3), warmup=True)
    assert actions.shape == (4000, 2, 2) and not stored
    third = (actions / small.SIZE).abs().flatten(0, 1) < 1 / 3
    assert (third.float().mean(0) - 1 / 3).abs().max() < 0.03


def test_it_keeps_two_equally_good_actions() -> None:
    torch.manual_seed(0)
    algorithm = DIME(
        Setup(LINE), hidden=(32, 32), critic_hidden=(32, 32), diffusion_steps=5, step_size=0.2,
        initial_std=1.0, normalize_rewards=False, value_bound=5.0, learning_rate=3e-3,
        actor_every=1, initial_temperature=0.1, temperature_learning_rate=0.0,
    )  # fmt: skip
    # As other linear layers begin: the published start is almost 0 and takes thousands of updates.
    algorithm.actor.point.reset_parameters()
    algorithm.actor.observation.reset_parameters()
    for _ in range(400):
        obs = 2 * torch.rand(128, 2) - 1
        action = 2 * torch.rand(128, 1, 1) - 1
        reward = -8 * (action[:, 0, 0].abs() - 0.6).square()
        algorithm.update(small.bandit(obs, action, reward))
    action = algorithm.policy.act(2 * torch.rand(2000, 2) - 1)[:, 0, 0]
    above = float((action > 0).float().mean())
    good = float(((action.abs() - 0.6).abs() < 0.3).float().mean())
    assert 0.2 < above < 0.8
    assert good > 0.78  # 0.6 of uniform ones
