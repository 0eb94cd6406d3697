"""REPPO: targets, divergence and update by hand, values with known answers, and a task solved."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.categorical import hl_gauss
from trimtab.algorithms.on_policy.reppo import REPPO, Samples, estimate_divergence
from trimtab.benchmarks.contracts import methods
from trimtab.benchmarks.contracts.methods import Subject
from trimtab.policies.kinds.running_tanh_gaussian import RunningTanhGaussianPolicy
from trimtab.policies.networks.mlp import mlp
from trimtab.types import PolicySpec, Rollout, TrimtabError

SetupOf = Callable[..., Setup]
DataOf = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": (16, 16), "embedding": 16, "rollout_steps": 8, "epochs": 2}


def squashed_density(mean: Tensor, log_std: Tensor, raw: Tensor) -> Tensor:
    """Log-density ``[B]`` of tanh(raw), by torch's normal distribution and the slope of tanh."""
    gaussian = Normal(mean, log_std.exp()).log_prob(raw)
    return (gaussian - torch.log1p(-torch.tanh(raw).square())).sum((-2, -1))


@pytest.mark.parametrize("decay", [0.0, 0.6, 1.0])
def test_targets_are_those_of_a_loop(setup_of: SetupOf, data_of: DataOf, decay: float) -> None:
    torch.manual_seed(0)
    setup = setup_of(set())
    learner = REPPO(setup, **SMALL, trace_decay=decay, reward_scale=2.0, initial_temperature=0.3)
    data: Rollout = data_of(learner, seed=3)
    steps, envs = data.reward.shape
    ended = data.cut & (data.discount == 0)
    assert ended.any() and (data.cut & ~ended).any()
    obs, next_obs, raw = data.obs, data.next_obs, data.aux["unsquashed"]
    assert isinstance(obs, Tensor) and isinstance(next_obs, Tensor)

    torch.manual_seed(1)
    found = learner.samples(data)
    # The only draws are the actions after the last row and after each cut, in this order.
    torch.manual_seed(1)
    noise = learner.policy.sample_noise(envs + int(data.cut.sum()))
    drawn = {(steps - 1, n): noise[n] for n in range(envs)}
    cuts = [(t, n) for t in range(steps) for n in range(envs) if data.cut[t, n]]
    drawn |= {place: noise[envs + k] for k, place in enumerate(cuts)}

    @torch.no_grad()
    def ahead(t: int, n: int) -> tuple[Tensor, Tensor]:
        """Q and log-density of the next action."""
        row = next_obs[t, n][None]
        mean, log_std = learner.policy.head(learner.policy.normalizer.obs(row))
        own = (t, n) in drawn
        unsquashed = mean + log_std.exp() * drawn[t, n] if own else raw[t + 1, n][None]
        embedding = learner.critic.embed(row, torch.tanh(unsquashed))
        return learner.critic.value(embedding)[0], squashed_density(mean, log_std, unsquashed)[0]

    wanted = torch.zeros(steps, envs)
    for n in range(envs):
        for t in reversed(range(steps)):
            value, log_prob = ahead(t, n)
            gamma = 0.0 if ended[t, n] else setup.discount
            inside = t + 1 < steps and not data.cut[t, n]
            later = decay * wanted[t + 1, n] + (1 - decay) * value if inside else value
            wanted[t, n] = 2.0 * data.reward[t, n] + gamma * (later - 0.3 * log_prob)
    torch.testing.assert_close(found.target.view(steps, envs), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.reward, 2.0 * data.reward.flatten())
    assert torch.equal(found.going_on.view(steps, envs), (~ended).float())


