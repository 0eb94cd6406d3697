"""AWAC: an actor that clones the data, weighted by the advantage over itself.

Nair et al., "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (arXiv
2006.09359), in CORL's form, on observations of mean 0 and standard deviation 1:

- critic:   y = r + gamma (1 - d) min_i Q'_i(s', a'),  a' ~ pi(.|s')
            L_Q = sum_i mean (Q_i(s, a) - y)^2
- actor:    L_pi = -mean min(exp(A / lambda), w) log pi(a|s)
            with A = min_i Q_i(s, a) - min_i Q_i(s, b),  b ~ pi(.|s), after the critics' step
- target:   Q' <- (1 - tau) Q' + tau Q

w is ``most_weight``. pi is a Gaussian whose mean has no bound and whose width is the same in every
state; its samples are clipped to the limits.

Online it goes on with the same losses, on what the run gathers by sampling pi and, by
``offline_share``, on the data.

Deviations: rewards are the task's own; actions of a chunk that its episode cut short are left out
of the actor's loss, which is a mean over the actions of a chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.common.weighting import advantage_weight, weighted_bc_loss
from trimtab.observations import count
from trimtab.policies.kinds.regression_gaussian import RegressionGaussianPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class AWAC(Algorithm):
    """Advantage-weighted actor-critic.

    Args:
        setup: needs ``dataset``.
        advantage_scale: lambda; 1/3 for locomotion and 0.1 elsewhere in CORL.
        most_weight: bound w of an action's weight.
        hidden: widths of the hidden layers of actor and critics.
        learning_rate: Adam's, for all of them.
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
        advantage_scale: Annotated[float, Bounds(least=1e-9)] = 1 / 3,
        most_weight: Annotated[float, Bounds(least=1)] = 100.0,
        hidden: Sequence[Size] = (256, 256, 256),
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        warmup_steps: Natural = 0,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        assert setup.statistics is not None
        self.advantage_scale, self.most_weight = advantage_scale, most_weight
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        self.policy: RegressionGaussianPolicy = RegressionGaussianPolicy(
            spec, hidden=hidden, tanh_mean=False
        )
        self.policy.to(setup.device).normalizer.standardize(setup.statistics)
        self.critic = EnsembleCritic(spec.obs_dim, size, hidden=hidden).to(setup.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critics and of the actor, and move the target critics."""
        normalizer = self.policy.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))

        # Critics: one step ahead by an action of the policy.
        with torch.no_grad():
            following = self.target(next_obs, self.sample(data.next_obs)).amin(0)
            backup = data.reward + data.discount * following
        estimate = self.critic(obs, action)
        critic_loss = (estimate - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        # Actor: the data's actions, those above its own more; log-densities are summed.
        with torch.no_grad():
            both = torch.cat([action, self.sample(data.obs)])
            reached, own = self.critic(obs.repeat(2, 1), both).amin(0).chunk(2)
            weight = advantage_weight(reached - own, 1 / self.advantage_scale, self.most_weight)
        dimensions = self.policy.spec.action_dim
        actor_loss = dimensions * weighted_bc_loss(self.policy, data, weight)
        self.policy_optimizer.step(actor_loss)
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "weight": weight.mean(),
        }

    def sample(self, obs: Obs) -> Tensor:
        """Return sampled actions in [-1, 1], ``[B, H, A]``."""
        return self.policy.clipped(obs, self.policy.sample_noise(count(obs)))

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions of the policy."""
        return self.policy.act(obs), {}
