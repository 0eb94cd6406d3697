"""Diffusion policies from nothing: SDAC, QSM and DPMD by hand, in closed form, and learning."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from scipy import stats
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.dpmd import DPMD
from trimtab.algorithms.off_policy.qsm import QSM
from trimtab.algorithms.off_policy.sdac import SDAC, truncated_normal
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.types import Batch, PolicySpec

small = load_module(Path(__file__).with_name("small.py"))
SPEC = PolicySpec(3, 2, 2, (-1.0, -2.0), (1.0, 2.0))
ONE = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
SMALL: dict[str, Any] = {
    "hidden": (16, 16), "policy_hidden": (16, 16), "learning_rate": 3e-3,
    "policy_learning_rate": 3e-3, "train_steps": 6, "sampling_steps": 3,
}  # fmt: skip
METHODS = [SDAC, QSM, DPMD]


def made(kind: type[Any], spec: PolicySpec = SPEC, **keywords: Any) -> Any:
    torch.manual_seed(0)
    if kind is DPMD:
        keywords.setdefault("target_kl", 0.5)
    if kind is not QSM:
        keywords.setdefault("candidates", 5)
    return kind(Setup(spec), **{**SMALL, **keywords})


def few(count: int = 6) -> Batch:
    """Rows of two executed actions; every second row is an end, and nothing was cut."""
    generator = torch.Generator().manual_seed(5)
    return Batch(
        obs=torch.randn(count, 3, generator=generator),
        action=torch.tensor([1.0, 2.0]) * (2 * torch.rand(count, 2, 2, generator=generator) - 1),
        reward=torch.randn(count, generator=generator),
        next_obs=torch.randn(count, 3, generator=generator),
        discount=torch.tensor([0.9, 0.0] * count)[:count],
        valid=torch.ones(count, 2, dtype=torch.bool),
        whole=True,
    )


class Quadratic(nn.Module):
    """Two equal critics ``-k |a - m|^2 / 2``, the second one a constant higher."""

    def __init__(self, slope: float, middle: float) -> None:
        super().__init__()
        self.slope, self.middle = slope, middle

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        value = -self.slope * (action - self.middle).square().sum((-2, -1)) / 2
        return torch.stack([value, value + 1.0])

    def of_actions(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self(obs, actions)


@pytest.mark.parametrize(
    ("low", "high"),
    [(-1.0, 2.0), (-20.0, -4.0), (5.0, 30.0), (-0.01, 0.02), (2.0, 2.1), (-6.1, -6.0)],
)
def test_truncated_normals_are_those_of_scipy(low: float, high: float) -> None:
    chance = torch.linspace(0.001, 0.999, 999)
    found = truncated_normal(torch.tensor(low), torch.tensor(high), chance)
    assert found.min() >= low and found.max() <= high
    known = stats.truncnorm.ppf(chance.double().numpy(), low, high)
    np.testing.assert_allclose(np.sort(found.numpy()), known, atol=2e-5, rtol=2e-5)


def test_truncated_normals_far_out_are_finite() -> None:
    """Where floats have no share left, it is the bound that is nearer to 0."""
    low, high = torch.tensor([-90.0, 40.0]), torch.tensor([-50.0, 60.0])
    found = truncated_normal(low, high, torch.rand(9, 2))
    assert torch.equal(found, torch.tensor([-50.0, 40.0]).expand(9, 2))


def test_the_least_uniform_number_is_in_the_tail_that_it_stands_for() -> None:
    """Uniform numbers are 0 once in 17 million, and an update draws a hundred thousand of them."""
    low, high = torch.tensor([-40.0, -29.0, -3.0, 2.0]), torch.tensor([29.0, 40.0, 2.0, 30.0])
    first = truncated_normal(low, high, torch.tensor(0.0))
    next_one = truncated_normal(low, high, torch.tensor(2.0**-24))
    # Bounds whose middle is above 0 are mirrored.
    assert -14 < first[0] < next_one[0] < -5 and 14 > first[1] > next_one[1] > 5
    assert first[2] == -3.0 and first[3] > 5


@pytest.mark.parametrize("level", [1, 8, 15])
@pytest.mark.parametrize("middle", [0.3, -0.4])
def test_weighted_candidates_tend_to_the_posterior(level: int, middle: float) -> None:
    """The prior ``exp(Q / T)`` is a Gaussian far inside of the box, and so is the posterior."""
    precision, temperature = 150.0, 0.2
    algorithm = made(
        SDAC, ONE, candidates=100_000, temperature=temperature, train_steps=20, sampling_steps=2
    )
    algorithm.critic = Quadratic(precision * temperature, middle)
    share = float(algorithm.actor.alpha[level])
    signal, sigma = math.sqrt(share), math.sqrt(1 - share)
    noisy = signal * middle + sigma * torch.tensor([-0.7, 0.1, 0.6])[:, None, None]
    levels = torch.full((3,), level)
    reverse, weight = algorithm.weighted_candidates(torch.zeros(3, 1), noisy, levels)
    posterior = signal**2 / sigma**2 + precision
    clean = (signal * noisy / sigma**2 + precision * middle) / posterior
    assert clean.abs().max() + 5 / math.sqrt(posterior) < 1  # the box is far away
    wanted = (noisy - signal * clean) / sigma  # the noise that the policy is to predict
    found = -(weight[..., None, None] * reverse).sum(0)
    torch.testing.assert_close(found, wanted, atol=0.01, rtol=0)
    assert ((found + wanted).abs() > 0.1).any()  # with the other sign it would be elsewhere
    # The spread, too: the candidates are weighted draws of the posterior.
    moved = (noisy + sigma * reverse) / signal - clean
    variance = (weight[..., None, None] * moved.square()).sum(0) * posterior
    torch.testing.assert_close(variance, torch.ones(3, 1, 1), atol=0.05, rtol=0)


def critic_loss_by_hand(algorithm: SDAC, batch: Batch, following: Tensor) -> float:
    """The critics' loss of next actions, one row at a time."""
    normalizer, total = algorithm.actor.normalizer, 0.0
    with torch.no_grad():
        for row in range(len(batch)):
            one = slice(row, row + 1)
            scaled = normalizer.normalize_action(following[one])
            backup = batch.reward[row] + batch.discount[row] * min(
                algorithm.target(batch.next_obs[one], scaled).flatten()
            )
            stored = normalizer.normalize_action(batch.action[one])
            total += float((algorithm.critic(batch.obs[one], stored) - backup).square().sum())
    return total / len(batch)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("many", [1, 4])
