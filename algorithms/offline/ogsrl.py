"""OGSRL: better than the data, within it, and within a limit of costs.

Yan et al., "Offline Guarded Safe Reinforcement Learning for Medical Treatment Optimization
Strategies" (arXiv 2505.16242). A guardian tells decisions that the data knows from those that it
does not; a policy is improved where the guardian lets it, with its cost below a limit:

- guardian: G(s, a) says whether a kernel density of the data's (s, a), each number scaled to
            [-1, 1], is at least the 5th percentile of the data's own densities
- outside:  as in the authors' model, a state off the data stays there for T decisions, each with
            reward -p and cost k:  V_out = -p (1 - gamma^T) / (1 - gamma),  C_out = k of that
- critics:  y = r + gamma (1 - d) (min_i Q'_i(s', a') if G(s', mu'(s')) else V_out)
            z = c + gamma (1 - d) (max_i C'_i(s', a') if G(s', mu'(s')) else C_out)
            L_Q = sum_i mean (Q_i(s, a) - y)^2 + sum_i mean 1[not G(s, mu)] (Q_i(s, mu) - V_out)^2
            L_C likewise, of z and C_out; a' = mu'(s') with noise, as TD3's
- actor:    L_mu = -alpha mean g / mean |g| + mean (mu(s) - a)^2,  where
            g = Q_1(s, mu(s)) - lambda C_1(s, mu(s)), and mean |g| gets no gradient
- limit:    lambda <- max(0, lambda + eta (mean C_1(s, mu(s)) - l)), after each step of the actor

An adaptation (``faithful`` is False): the paper is about treatments of patients, and its data
cannot be had; here, costs are those of a control task. It optimises in a model of nearest
neighbours by constrained policy optimisation; here the same guarded decision process is what
critics are fitted to, on the data's own transitions, with TD3's actor and a multiplier in the place
of the trust region. A density as wide as theirs calls many actions known that no row has, about
which critics err where a model of neighbours cannot; so the actor is also held to the data's
actions, as in TD3+BC, where their variant with critics adds CQL's penalty. The limit is on the
discounted cost over the data's observations; there it is on episodes' cost from their starts. The
guardian is the authors' code's density; the paper also describes polynomial sublevel sets. Where
their code is at fault it is not followed: costs there are -1 for a violation, so that their limit
never binds, and the constraint compares a normalised surrogate with the limit. Here costs are
positive. The guardian keeps some thousands of pairs of the data, whose own densities leave each
itself out, as with few of them it would decide them; it has no second density of states alone.
"""

from __future__ import annotations

import copy
import math
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.settings import Bounds, Natural, NonNegative
from trimtab.types import Batch, BatchSpec, Metrics

_SMALLEST_RANGE = 1e-4  # of a number that is not constant


