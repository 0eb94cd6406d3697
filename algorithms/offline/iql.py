"""IQL: implicit Q-learning, which asks about no action that is not in the data.

Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (arXiv 2110.06169), on
observations of mean 0 and standard deviation 1:

- value:   L_V = mean |tau - 1(u < 0)| u^2,  u = min_i Q'_i(s, a) - V(s)
- critic:  L_Q = mean_i mean (Q_i(s, a) - r - gamma (1 - d) V(s'))^2
- policy:  L_pi = -mean min(exp(beta u), w) log pi(a|s), where u gets no gradient
- target:  Q' <- (1 - rho) Q' + rho Q

tau is ``expectile``, rho is ``tau``, w is ``most_weight``. As in CORL's file, V(s') and u are those
from before V's step (in the authors' code: after it). pi is a Gaussian with a tanh as its mean and
one width for all states. Its learning rate falls by a cosine to 0 offline.

Online it goes on with the same losses, on what the run gathers by sampling pi and, by
``offline_share``, on the data. Its learning rate is then the full one again, as the authors'
fine-tuning has no decay; CORL's cosine, whose period ends with the offline part, climbs again.

Deviations: no dropout, which the authors have for Adroit alone; rewards are the task's own (there:
scaled by 1000 over the range of returns, or less 1 in mazes); observations are standardised, log
standard deviations are held above -20 and networks start as torch has them, as in CORL's file
(there: observations as they are, -5, orthogonal); actions of a chunk that its episode cut short are
left out of the policy's loss, which is a mean over the actions of a chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.expectiles import expectile_loss
from trimtab.algorithms.common.schedules import UpdateCount, cosine
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.common.weighting import advantage_weight, weighted_bc_loss
from trimtab.algorithms.phases import Budget, Phase, default_phases
from trimtab.policies.kinds.regression_gaussian import RegressionGaussianPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs, PolicySpec


class IQL(Algorithm):
    """Expectiles of the data's values, and regression on the better actions.

    Args:
        setup: needs ``dataset``.
        expectile: tau of V, between 0 and 1; 0.7, and 0.9 for mazes, in the paper.
        beta: how much a better advantage counts; 3, and 10 for mazes, in the paper.
        most_weight: bound w of an action's weight.
        hidden: widths of the hidden layers of policy, V and critics.
        learning_rate: Adam's, for all of them; the policy's at the start.
        decay_updates: offline updates after which the policy's rate is 0; None: it stays.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        warmup_steps: environment steps of the policy before online learning.
        updates_per_decision: online updates for each executed action chunk.
    """

    needs = Needs({"dataset"}, transitions_only=True)  # as loaders of transitions have them
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        expectile: Annotated[float, Bounds(least=0.001, most=0.999)] = 0.7,
        beta: NonNegative = 3.0,
        most_weight: Annotated[float, Bounds(least=1)] = 100.0,
        hidden: Sequence[Size] = (256, 256),
        learning_rate: NonNegative = 3e-4,
        decay_updates: Natural | None = 1_000_000,
        batch_size: Size = 256,
        tau: Share = 0.005,
        warmup_steps: Natural = 0,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        assert setup.statistics is not None
        self.expectile, self.beta, self.most_weight = expectile, beta, most_weight
        self.learning_rate, self.decay_updates = learning_rate, decay_updates
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        self.policy: RegressionGaussianPolicy = self.made_policy(spec, hidden)
        self.policy.to(setup.device).normalizer.standardize(setup.statistics)
        self.critic = EnsembleCritic(spec.obs_dim, size, hidden=hidden).to(setup.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = mlp(spec.obs_dim, hidden, 1).to(setup.device)
        self.count = UpdateCount(setup.device)
        self.policy_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.value_optimizer = Adam(self.value.parameters(), learning_rate)

    def learn(self, data: Batch, policy_rate: float | Tensor) -> Metrics:
        """Take one step of V, critics and policy.

        Args:
            data: the batch.
            policy_rate: the policy's learning rate.
        """
        normalizer = self.policy.normalizer
        action = normalizer.normalize_action(self.continue_chunks(data))
        obs = normalizer.obs(data.obs)
        with torch.no_grad():
            reached = self.target(obs, action).amin(0)
            next_value = self.value(normalizer.obs(data.next_obs)).squeeze(-1)
            backup = data.reward + data.discount * next_value

        # V: an expectile of the target critics over the actions that were taken.
        value = self.value(obs).squeeze(-1)
        value_loss = 0.5 * expectile_loss(value[None], reached, self.expectile)
        self.value_optimizer.step(value_loss)

        # Critics: one step ahead by V; no action of the policy is asked about.
        estimate = self.critic(obs, action)
        critic_loss = (estimate - backup).square().mean()
        self.critic_optimizer.step(critic_loss)
        polyak(self.target, self.critic, self.tau)

        self.policy_optimizer.learning_rate = policy_rate
        policy_loss, weight, further = self.update_policy(data, obs, reached - value.detach())
        self.count.increase()
        self.updates += 1
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": policy_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "v_mean": value.detach().mean(),
            "weight": weight.mean(),
            **further,
        }

    def update_policy(
        self, data: Batch, obs: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Take one step of the policy; return its loss, the actions' weights, further metrics.

        Args:
            data: the batch.
            obs: its normalised observations, ``[B, O]``.
            advantage: u of its actions, ``[B]``.
        """
        # The data's actions, the better ones more; log-densities are sums over dimensions.
        weight = advantage_weight(advantage, self.beta, self.most_weight)
        dimensions = self.policy.spec.action_dim
        policy_loss = dimensions * weighted_bc_loss(self.policy, data, weight)
        self.policy_optimizer.step(policy_loss)
        return policy_loss, weight, {}

    def update(self, data: Batch) -> Metrics:
        """Take one step of V, critics and policy, whose learning rate decays."""
        rate: float | Tensor = self.learning_rate
        if self.decay_updates is not None:
            rate = cosine(self.learning_rate, 0.0, self.count(), self.decay_updates)
        return self.learn(data, rate)

    def update_online(self, data: Batch) -> Metrics:
        """Take one step of V, critics and policy."""
        return self.learn(data, self.learning_rate)

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions of the policy."""
        return self.policy.act(obs), {}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Decay the policy's learning rate offline, and go on online with the full one."""
        return default_phases(budget, self.update, self.update_online)

    def made_policy(self, spec: PolicySpec, hidden: Sequence[int]) -> RegressionGaussianPolicy:
        """Return the policy with fresh weights."""
        return RegressionGaussianPolicy(spec, hidden=hidden)
