"""CFPI: a clone is improved in closed form when it acts; no actor is trained.

Li et al., "Offline Reinforcement Learning with Closed-Form Policy Improvement Operators" (arXiv
2211.15956). What is trained is a clone and a critic of the data's own behaviour:

- clone:   L = -mean log p(a | s), a mixture of squashed Gaussians (w_i, mu_i, S_i)
- critic:  L_Q = sum_i mean (Q_i(s, a) - r - gamma (1 - d) Q'_i(s', a'))^2,  a' the data's own

Acting goes up ``Q_LB = mean_i Q_i - pessimism std_i Q_i``, with g its gradient by the action before
squashing at the point that is moved, and ``|g|_S = sqrt(g' S g)``:

- one Gaussian (SG):    mu' = mu + sqrt(2 delta) S g / |g|_S
- a mixture (MG), the better by Q_LB of the answers to two bounds of its likelihood:
  LogSumExp:  mu_i' = mu_i + sqrt(2 d_i) S_i g_i / |g_i|_{S_i}, the best of all i, where
              d_i = max(0, delta + log w_i p_i(mu_i) - max_j log w_j p_j(mu_j))
  Jensen:     mubar + sqrt(k) A^-1 g / |g|_{A^-1}, with A = sum_i w_i S_i^-1,
              mubar = A^-1 sum_i w_i S_i^-1 mu_i and
              k = 2 delta - sum_i w_i mu_i' S_i^-1 mu_i + mubar' A mubar; none where k < 0

Components that weigh less than ``trivial`` propose nothing. ``components=1`` is SG, more are MG.
Observations have mean 0 and standard deviation 1.

Deviations from the authors' code: the critics are ordinary ones under a squared error (there:
implicit quantile networks of 8 quantiles, under a quantile loss). Clone and critics learn side by
side, each on as many batches as there (there: one after the other). A delta is fixed, or the best
of several that are given (there, for SG: the best of 10 that are drawn from 0.2 to 2 at each
decision). The code has d_i twice as large, so that a mixture of one component would go sqrt(2)
times as far as SG; here both agree, as in the paper. Logarithms of widths are at least -5. A chunk
that its episode cut goes on with its last action for the critics.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.policies.kinds.closed_form import ClosedFormPolicy
from trimtab.settings import NonNegative, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics


class CFPI(Algorithm):
    """Clone, learn what the data's behaviour is worth, and improve in closed form.

    Args:
        setup: needs ``dataset``.
        components: Gaussians of the clone; 1 is SG, more are MG.
        deltas: how far an action may go from the clone, one or several.
        pessimism: weight of the critics' deviation.
        trivial: components that weigh less propose nothing.
        hidden: widths of the hidden layers of clone and critics.
        critics: number of Q functions.
        learning_rate: Adam's, for the critics.
        policy_learning_rate: Adam's, for the clone.
        batch_size: decisions in one update.
        tau: Polyak rate of the target critics.
    """

    needs = Needs({"dataset"})
    batch_spec = BatchSpec(next_action=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        components: Size = 4,
        deltas: Sequence[float] = (0.5,),
        pessimism: float = 1.0,
        trivial: float = 0.05,
        hidden: Sequence[Size] = (256, 256, 256),
        critics: Size = 2,
        learning_rate: NonNegative = 3e-4,
        policy_learning_rate: NonNegative = 1e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
    ) -> None:
        assert setup.statistics is not None
        self.pace = Pace(batch_size)
        self.tau = tau
        self.policy: ClosedFormPolicy = ClosedFormPolicy(
            setup.spec, components=components, deltas=deltas, pessimism=pessimism,
            trivial=trivial, hidden=hidden, critics=critics,
        ).to(setup.device)  # fmt: skip
        self.policy.normalizer.standardize(setup.statistics)
        self.critic_target = copy.deepcopy(self.policy.critic).requires_grad_(False)
        self.clone_optimizer = Adam(self.policy.clone.parameters(), policy_learning_rate)
        self.critic_optimizer = Adam(self.policy.critic.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the clone, and one of the critics."""
        assert data.next_action is not None
        policy, normalizer = self.policy, self.policy.normalizer
        clone_loss = -policy.log_likelihood(data).mean()
        self.clone_optimizer.step(clone_loss)

        with torch.no_grad():
            following = normalizer.normalize_action(data.next_action)
            next_value = self.critic_target(normalizer.obs(data.next_obs), following)
            backup = data.reward + data.discount * next_value
        value = policy.critic(normalizer.obs(data.obs), normalizer.normalize_action(data.action))
        critic_loss = (value - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)
        polyak(self.critic_target, policy.critic, self.tau)
        return {
            "clone_loss": clone_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
        }