class OGSRL(TD3):
    """TD3 in the data's guarded decision process, with a limit on costs.

    Args:
        setup: needs ``dataset``, with costs.
        alpha: weight of values and costs against imitation, as in TD3+BC.
        cost_limit: limit l of the discounted cost.
        multiplier_rate: eta, the step of the multiplier.
        most_multiplier: bound of the multiplier.
        guard_penalty: p, what each decision outside of the data takes off the reward.
        guard_cost: k, what each decision outside of the data costs.
        guard_decisions: T, how long a state that leaves the data counts as outside.
        references: pairs of the data that the guardian keeps.
        bandwidth: of the guardian's density.
        percentile: share of the data, in percent, that the guardian takes for outside.
        td3: settings of TD3.
    """

    faithful = False
    needs = Needs({"dataset"}, transitions_only=True)
    batch_spec = BatchSpec(cost=True)
    unused_settings = frozenset({"exploration_noise", "warmup_steps", "updates_per_decision"})
    explore = Algorithm.explore  # offline alone: costs are not gathered
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        alpha: NonNegative = 2.5,
        cost_limit: NonNegative = 0.5,
        multiplier_rate: NonNegative = 0.01,
        most_multiplier: NonNegative = 100.0,
        guard_penalty: NonNegative = 25.0,
        guard_cost: NonNegative = 1.0,
        guard_decisions: Natural = 20,
        references: Annotated[int, Bounds(least=2)] = 2048,
        bandwidth: Annotated[float, Bounds(least=1e-3)] = 0.535,
        percentile: Annotated[float, Bounds(least=0, most=100)] = 5.0,
        **td3: Any,
    ) -> None:
        super().__init__(setup, **td3)
        assert setup.statistics is not None
        self.pace = Pace(self.pace.batch_size)
        self.alpha, self.cost_limit, self.multiplier_rate = alpha, cost_limit, multiplier_rate
        self.most_multiplier = most_multiplier
        decisions = sum(setup.discount**number for number in range(guard_decisions))
        self.value_outside = -guard_penalty * decisions
        self.cost_outside = guard_cost * decisions
        for policy in (self.policy, self.policy_target):
            policy.normalizer.standardize(setup.statistics)
        flat = setup.spec.horizon * setup.spec.action_dim
        self.cost_critic = self.make_critic(setup.spec.obs_dim, flat, self.hidden).to(setup.device)
        self.cost_target = copy.deepcopy(self.cost_critic).requires_grad_(False)
        rate = self.critic_optimizer.learning_rate
        self.cost_optimizer = Adam(self.cost_critic.parameters(), rate)
        guardian = Guardian(setup.spec.obs_dim + flat, references, bandwidth, percentile)
        self.guardian = guardian.to(setup.device)
        self.dual = nn.Module()
        self.dual.register_buffer("multiplier", torch.zeros((), device=setup.device))
        self.last_metrics = {"actor_loss": 0.0, "cost_mean": 0.0, "multiplier": 0.0}

    def update(self, data: Batch) -> Metrics:
        """Take one step of both kinds of critics and, every few times, of actor and multiplier."""
        assert data.cost is not None
        normalizer = self.policy.normalizer
        obs = normalizer.obs(data.obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        with torch.no_grad():
            following = self.smoothed_action(data.next_obs)
            next_obs = normalizer.obs(data.next_obs)
            planned = self.policy_target.squashed(data.next_obs)
            inside = self.guardian.inside(next_obs, planned)
            value = torch.where(
                inside, self.critic_target(next_obs, following).amin(0), self.value_outside
            )
            cost = torch.where(
                inside, self.cost_target(next_obs, following).amax(0), self.cost_outside
            )
            own = self.policy.squashed(data.obs)
            outside = (~self.guardian.inside(obs, own)).float()

        # Critics: the data's decisions one step ahead, and the actor's own where it left the data.
        pairs = torch.cat([obs, obs]), torch.cat([action, own])
        losses = []
        for critic, optimizer, backup, left in (
            (self.critic, self.critic_optimizer, data.reward + data.discount * value,
             self.value_outside),
            (self.cost_critic, self.cost_optimizer, data.cost + data.discount * cost,
             self.cost_outside),
        ):  # fmt: skip
            known, asked = critic(*pairs).chunk(2, dim=1)
            penalty = outside * (asked - left).square()
            loss = self.critic_loss(known, backup) + penalty.mean(1).sum()
            optimizer.step(loss)
            losses.append(loss.detach())

        if self.actor_due:
            self.last_metrics = self.improve(data, obs)
        self.updates += 1
        return {
            "critic_loss": losses[0],
            "cost_loss": losses[1],
            "outside": outside.mean(),
            **self.last_metrics,
        }

    def improve(self, data: Batch, obs: Tensor) -> Metrics:
        """Take one step of the actor, of the multiplier and of the targets."""
        multiplier: Tensor = self.dual.multiplier  # type: ignore[assignment]
        squashed = self.policy.squashed(data.obs)
        cost = self.cost_critic(obs, squashed, slice(1))[0]
        gain = self.actor_value(obs, squashed) - multiplier * cost
        target = self.policy.normalizer.normalize_action(data.action)
        imitation = self.policy.masked_mean((squashed - target).square(), data.valid)
        loss = imitation - self.alpha / gain.abs().mean().detach() * gain.mean()
        self.policy_optimizer.step(loss)
        expected = cost.detach().mean()
        moved = multiplier + self.multiplier_rate * (expected - self.cost_limit)
        multiplier.copy_(moved.clamp(0.0, self.most_multiplier))
        polyak(self.critic_target, self.critic, self.tau)
        polyak(self.cost_target, self.cost_critic, self.tau)
        polyak(self.policy_target, self.policy, self.tau)
        return {
            "actor_loss": loss.detach(),
            "cost_mean": expected,
            "multiplier": multiplier.clone(),
        }

    @torch.no_grad()
    def continue_chunks(self, data: Batch) -> Tensor:
        """Return a batch's action chunks, continued by the actor where their episode cut them."""
        return torch.where(data.valid[..., None], data.action, self.policy.act(data.obs))

    def watch(self, data: Batch) -> Metrics:
        """Show a batch to the guardian."""
        normalizer = self.policy.normalizer
        action = normalizer.normalize_action(data.action).flatten(1)
        self.guardian.take(torch.cat([normalizer.obs(data.obs), action], dim=1))
        return {"threshold": self.guardian.threshold.clone()}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Show the data to the guardian, then learn."""
        usual = super().phases(budget)
        if not budget.offline_steps:
            return usual
        looks = math.ceil(len(self.guardian.points) / self.pace.batch_size)
        return (Phase("guardian", looks, "updates", Feed.DATASET, self.watch), *usual)


class Guardian(nn.Module):
    """A Gaussian kernel density of reference points, and the least density that counts as inside.

    Points are scaled to [-1, 1] by the references' range. The density of a point is the mean of
    ``exp(-|x - x_i|^2 / (2 s^2))`` over references x_i, and the least one a percentile of the
    references' own densities, each among the others. Before there are references, every point is
    inside.

    Args:
        size: numbers of a point.
        references: points that are kept, the newest; at least 2.
        bandwidth: s.
        percentile: share of the references that counts as outside, in percent.
    """

    points: Tensor
    low: Tensor
    high: Tensor
    threshold: Tensor

    def __init__(self, size: int, references: int, bandwidth: float, percentile: float) -> None:
        super().__init__()
        self.bandwidth, self.percentile = bandwidth, percentile
        self.register_buffer("points", torch.zeros(references, size))
        self.register_buffer("low", torch.zeros(size))
        self.register_buffer("high", torch.ones(size))
        self.register_buffer("threshold", torch.zeros(()))

    @torch.no_grad()
    def take(self, points: Tensor) -> None:
        """Keep points ``[B, D]`` in the place of the oldest, and fit scale and threshold to all."""
        kept = len(self.points)
        self.points.copy_(torch.cat([self.points, points])[-kept:])
        self.low.copy_(self.points.amin(0))
        self.high.copy_(self.points.amax(0))
        among_others = (kept * self.density(self.points) - 1) / (kept - 1)
        self.threshold.copy_(among_others.quantile(self.percentile / 100))

    def density(self, points: Tensor) -> Tensor:
        """Return the density ``[B]`` at points ``[B, D]``, but for a constant factor."""
        x, references = self._scaled(points), self._scaled(self.points)
        products = x @ references.T
        apart = x.square().sum(1, keepdim=True) + references.square().sum(1) - 2 * products
        return (apart.clamp_min(0) / (-2 * self.bandwidth**2)).exp().mean(1)

    @torch.no_grad()
    def inside(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return whether pairs are where the data is, ``[B]``: ``[B, O]`` and ``[B, H, A]``."""
        return self.density(torch.cat([obs, action.flatten(1)], dim=1)) >= self.threshold

    def _scaled(self, points: Tensor) -> Tensor:
        width = self.high - self.low
        width = torch.where(width > _SMALLEST_RANGE, width, torch.full_like(width, 2.0))
        return 2 * (points - self.low) / width - 1
