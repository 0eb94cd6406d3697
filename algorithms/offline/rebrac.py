"""ReBRAC: TD3 with behaviour penalties on actor and critics, and normalised critics.

Tarasov et al., "Revisiting the Minimalist Approach to Offline Reinforcement Learning" (arXiv
2305.09836); a' is the data's own next action, u the smoothed one of the target actor:

- critic:   y = r + gamma (1 - d) (min_i Q'_i(s', u) - beta_c |u - a'|^2)
            L_Q = sum_i mean (Q_i(s, a) - y)^2
- actor:    every k-th update,  L_mu = mean (beta_a |mu(s) - a|^2 - lambda min_i Q_i(s, mu(s)))
            with lambda = 1 / mean |min_i Q_i(s, mu(s))|, which gets no gradient
- targets:  with every update of the actor

The critics are normalised after each activation. Networks begin as in EDAC: biases 0.1, and
outputs near 0.

Online, as in the authors' fine-tuning, beta_c is 0 and beta_a falls in a line to ``least_decay``
of itself at the end of the run; their batches are half offline data (``offline_share=0.5``).

Deviations: the target actor follows the actor after its step (there: before it). What an episode
cut off a chunk is left out of the actor's penalty; the critics' penalty compares whole next chunks,
of which a cut one goes on with its last action. Online, too, decisions without a next one are not
drawn. Rewards are the task's own (mazes there: 100 times).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.phases import Budget, Phase, default_phases
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.initial import near_zero_outputs_
from trimtab.settings import NonNegative, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics


class ReBRAC(TD3):
    """TD3 that is held to the data twice.

    Args:
        setup: needs ``dataset``, with next actions.
        actor_penalty: beta_a; the paper chooses it for each dataset, from 0.0005 to 1.
        critic_penalty: beta_c; the paper chooses it for each dataset, from 0 to 0.5.
        least_decay: share of ``actor_penalty`` that is left at the end of an online run.
        hidden: widths of the hidden layers of actor and critics.
        layer_norm: normalise after each hidden layer of the critics.
        learning_rate: Adam's, for the actor.
        critic_learning_rate: Adam's, for the critics.
        warmup_steps: environment steps with uniform random actions before online learning.
        td3: further settings of TD3.
    """

    needs = Needs({"dataset"})
    batch_spec = BatchSpec(next_action=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        actor_penalty: NonNegative = 0.01,
        critic_penalty: NonNegative = 0.01,
        least_decay: Share = 0.0,
        hidden: Sequence[Size] = (256, 256, 256),
        layer_norm: bool = True,
        learning_rate: NonNegative = 1e-3,
        critic_learning_rate: NonNegative = 1e-3,
        warmup_steps: int = 0,
        **td3: Any,
    ) -> None:
        self.layer_norm = layer_norm
        super().__init__(
            setup, hidden=hidden, learning_rate=learning_rate, warmup_steps=warmup_steps, **td3
        )
        self.critic_optimizer = Adam(self.critic.parameters(), critic_learning_rate)
        self.offline_penalties = (actor_penalty, critic_penalty)
        self.actor_penalty: float | Tensor
        self.actor_penalty, self.critic_penalty = self.offline_penalties
        self.count = UpdateCount(setup.device)
        self.least_decay = least_decay
        self.offline_updates, self.online_updates = 0, 1.0

    def next_value(self, data: Batch) -> Tensor:
        """Return the least target value ``[B]``, less the penalty of leaving the data."""
        assert data.next_action is not None
        normalizer = self.policy.normalizer
        action = self.smoothed_action(data.next_obs)
        values: Tensor = self.critic_target(normalizer.obs(data.next_obs), action)
        away = (action - normalizer.normalize_action(data.next_action)).square().sum((1, 2))
        return values.amin(0) - self.critic_penalty * away

    def actor_value(self, obs: Tensor, squashed: Tensor) -> Tensor:
        """Return the least Q ``[B]`` of the actor's actions."""
        value: Tensor = self.critic(obs, squashed).amin(0)
        return value

    def policy_loss(self, data: Batch, value: Tensor, squashed: Tensor) -> Tensor:
        """Return the penalty of leaving the data, and the value's loss at scale 1."""
        target = self.policy.normalizer.normalize_action(data.action)
        kept = data.valid[..., None].to(target.dtype)
        away = ((squashed - target).square() * kept).sum((1, 2))
        with torch.no_grad():
            scale = 1.0 / value.abs().mean()
        return (self.actor_penalty * away - scale * value).mean()

    def update(self, data: Batch) -> Metrics:
        """Take one step with both penalties."""
        return self.learn(data, *self.offline_penalties)

    def update_online(self, data: Batch) -> Metrics:
        """Take one step with penalties on the actor alone, less of them the later it is."""
        spent = (self.count() - self.offline_updates) / self.online_updates
        left = (1.0 - spent).clamp(min=self.least_decay)
        return self.learn(data, self.offline_penalties[0] * left, 0.0)

    def learn(self, data: Batch, actor_penalty: float | Tensor, critic_penalty: float) -> Metrics:
        """Take one step with given beta_a and beta_c."""
        self.actor_penalty, self.critic_penalty = actor_penalty, critic_penalty
        self.count.increase()
        return super().update(data)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Hold actor and critics to the data offline, and the actor less and less online."""
        self.offline_updates = budget.offline_steps
        decisions = (budget.online_steps - self.pace.warmup_steps) / self.policy.spec.horizon
        self.online_updates = max(decisions * self.pace.updates_per_decision, 1.0)
        return default_phases(budget, self.update, self.update_online)

    def make_critic(self, obs_dim: int, size: int, hidden: Sequence[int]) -> EnsembleCritic:
        """Return two Q functions that are normalised after each activation."""
        return EnsembleCritic(
            obs_dim, size, hidden=hidden, layer_norm=self.layer_norm, norm_last=True
        )

    def initialize_weights(self) -> None:
        """Begin with biases 0.1 and outputs near 0."""
        near_zero_outputs_(self.policy.network, 1e-3)
        near_zero_outputs_(self.critic.network, 3e-3)
