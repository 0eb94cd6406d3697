"""What a frozen policy is worth, from data of others alone: off-policy evaluation.

After Fu et al., "Benchmarks for Deep Off-Policy Evaluation" (arXiv 2103.16596). All of it estimates

    V = E sum_t gamma^t r_t,    s_0 as in the data, a_t from the policy

- fitted Q:    Q <- r + gamma (1 - d) Q'(s', a'), a' from the policy; V = mean Q'(s_0, a)
- importance:  per decision and self-normalised (Precup et al. 2000), with
               w_t = prod_{k <= t} pi(a_k | s_k) / mu(a_k | s_k):
               V = sum_t gamma^t sum_i w_it r_it / sum_i w_it
               An episode that has ended keeps its weight, with rewards of 0; one that was cut
               counts as long as it is known
- model:       learned models of what comes next, of ends and of rewards, and the policy in them

Networks say (1 - gamma) Q in units of the data's largest reward, and targets stay within what such
rewards allow. Otherwise than there: no doubly robust estimate, no copies of rewards with noise, no
resampled trajectories; models' means are rolled out, and ends weigh rows in place of being drawn;
rewards of the models are not limited to the data's, and go on as long as the longest episode, where
fitted Q has no end; networks are narrower.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.dynamics import DynamicsEnsemble
from trimtab.settings import Bounds, CheckedSettings, NonNegative, Share, Size

__all__ = ["Act", "FittedQ", "ModelValue", "per_decision_weighted", "step_log_ratios"]

Act = Callable[[Tensor], Tensor]
"""What the policy executes, normalised: observations ``[B, O]`` to ``[B, H, A]``."""

WEIGHT_DECAY = 1e-5


class FittedQ(metaclass=CheckedSettings):
    """Fitted Q evaluation of one policy.

    Args:
        obs_dim: length of a normalised observation.
        action_size: length of a flattened executed chunk.
        rewards: least and largest reward of a decision in the data.
        discount: gamma of a decision, below 1.
        hidden: widths of the hidden layers.
        learning_rate: Adam's.
        tau: Polyak rate of the target, which is what is read out.
    """

    section = "algorithm"

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        rewards: tuple[float, float],
        discount: Annotated[float, Bounds(least=0, most=1 - 1e-6)],
        hidden: Sequence[Size] = (256, 256),
        learning_rate: NonNegative = 3e-4,
        tau: Share = 0.005,
    ) -> None:
        # An episode may end, and is worth 0 from then on.
        self.limits = min(rewards[0], 0.0) / (1 - discount), max(rewards[1], 0.0) / (1 - discount)
        self.unit = max(abs(limit) for limit in self.limits) or 1.0
        self.tau = tau
        self.critic = EnsembleCritic(obs_dim, action_size, hidden=hidden, members=1)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.optimizer = Adam(
            self.critic.parameters(), learning_rate, weight_decay=WEIGHT_DECAY, partial=False
        )

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor,
        act: Act,
    ) -> Tensor:  # fmt: skip
        """Take one step on Bellman's equation; return its squared error, in the network's unit.

        Args:
            obs: normalised ``[B, O]``.
            action: normalised ``[B, H, A]``, what the data did.
            reward: ``[B]``, of the decision.
            next_obs: normalised ``[B, O]``.
            discount: ``[B]``, 0 where the episode truly ended.
            act: the policy.
        """
        with torch.no_grad():
            backup = reward + discount * self.value(next_obs, act(next_obs))
            backup = backup.clamp(*self.limits) / self.unit
        error: Tensor = self.critic(obs, action).squeeze(0) - backup
        loss = error.square().mean()
        self.optimizer.step(loss)
        polyak(self.target, self.critic, self.tau)
        return loss.detach()

    @torch.no_grad()
    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the target's values ``[B]`` in the data's units."""
        values: Tensor = self.target(obs, action).squeeze(0) * self.unit
        return values