def test_lambda_of_one_is_the_soft_monte_carlo_return(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    setup = setup_of(set())
    learner = REPPO(setup, **SMALL, trace_decay=1.0)
    data: Rollout = data_of(learner, seed=3)
    # Every episode ends with the rollout, and truly: nothing of Q is left in the targets.
    cut = torch.zeros_like(data.cut)
    cut[-1] = True
    data = replace(data, cut=cut, discount=setup.discount * (~cut).float())
    found = learner.samples(data)
    with torch.no_grad():
        mean, log_std = learner.policy.head(found.obs)
        raw = data.aux["unsquashed"].flatten(0, 1)
        log_prob = squashed_density(mean, log_std, raw).view(data.reward.shape)
    wanted = torch.zeros(data.reward.shape[1])
    for t in reversed(range(len(data.reward))):
        wanted = data.reward[t] + setup.discount * wanted
        first = wanted.clone()
        wanted = wanted - learner.temperature().detach() * log_prob[t]  # counts one row earlier
    torch.testing.assert_close(found.target.view(data.reward.shape)[0], first)


def test_the_divergence_is_estimated_without_bias() -> None:
    torch.manual_seed(0)
    mean, other_mean = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    log_std, other_log_std = 0.3 * torch.randn(5, 2, 3), 0.3 * torch.randn(5, 2, 3)
    noise = torch.randn(200_000, 5, 2, 3)
    found = estimate_divergence(mean, log_std, other_mean, other_log_std, noise)
    old, new = Normal(mean, log_std.exp()), Normal(other_mean, other_log_std.exp())
    torch.testing.assert_close(found, kl_divergence(old, new).sum((1, 2)), rtol=0.02, atol=0.02)
    # Squashing changes nothing: the slopes of tanh cancel in each sample's ratio.
    raw = mean + log_std.exp() * noise[:3]
    ratio = squashed_density(mean.double(), log_std.double(), raw.double())
    ratio = ratio - squashed_density(other_mean.double(), other_log_std.double(), raw.double())
    mine = estimate_divergence(mean, log_std, other_mean, other_log_std, noise[:3])
    torch.testing.assert_close(mine, ratio.mean(0).float(), rtol=1e-3, atol=1e-3)


class ByHand:
    """An update on a minibatch, a row at a time, with torch's own optimisers."""

    def __init__(self, learner: REPPO, rate: float, norm: float) -> None:
        self.norm = norm
        self.policy, self.critic = copy.deepcopy(learner.policy), copy.deepcopy(learner.critic)
        self.log_alpha = nn.Parameter(learner.temperature.log.detach().clone())
        self.log_beta = nn.Parameter(learner.kl_weight.log.detach().clone())
        self.of_actor = [*self.policy.parameters(), self.log_alpha, self.log_beta]
        self.actor_adam = torch.optim.Adam(self.of_actor, rate)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), rate)

    def critic_step(self, part: Samples, weight: float) -> None:
        loss = torch.zeros(())
        rows = len(part.obs)
        for row in range(rows):
            embedding = self.critic.encoder(torch.cat([part.obs[row], part.action[row].flatten()]))
            logits = self.critic.value_head(embedding) + 40.0 * self.critic.start
            wanted = hl_gauss(part.target[row], self.critic.support, 0.75)
            loss = loss - (wanted * torch.log_softmax(logits, 0)).sum() / rows
            if part.going_on[row]:
                said = self.critic.prediction_head(embedding)
                errors = (said[:-1] - part.next_embedding[row]).square().sum()
                errors = errors + (said[-1] - part.reward[row]).square()
                loss = loss + weight * errors / len(said) / rows
        self.step(self.critic_adam, list(self.critic.parameters()), loss)

    def actor_step(
        self, part: Samples, draws: Tensor, old_draws: Tensor, bound: float, target: float
    ) -> list[float]:
        alpha, beta = self.log_alpha.exp(), self.log_beta.exp()
        loss, divergences = torch.zeros(()), []
        rows = len(part.obs)
        for row in range(rows):
            mean, log_std = (x[0] for x in self.policy.head(part.obs[row][None]))
            raw = mean + log_std.exp() * draws[row]
            log_prob = squashed_density(mean, log_std, raw)
            embedding = self.critic.encoder(torch.cat([part.obs[row], torch.tanh(raw).flatten()]))
            logits = self.critic.value_head(embedding) + 40.0 * self.critic.start
            value = (torch.softmax(logits, 0) * self.critic.support).sum()
            old = part.mean[row] + part.log_std[row].exp() * old_draws[:, row]
            before = Normal(part.mean[row], part.log_std[row].exp()).log_prob(old)
            ratio = (before - Normal(mean, log_std.exp()).log_prob(old)).sum((1, 2)).mean()
            near = float(ratio.detach()) < bound
            each = alpha.detach() * log_prob - value if near else beta.detach() * ratio
            each = each + alpha * (-log_prob.detach() - target) - beta * (ratio.detach() - bound)
            loss, divergences = loss + each / rows, [*divergences, float(ratio.detach())]
        self.step(self.actor_adam, self.of_actor, loss)
        return divergences

    def step(self, adam: torch.optim.Adam, weights: list[nn.Parameter], loss: Tensor) -> None:
        # The critic gets gradients of the actor's loss, too, which nothing may take.
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        nn.utils.clip_grad_norm_(weights, self.norm)
        adam.step()


