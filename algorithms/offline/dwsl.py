"""DWSL: imitation, weighted by how much nearer an action brought its goal.

Hejna et al., "Distance Weighted Supervised Learning for Offline Interaction Data" (arXiv
2304.13774). Every goal is one that the same episode reached later, k steps after the observation:

- distance:  a distribution p(. | s, g) over B bins;  L_D = -mean log p(min(k - 1, B - 1) | s, g)
- estimate:  d(s, g) = sum_b p(b) b / B, or with a temperature alpha the soft minimum
             -alpha log sum_b p(b) exp(-b / (alpha B))
- advantage: A = d(s, g) - 1 / B - d(s', g), where nothing follows a true end
- policy:    L_pi = mean min(exp(A / beta), clip) |pi(s, g) - a|^2

A goal that the episode did not reach counts as one in the last bin. There are no rewards, no
bootstrap and no target network. The goal is a part of the observation, as the task has it. Losses
are of the networks before the update, as in the code.

Deviations from the authors' code: one step ahead (there 3 in mazes, and 1 by default), so that the
cost, which is 0 for goals nearer than that many steps, is that of a step everywhere; networks start
as torch has them (there: orthogonal); one distance network, as their settings have it, though the
code can take the greatest of several; observations are standardised (there: as they are); steps are
drawn with equal chance (there: an episode first, so steps of short ones more often); nothing
follows a true end (there: the distance at the last observation counts). Distances are not
discounted, as in their settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, NonNegative, Positive, Size
from trimtab.types import Batch, BatchSpec, Metrics


class DWSL(Algorithm):
    """Learn how far goals are, and imitate what came nearer to them.

    Args:
        setup: needs ``dataset``, of a task that has goals.
        beta: temperature of the weights.
        clip: bound on a weight.
        bins: number B of distances.
        alpha: temperature of the soft minimum; None: the expectation.
        hidden: widths of the hidden layers of policy and distance.
        learning_rate: Adam's, for both.
        batch_size: transitions in one update.
    """

    needs = Needs({"dataset"})
    batch_spec = BatchSpec(goal=1.0)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        beta: Positive = 0.05,
        clip: NonNegative = 10.0,
        bins: Annotated[int, Bounds(least=2)] = 140,
        alpha: Positive | None = None,
        hidden: Sequence[Size] = (512, 512),
        learning_rate: NonNegative = 5e-4,
        batch_size: Size = 512,
    ) -> None:
        assert setup.statistics is not None
        self.beta, self.clip, self.bins, self.alpha = beta, clip, bins, alpha
        self.pace = Pace(batch_size)
        self.policy: DeterministicPolicy = DeterministicPolicy(setup.spec, hidden=hidden).to(
            setup.device
        )
        self.policy.normalizer.standardize(setup.statistics)
        self.distance = mlp(setup.spec.obs_dim, hidden, bins).to(setup.device)
        self.policy_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.distance_optimizer = Adam(self.distance.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the distance, and one of the policy."""
        assert data.goal_steps is not None
        policy, normalizer = self.policy, self.policy.normalizer
        logits = self.distance(normalizer.obs(data.obs))
        distance_loss = functional.cross_entropy(logits, self.bin_of(data.goal_steps))

        with torch.no_grad():
            following = self.estimate(self.distance(normalizer.obs(data.next_obs)))
            near = self.estimate(logits)
            advantage = near - 1.0 / self.bins - (data.discount > 0) * following
            weight = (advantage / self.beta).exp().clamp_max(self.clip)
        target = normalizer.normalize_action(data.action)
        error = (policy.squashed(data.obs) - target).square() * data.valid[..., None]
        policy_loss = (weight * error.sum((1, 2))).mean()

        self.distance_optimizer.step(distance_loss)
        self.policy_optimizer.step(policy_loss)
        return {
            "distance_loss": distance_loss.detach(),
            "policy_loss": policy_loss.detach(),
            "distance": near.mean(),
            "weight": weight.mean(),
        }

    def bin_of(self, steps: Tensor) -> Tensor:
        """Return the bins of goals so many steps ahead ``[B]``; 0 stands for a goal not reached."""
        return torch.where(steps > 0, steps - 1, self.bins - 1).clamp_max(self.bins - 1)

    def estimate(self, logits: Tensor) -> Tensor:
        """Return distances from 0 to 1, ``[B]``, by the logits of their bins ``[B, bins]``."""
        far = torch.arange(self.bins, device=logits.device) / self.bins
        if self.alpha is None:
            return logits.softmax(1) @ far
        return -self.alpha * (logits.log_softmax(1) - far / self.alpha).logsumexp(1)