def test_critic_loss_by_hand(kind: type[Any], many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, batch = made(kind, target_candidates=many, action_candidates=3), few()
    algorithm.update(batch)  # so that targets and critics differ
    noise = torch.randn(len(batch) * many, *algorithm.actor.noise_shape)
    monkeypatch.setattr(algorithm.actor, "sample_noise", lambda rows: noise)
    following = []
    for row in range(len(batch)):
        obs = batch.next_obs[row : row + 1]
        draws = []
        for place in range(many):
            with torch.no_grad():
                chunk = algorithm.actor(obs, noise[row * many + place][None])
                scaled = algorithm.actor.normalizer.normalize_action(chunk)
                draws.append((float(algorithm.critic(obs, scaled).min()), chunk))
        following.append(max(draws, key=lambda draw: draw[0])[1])
    expected = critic_loss_by_hand(algorithm, batch, torch.cat(following))
    assert float(algorithm.update(batch)["critic_loss"]) == pytest.approx(expected, rel=1e-4)


def test_policy_loss_by_hand() -> None:
    """Every candidate's noise by scipy's distribution, its weight and its error in loops."""
    algorithm, batch = made(SDAC, temperature=0.3), few()
    actor, count = algorithm.actor, 5
    action = actor.normalizer.normalize_action(batch.action)
    torch.manual_seed(3)
    level = torch.randint(6, (6,))
    noise, uniform = torch.randn_like(action), torch.rand(count, 6, 2, 2)
    total, effective = 0.0, 0.0
    for row in range(6):
        share = float(actor.alpha[level[row]])
        signal, sigma = math.sqrt(share), math.sqrt(1 - share)
        noisy = signal * action[row] + sigma * noise[row]
        reverse, value = torch.zeros(count, 2, 2), []
        for k in range(count):
            for i, j in np.ndindex(2, 2):
                low = (-signal - float(noisy[i, j])) / sigma
                high = (signal - float(noisy[i, j])) / sigma
                chance = float(uniform[k, row, i, j])
                chance = 1 - chance if low + high > 0 else chance
                reverse[k, i, j] = float(stats.truncnorm.ppf(chance, low, high))
            clean = (noisy + sigma * reverse[k]) / signal
            assert clean.abs().max() < 1 + 1e-4
            with torch.no_grad():
                both = algorithm.critic(batch.obs[row : row + 1], clean[None])
            value.append(float(both.min()) / 0.3)
        chances = np.exp(value) / np.exp(value).sum()
        time = level[row : row + 1] / 6
        with torch.no_grad():
            condition = actor.network.condition(batch.obs[row : row + 1])
            predicted = actor.network(noisy[None], time, condition)[0]
        for k in range(count):
            total += chances[k] * float((predicted + reverse[k]).square().mean()) / 6
        effective += math.exp(-float((chances * np.log(chances)).sum())) / 6
    torch.manual_seed(3)
    metrics = algorithm.update_policy(batch.obs, batch.obs, action)
    assert float(metrics["policy_loss"]) == pytest.approx(total, rel=1e-3)
    assert float(metrics["effective_candidates"]) == pytest.approx(effective, rel=1e-3)


@pytest.mark.parametrize("kind", METHODS)
def test_no_gradient_reaches_a_critic(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, batch = made(kind), few()
    losses: list[Tensor] = []
    step = algorithm.policy_optimizer.step

    def watched(loss: Tensor) -> None:
        critics = [*algorithm.critic.parameters()]
        found = torch.autograd.grad(loss, critics, allow_unused=True, retain_graph=True)
        assert all(one is None for one in found)
        losses.append(loss)
        step(loss)

    monkeypatch.setattr(algorithm.policy_optimizer, "step", watched)
    held = [copy.deepcopy(part.state_dict()) for part in (algorithm.critic, algorithm.target)]
    before = copy.deepcopy(algorithm.actor.state_dict())
    algorithm.update_policy(batch.obs, batch.obs, batch.action / small.SIZE)
    assert len(losses) == 1
    for part, was in zip((algorithm.critic, algorithm.target), held, strict=True):
        assert all(torch.equal(now, was[name]) for name, now in part.state_dict().items())
        assert all(weight.grad is None for weight in part.parameters())
    assert any(not torch.equal(now, before[k]) for k, now in algorithm.actor.state_dict().items())


@pytest.mark.parametrize("kind", METHODS)
def test_targets_follow_the_critics(kind: type[Any]) -> None:
    algorithm = made(kind, tau=0.3)
    before = copy.deepcopy(algorithm.target)
    algorithm.update(few())
    small.follows(algorithm.target, before, algorithm.critic, 0.3)


# Acting.


@pytest.mark.parametrize("kind", METHODS)
def test_the_label_says_how_many_draws_an_action_is_the_best_of(kind: type[Any]) -> None:
    several, single = made(kind, action_candidates=10), made(kind, action_candidates=1)
    assert several.policy.label == "diffusion, best of 10"
    assert single.policy.label == "diffusion"
    assert isinstance(several.policy, BestOfPolicy) and several.policy.base is several.actor
    assert several.policy.critic is several.critic
    assert isinstance(single.policy, DiffusionPolicy) and single.policy is single.actor
    assert kind(Setup(SPEC)).policy.label == "diffusion, best of 10"


def test_behaviour_is_the_best_of_its_own_number_of_draws_with_noise() -> None:
    algorithm = made(SDAC, behaviour_candidates=7, action_candidates=3)
    obs = torch.randn(1, 3).expand(400, 3)
    torch.manual_seed(1)
    best, _ = algorithm.explore(obs, warmup=False)
    algorithm.behaviour_candidates = 1
    torch.manual_seed(1)
    plain, _ = algorithm.explore(obs, warmup=False)

    def worth(chunk: Tensor) -> float:
        with torch.no_grad():
            return float(algorithm.critic(obs, chunk / small.SIZE).amin(0).mean())

    assert worth(best) > worth(plain)
    algorithm.exploration_noise = 0.05
    torch.manual_seed(1)
    moved = (algorithm.explore(obs, warmup=False)[0] - plain) / small.SIZE
    inside = (plain / small.SIZE).abs() < 0.8
    assert float(moved[inside].std()) == pytest.approx(0.05, rel=0.1)
    assert ((plain + moved * small.SIZE).abs() <= small.SIZE).all()


def test_settings_that_have_no_effect_are_refused() -> None:
    with pytest.raises(TrimtabError, match="algorithm.candidates: has no effect on QSM"):
        QSM(Setup(SPEC), candidates=3)
    with pytest.raises(TrimtabError, match="sampling_steps=7: must be from 1 to 6"):
        SDAC(Setup(SPEC), train_steps=6, sampling_steps=7)
    with pytest.raises(TrimtabError, match=r"target_kl=2.0: must be below log\(candidates\)"):
        DPMD(Setup(SPEC), candidates=7)
    DPMD(Setup(SPEC), candidates=8)


@pytest.mark.parametrize("kind", METHODS)
def test_a_denoiser_without_hidden_layers_is_refused(kind: type[Any]) -> None:
    with pytest.raises(TrimtabError, match=r"hidden=\[\]: a denoiser has at least one"):
        made(kind, policy_hidden=())


# QSM.


def test_the_noise_of_a_quadratic_is_known() -> None:
    algorithm = made(QSM, temperature=0.2, normalize_slope=False)
    algorithm.target = Quadratic(3.0, 0.25)
    noisy, level = torch.randn(6, 2, 2), torch.arange(6)
    slope = algorithm.slope(torch.zeros(6, 3), noisy)
    sigma = (1 - algorithm.actor.alpha).sqrt()[:, None, None]
    wanted = sigma * 3.0 * (noisy - 0.25) / 0.2
    torch.testing.assert_close(algorithm.noise_of(slope, level), wanted)


@pytest.mark.parametrize("normalized", [True, False])
def test_qsm_loss_by_hand(normalized: bool) -> None:
    """Slopes by finite differences of both target critics in 64 bits, errors in a loop."""
    algorithm, batch = made(QSM, temperature=0.5, normalize_slope=normalized), few()
    algorithm.update(batch)  # so that targets and critics differ
    action = batch.action / small.SIZE
    actor = algorithm.actor
    torch.manual_seed(3)
    level = torch.randint(6, (6,))
    noise = torch.randn_like(action)
    share = actor.alpha[level][:, None, None]
    noisy = share.sqrt() * action + (1 - share).sqrt() * noise
    exact, slope = copy.deepcopy(algorithm.target).double(), torch.zeros(6, 2, 2)
    for row, i, j in np.ndindex(6, 2, 2):
        step = torch.zeros(1, 2, 2, dtype=torch.float64)
        step[0, i, j] = 1e-6
        obs, point = batch.obs[row : row + 1].double(), noisy[row : row + 1].double()
        rise = exact(obs, point + step) - exact(obs, point - step)
        slope[row, i, j] = float(rise.mean()) / 2e-6
    size = float(slope.abs().mean())
    total = 0.0
    with torch.no_grad():
        for row in range(6):
            sigma = math.sqrt(1 - float(actor.alpha[level[row]]))
            wanted = -sigma * slope[row] / 0.5 / ((size + 1e-6) if normalized else 1.0)
            condition = actor.network.condition(batch.obs[row : row + 1])
            found = actor.network(noisy[row : row + 1], level[row : row + 1] / 6, condition)
            total += float((found[0] - wanted).square().mean()) / 6
    torch.manual_seed(3)
    metrics = algorithm.update_policy(batch.obs, batch.obs, action)
    assert float(metrics["policy_loss"]) == pytest.approx(total, rel=1e-4)
    assert float(metrics["slope"]) == pytest.approx(size, rel=1e-4)


# DPMD.


def test_equal_values_weigh_the_same() -> None:
    weight, divergence = made(DPMD).weights(torch.full((8, 3), -4.0))
    torch.testing.assert_close(weight, torch.full((8, 3), 1 / 8))
    torch.testing.assert_close(divergence, torch.zeros(3), atol=1e-6, rtol=0)


def solved(value: np.ndarray[Any, Any], target: float) -> float:
    """The temperature whose mean divergence over columns is the target, by bisection."""
    low, high = 1e-3, 1e3
    for _ in range(200):
        middle = math.sqrt(low * high)
        raised = np.exp((value - value.max(0)) / middle)
        weight = raised / raised.sum(0)
        entropy = -(weight * np.log(weight + 1e-300)).sum(0)
        low, high = (
            (middle, high) if (math.log(len(value)) - entropy).mean() > target else (low, middle)
        )
    return low


@pytest.mark.parametrize("target", [0.3, 2.0])
def test_temperature_meets_its_divergence(target: float, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, batch = (
        made(DPMD, candidates=16, target_kl=target, temperature_learning_rate=0.02),
        few(),
    )
    value = 2 * torch.randn(16, 6)
    monkeypatch.setattr(algorithm.critic, "of_actions", lambda obs, act: torch.stack([value] * 2))
    monkeypatch.setattr(algorithm, "proposals", lambda obs: torch.zeros(16, 6, 2, 2))
    for _ in range(500):
        metrics = algorithm.update_policy(batch.obs, batch.obs, batch.action)
    assert float(metrics["kl"]) == pytest.approx(target, abs=1e-3)
    known = solved(value.double().numpy(), target)
    assert algorithm.learned_temperature().item() == pytest.approx(known, rel=5e-3)


def test_dpmd_loss_by_hand() -> None:
    algorithm, batch = made(DPMD, temperature=0.4, max_error=0.5), few()
    algorithm.update(batch)
    algorithm.update(batch)  # so that the old policy and the present one differ
    actor, temperature = algorithm.actor, algorithm.learned_temperature().item()
    torch.manual_seed(3)
    path = torch.randn(30, *actor.noise_shape)
    added = torch.randn(30, 2, 2)
    level, noise = torch.randint(6, (30,)), torch.randn(30, 2, 2)
    total, divergence, clipped = 0.0, 0.0, 0
    with torch.no_grad():
        for row in range(6):
            obs = batch.obs[row : row + 1]
            value, error = [], []
            for k in range(5):
                place = 6 * k + row
                drawn = algorithm.old(obs, path[place][None]) / small.SIZE
                clean = (drawn + 0.2 * added[place]).clamp(-1, 1)
                value.append(float(algorithm.critic(obs, clean).mean()) / temperature)
                share = float(actor.alpha[level[place]])
                noisy = math.sqrt(share) * clean + math.sqrt(1 - share) * noise[place]
                condition = actor.network.condition(obs)
                found = actor.network(noisy, level[place : place + 1] / 6, condition)
                squares = (found[0] - noise[place]).square().flatten().tolist()
                clipped += sum(one > 0.5 for one in squares)
                error.append(sum(min(one, 0.5) for one in squares) / 4)
            chances = np.exp(value) / np.exp(value).sum()
            total += float((chances * error).sum()) / 6
            divergence += (math.log(5) + float((chances * np.log(chances)).sum())) / 6
    assert 0 < clipped < 120
    torch.manual_seed(3)
    metrics = algorithm.update_policy(batch.obs, batch.obs, batch.action)
    assert float(metrics["policy_loss"]) == pytest.approx(total, rel=1e-4)
    assert float(metrics["kl"]) == pytest.approx(divergence, rel=1e-3)
    assert float(metrics["temperature"]) == pytest.approx(temperature)


def test_the_old_policy_is_renewed_every_few_updates() -> None:
    algorithm, batch = made(DPMD, old_every=3), few()

    def same() -> bool:
        held, now = algorithm.old.state_dict(), algorithm.actor.state_dict()
        return all(torch.equal(held[name], now[name]) for name in now)

    renewed = []
    for _ in range(7):
        algorithm.update(batch)
        renewed.append(same())
    assert renewed == [True, False, False, True, False, False, True]


# Learning.

LEARNERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "sdac": (SDAC, {"candidates": 32, "temperature": 0.1}),
    "qsm": (QSM, {}),
    "dpmd": (DPMD, {"candidates": 8, "target_kl": 1.0, "temperature_learning_rate": 1e-2}),
}


def learner(name: str, **keywords: Any) -> Any:
    kind, own = LEARNERS[name]
    wide: dict[str, Any] = {"hidden": (64, 64), "policy_hidden": (64, 64, 64), "tau": 0.02}
    return made(kind, ONE, **{**wide, "train_steps": 10, "sampling_steps": 10, **own, **keywords})


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_finds_both_of_two_actions_that_are_equally_good(name: str) -> None:
    """The reward is highest at -0.6 and 0.6; between them, where their mean is, it is low.

    Mirror descent keeps both for as long as its old policy has both, here one step.
    """
    algorithm = learner(name, action_candidates=1)
    for _ in range(600):
        action = 2 * torch.rand(64, 1, 1) - 1
        reward = -8 * (action.flatten().abs() - 0.6).square()
        algorithm.update(small.bandit(torch.zeros(64, 1), action, reward))
    drawn = algorithm.policy.act(torch.zeros(2000, 1)).flatten()
    assert 0.25 < float((drawn > 0).float().mean()) < 0.75
    assert float(drawn.abs().mean()) == pytest.approx(0.6, abs=0.1)
    assert float((drawn.abs() < 0.3).float().mean()) < 0.15


def push(position: Tensor, action: Tensor) -> Tensor:
    return (position + 0.3 * action[:, 0]).clamp(-2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_solves_a_point_mass(name: str) -> None:
    """A point on [-2, 2] that actions push is paid for being at the origin."""
    often = {"old_every": 50} if name == "dpmd" else {}
    algorithm = learner(name, action_candidates=4, sampling_steps=5, **often)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for episode in range(12):
        obs = 3 * torch.rand(16, 1) - 1.5
        for _ in range(20):
            action, _ = algorithm.explore(obs, warmup=episode < 4)
            rows.append((obs, action, push(obs, action)))
            obs = rows[-1][2]
        if episode < 4:
            continue
        before, action, after = (torch.cat(column) for column in zip(*rows, strict=True))
        for _ in range(50):
            drawn = torch.randint(len(before), (64,))
            algorithm.update(
                Batch(
                    obs=before[drawn],
                    action=action[drawn],
                    reward=-after[drawn, 0].square(),
                    next_obs=after[drawn],
                    discount=torch.full((64,), 0.9),  # a time limit, never an end
                    valid=torch.ones(64, 1, dtype=torch.bool),
                )
            )

    def cost(random: bool) -> float:
        torch.manual_seed(100)
        obs = 3 * torch.rand(256, 1) - 1.5
        for _ in range(20):
            acted = 2 * torch.rand(256, 1, 1) - 1 if random else algorithm.policy.act(obs)
            obs = push(obs, acted)
        return float(obs.square().mean())

    assert cost(random=True) > 0.8
    assert cost(random=False) < 0.1
