"""Goal-distance gradient: a policy descends the number of transitions to a goal, without rewards.

Jiang and Qin, "Reinforcement Learning with Goal-Distance Gradient" (arXiv 2001.00127): the least
number of transitions between two states takes the place of rewards, and the policy improves along
the gradient of that distance. Most goals are such that the same episode reached them later, k steps
after the observation; the rest are the task's own.

- distance:  y = min(k, 1 + max_i D'_i(s', mu'(s', g), g)),  and y = 1 where s' is the goal, k = 1
             L_D = sum_i mean (D_i(s, a, g) - y)^2
- policy:    L_mu = mean D_1(s, mu(s, g), g)

The k steps of the episode are one way to the goal, so the least number is no larger. The task's own
goal has no k: it is reached where the episode ends. Without such rows, nothing would say that goals
that no episode has come to are far. D is TD3's Q with the sign turned round, a reward of -1 a
transition and no discount; all else is TD3's: two distances, of which the larger one counts,
smoothed target actions, delayed updates of the policy. With ``bound_by_episode=false`` the minimum
is left out, and it is TD3 on such rewards.

An adaptation (``faithful`` is False), as it is built from the paper's abstract and introduction:
losses, networks and settings are ours; goals are relabelled as in hindsight experience replay
(arXiv 1707.01495); distances have an upper bound; the bridge points that the paper plans with are
left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.settings import Positive, Share
from trimtab.types import Batch, BatchSpec, Metrics


class GoalDistance(TD3):
    """TD3 on numbers of transitions to goals.

    Args:
        setup: of a task that has goals.
        goal_share: share of the rows whose goal is one that their episode reached later.
        longest: upper bound of what follows a transition, in transitions.
        bound_by_episode: whether a distance is at most the steps that the episode took.
        td3: keywords of :class:`TD3`.
    """

    needs = Needs(rewards=False)
    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        goal_share: Share = 0.8,
        longest: Positive = 100.0,
        bound_by_episode: bool = True,
        **td3: Any,
    ) -> None:
        super().__init__(setup, **td3)
        self.batch_spec = BatchSpec(goal=goal_share)
        self.longest, self.bound_by_episode = longest, bound_by_episode

    def update(self, data: Batch) -> Metrics:
        """Take one step of the distances and, every few times, of the policy and the targets."""
        steps = data.goal_steps
        assert steps is not None
        goes_on = torch.where(steps > 0, steps > 1, data.discount > 0).to(data.discount.dtype)
        transition = -torch.ones_like(data.reward)
        metrics = super().update(replace(data, reward=transition, discount=goes_on))
        return {
            "distance_loss": metrics["critic_loss"],
            "distance": -metrics["q_mean"],
            "policy_distance": metrics["actor_loss"],
        }

    def next_value(self, data: Batch) -> Tensor:
        """Return minus the distance ``[B]`` of the next observations under the targets."""
        steps = data.goal_steps
        assert steps is not None
        value = super().next_value(data).clamp(-self.longest, 0.0)
        if not self.bound_by_episode:
            return value
        return torch.where(steps > 0, torch.maximum(value, 1.0 - steps), value)