class ModelValue:
    """Models of what comes next and of rewards, and what a policy earns in them.

    Args:
        obs_dim: length of a normalised observation.
        action_size: length of a flattened executed chunk.
        hidden: widths of the hidden layers.
        members: number of models.
        learning_rate: Adam's.
        limit: predicted observations are clipped to ``[-limit, limit]``.
        unit: rewards are learned in it.
    """

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        hidden: Sequence[Size] = (200, 200),
        members: Size = 3,
        learning_rate: NonNegative = 3e-4,
        limit: float = 10.0,
        unit: float = 1.0,
    ) -> None:
        self.unit = unit
        self.dynamics = DynamicsEnsemble(
            obs_dim, action_size, hidden=hidden, members=members, limit=limit
        )
        self.reward = EnsembleCritic(obs_dim, action_size, hidden=hidden, members=members)
        learned = [*self.dynamics.parameters(), *self.reward.parameters()]
        self.optimizer = Adam(learned, learning_rate, weight_decay=WEIGHT_DECAY)

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, ended: Tensor
    ) -> Tensor:
        """Take one step of all models; return their loss.

        Args:
            obs: normalised ``[B, O]``.
            action: normalised ``[B, H, A]``.
            reward: ``[B]``, of the decision.
            next_obs: normalised ``[B, O]``.
            ended: ``[B]``, whether the episode truly ended.
        """
        error: Tensor = self.reward(obs, action) - reward / self.unit
        loss = self.dynamics.loss(obs, action, next_obs, ended) + error.square().mean(1).sum()
        self.optimizer.step(loss)
        return loss.detach()

    @torch.no_grad()
    def value(self, starts: Tensor, act: Act, *, decisions: int, discount: float) -> Tensor:
        """Return what the policy earns from each start ``[B]``, the mean over the models.

        Args:
            starts: normalised observations ``[B, O]``.
            act: the policy.
            decisions: how many from each start.
            discount: gamma of a decision.
        """
        members = self.dynamics.members
        rows = starts.repeat_interleave(members, 0)  # row i is of model i modulo E
        total, weight = torch.zeros_like(rows[:, 0]), 1.0
        for seen, action, alive in self.dynamics.rollout(rows, act, decisions):
            total += weight * alive * self.reward(seen, action).mean(0) * self.unit
            weight *= discount
        return total.reshape(-1, members).mean(1)


def step_log_ratios(
    target: Tensor, behaviour: Tensor, limits: tuple[float, float] = (-6.0, 2.0)
) -> Tensor:
    """Return log-ratios of densities, each clipped as in the authors' code.

    Args:
        target: log-densities of the policy.
        behaviour: log-densities of the policy that gathered the data, as ``target``.
        limits: of one decision's ratio.
    """
    return (target - behaviour).clamp(*limits)


def per_decision_weighted(
    log_ratio: Tensor, reward: Tensor, taken: Tensor, ended: Tensor, discount: float
) -> tuple[Tensor, Tensor]:
    """Return the estimate, a scalar, and how many episodes carry its last weights.

    The number is Kish's effective sample size, ``(sum w)^2 / sum w^2``, of the whole episodes'
    weights: near 1, one episode decides.

    Args:
        log_ratio: ``[N, T]``, of each decision.
        reward: ``[N, T]``, of each decision.
        taken: ``[N, T]`` bool, which decisions there are; each episode's come first.
        ended: ``[N]`` bool, which episodes came to a true end, and were not cut.
        discount: gamma of a decision.
    """
    log_weight = torch.where(taken, log_ratio, 0.0).double().cumsum(1)
    known = taken | ended[:, None]  # what was to come where an episode was cut, nobody knows
    log_known = log_weight.masked_fill(~known, -torch.inf)
    log_share = log_known - log_known.logsumexp(0, keepdim=True)
    log_share = log_share.masked_fill(~known, -torch.inf)  # also where none is known any more
    earned = (log_share.exp() * torch.where(taken, reward, 0.0)).sum(0)
    powers = discount ** torch.arange(len(earned), device=earned.device, dtype=earned.dtype)
    last = (log_weight[:, -1] - log_weight[:, -1].logsumexp(0)).exp()
    return (powers * earned).sum(), 1.0 / last.square().sum()