def test_an_update_by_hand(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    settings = {"learning_rate": 1e-2, "max_gradient_norm": 0.4, "kl_samples": 5}
    weights = {"auxiliary_weight": 0.7, "initial_temperature": 0.3, "initial_kl_weight": 2.0}
    bound = 0.08
    learner = REPPO(
        setup_of(set()), **SMALL, **settings, **weights, kl_bound=bound, value_high=9.0, bins=19
    )
    part = learner.samples(data_of(learner, seed=3))
    # In half of the states the policy is far from the old one.
    far = torch.arange(len(part.obs)) % 2 == 1
    part = replace(part, mean=part.mean + 0.5 * far[:, None, None])
    hand = ByHand(learner, 1e-2, 0.4)
    size = part.mean[0].numel()
    for seed in range(3):
        torch.manual_seed(seed)
        metrics = learner.learn(part)
        torch.manual_seed(seed)
        draws, old_draws = torch.randn_like(part.mean), torch.randn(5, *part.mean.shape)
        hand.critic_step(part, 0.7)
        divergences = hand.actor_step(part, draws, old_draws, bound, -0.5 * size)
        near = [one < bound for one in divergences]
        assert 0 < sum(near) < len(near)
        assert float(metrics["near"]) == pytest.approx(sum(near) / len(near))
        assert float(metrics["kl"]) == pytest.approx(sum(divergences) / len(near), rel=1e-3)
    for mine, theirs in (
        (learner.critic, hand.critic),
        (learner.policy, hand.policy),
    ):
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(learner.temperature.log, hand.log_alpha, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(learner.kl_weight.log, hand.log_beta, rtol=1e-4, atol=1e-6)


def test_beyond_the_bound_the_policy_goes_back(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    weights = {"initial_kl_weight": 1.0, "learning_rate": 3e-3, "kl_samples": 64}
    learner = REPPO(setup_of(set()), **SMALL, **weights, kl_bound=0.1)
    part = learner.samples(data_of(learner, seed=3))
    moved = replace(part, mean=part.mean + 1.0)
    history = [learner.learn(moved) for _ in range(100)]
    assert history[0]["near"] == 0 and history[0]["kl"] > 1.0
    # Where it is near again it climbs Q, so that the divergence stays about at its bound.
    assert history[-1]["near"] > 0.5 and history[-1]["kl"] < 0.15
    # beta rises while the divergence is too large, and falls after that.
    assert history[20]["kl_weight"] > 1.01 and history[-1]["kl_weight"] < history[40]["kl_weight"]


def test_values_begin_at_zero_and_are_clamped_to_the_range(
    setup_of: SetupOf, data_of: DataOf
) -> None:
    torch.manual_seed(0)
    learner = REPPO(setup_of(set()), **SMALL, value_low=-10.0, value_high=10.0, bins=41)
    part = learner.samples(data_of(learner))
    value = learner.critic.value(learner.critic.embed(part.obs, part.action))
    assert value.abs().max() < 0.2
    beyond = torch.where(torch.arange(len(part.obs)) % 4 == 0, 50.0, 0.0)
    part = replace(part, target=beyond)
    assert learner.learn(part)["clamped"] == pytest.approx(0.25)
    with pytest.raises(TrimtabError, match="value_high"):
        REPPO(setup_of(set()), value_low=3.0, value_high=3.0)


def counted(learner: REPPO, limit: int, *, truly: bool) -> Rollout:
    """Episodes of ``limit`` steps with reward 1, whose observations count the steps."""
    steps = torch.arange(learner.pace.rollout_steps)[:, None].expand(-1, 4) % limit
    shift = torch.arange(4)
    count, after = (steps + shift) % limit, (steps + shift) % limit + 1
    seen = torch.eye(limit + 1)
    cut = after == limit
    _, aux = learner.explore(seen[count].flatten(0, 1), warmup=False)
    return Rollout(
        obs=seen[count],
        action=torch.zeros(*count.shape, 1, 1),
        reward=torch.ones(count.shape),
        next_obs=seen[after],
        discount=torch.where(cut & truly, 0.0, 0.8),
        cut=cut,
        aux={"unsquashed": aux["unsquashed"].view(*count.shape, 1, 1)},
    )


@pytest.mark.parametrize("truly", [False, True])
def test_constant_rewards_are_bootstrapped_at_a_time_limit_and_nowhere_else(truly: bool) -> None:
    torch.manual_seed(0)
    limit = 4
    learner = REPPO(
        Setup(PolicySpec(limit + 1, 1, 1, (-1.0,), (1.0,)), discount=0.8),
        hidden=(16,),
        embedding=32,
        normalize_observations=False,
        value_high=8.0,
        bins=33,
        learning_rate=3e-3,
        rollout_steps=16,
        batch_size=32,
        epochs=4,
        initial_temperature=1e-8,
    )
    for _ in range(60):
        learner.update(counted(learner, limit, truly=truly))
    obs = torch.eye(limit + 1)[:limit]
    with torch.no_grad():
        value = learner.critic.value(learner.critic.embed(obs, torch.zeros(limit, 1, 1)))
    left = limit - torch.arange(limit)
    wanted = (1 - 0.8**left) / 0.2 if truly else torch.full((limit,), 5.0)
    torch.testing.assert_close(value, wanted, rtol=0, atol=0.15)


def test_after_a_true_end_nothing_of_the_next_episode_counts(
    setup_of: SetupOf, data_of: DataOf
) -> None:
    torch.manual_seed(0)
    learner = REPPO(setup_of(set()), **SMALL)
    data: Rollout = data_of(learner, seed=3)
    ended = data.discount == 0
    # On a GPU a rollout names only the rows whose time was up; both ways must agree.
    rows = (data.cut & ~ended).flatten().nonzero()[:, 0]
    torch.manual_seed(1)
    named = learner.samples(replace(data, cut_rows=rows))
    torch.manual_seed(1)
    found = learner.samples(
        replace(data, next_obs=torch.where(ended[..., None], 9.0, data.next_obs))
    )
    kept = ended.flatten()
    assert kept.any() and torch.equal(named.target[kept], data.reward[ended])
    assert torch.equal(found.target[kept], data.reward[ended])


def test_the_network_normalises_by_the_root_of_the_mean_square() -> None:
    torch.manual_seed(0)
    network = mlp(3, [4], 2, rms_norm=True, activation="silu")
    first, norm, _, last = network
    x = torch.randn(5, 3)
    hidden = first(x)
    hidden = hidden / (hidden.square().mean(1, keepdim=True) + 1e-6).sqrt() * norm.weight
    torch.testing.assert_close(network(x), last(hidden * torch.sigmoid(hidden)))


def test_the_policy_with_running_statistics_is_one_graph(setup_of: SetupOf) -> None:
    def make(seed: int, device: str) -> REPPO:
        torch.manual_seed(seed)
        return REPPO(setup_of(set(), device=device), **SMALL, batch_size=8)

    subject = Subject(make, "reppo")
    policy = subject.taught(0, 2).policy
    assert isinstance(policy, RunningTanhGaussianPolicy) and policy.normalizer.count > 0
    assert "replays" in methods.check_export(subject)


class PointMass:
    """A point on [-2, 2] that actions push, paid for being at the origin; 20 steps an episode."""

    def __init__(self, count: int) -> None:
        self.x = 3 * torch.rand(count, 1) - 1.5

    def step(self, action: Tensor) -> Tensor:
        self.x = (self.x + 0.3 * action[:, 0]).clamp(-2, 2)
        return 1 - self.x[:, 0].square() / 4


def mean_reward(learner: REPPO | None) -> float:
    """Mean reward at the end of an episode; of random pushes without a learner."""
    torch.manual_seed(100)
    mass = PointMass(256)
    for _ in range(20):
        push = 2 * torch.rand(256, 1, 1) - 1
        reward = mass.step(push if learner is None else learner.policy.act(mass.x))
    return float(reward.mean())


def test_solves_a_point_mass() -> None:
    torch.manual_seed(0)
    learner = REPPO(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), num_envs=32, discount=0.9),
        hidden=(32, 32),
        embedding=32,
        value_high=12.0,
        bins=49,
        learning_rate=3e-3,
        rollout_steps=20,
        batch_size=128,
        epochs=4,
    )
    for _ in range(30):
        mass, rows = PointMass(32), []
        for _ in range(20):
            obs = mass.x
            action, aux = learner.explore(obs, warmup=False)
            rows.append((obs, action, mass.step(action), mass.x, aux["unsquashed"]))
        obs, action, reward, after, raw = (torch.stack(one) for one in zip(*rows, strict=True))
        cut = torch.zeros_like(reward, dtype=torch.bool)
        cut[-1] = True  # a time limit, never an end
        gamma = torch.full_like(reward, 0.9)
        learner.update(Rollout(obs, action, reward, after, gamma, cut, {"unsquashed": raw}))
    assert mean_reward(None) < 0.8
    assert mean_reward(learner) > 0.98
    assert math.isfinite(float(learner.temperature()))
