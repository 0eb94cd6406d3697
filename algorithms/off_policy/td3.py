"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv
1802.09477), algorithm 1:

- critic:   y = r + gamma (1 - d) min_i Q'_i(s', clip(mu'(s') + e, -1, 1))
            with e = clip(N(0, s), -c, c)
            L_Q = sum_i mean (Q_i(s, a) - y)^2
- actor:    every k-th update,  L_mu = -mean Q_1(s, mu(s))
- targets:  with every update of the actor,  Q' <- (1 - tau) Q' + tau Q,  mu' likewise

Deviations from the published code: critics see actions scaled to [-1, 1]; ``gamma (1 - d)`` is the
batch's ``discount``, which a time limit does not cut.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Count, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class TD3(Algorithm):
    """Twin delayed deep deterministic policy gradient.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        hidden: widths of the hidden layers of actor and critics.
        learning_rate: Adam's, for actor and critics.
        batch_size: transitions in one update.
        tau: Polyak rate of the targets.
        exploration_noise: standard deviation of what is added to acting, of actions in [-1, 1].
        target_noise: standard deviation s of what is added to the target's action.
        target_noise_clip: its bound c.
        actor_every: critic updates k for one of the actor and the targets.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (256, 256),
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        exploration_noise: NonNegative = 0.1,
        target_noise: NonNegative = 0.2,
        target_noise_clip: NonNegative = 0.5,
        actor_every: Count = 2,
        warmup_steps: Natural = 25_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.hidden, self.tau, self.actor_every = hidden, tau, actor_every
        self.exploration_noise = exploration_noise
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        self.policy: DeterministicPolicy = DeterministicPolicy(spec, hidden=hidden)
        self.critic = self.make_critic(spec.obs_dim, size, hidden)
        self.initialize_weights()
        self.policy.to(setup.device)
        self.critic.to(setup.device)
        self.policy_target = copy.deepcopy(self.policy).requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.last_metrics = {"actor_loss": 0.0}

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critics and, every few times, of actor and targets."""
        normalizer = self.policy.normalizer
        obs = normalizer.obs(data.obs)
        action = normalizer.normalize_action(self.continue_chunks(data))

        # Critics: regress both to the lesser target value of a smoothed next action.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data)
        value = self.critic(obs, action)
        critic_loss = self.critic_loss(value, backup)
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            # Actor: ascend the critics, whose weights get no gradients.
            squashed = self.policy.squashed(data.obs)
            actor_loss = self.policy_loss(data, self.actor_value(obs, squashed), squashed)
            self.policy_optimizer.step(actor_loss)
            polyak(self.critic_target, self.critic, self.tau)
            polyak(self.policy_target, self.policy, self.tau)
            self.last_metrics = {"actor_loss": actor_loss.detach()}
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **self.last_metrics,
        }

    def next_value(self, data: Batch) -> Tensor:
        """Return the value ``[B]`` of the next observations under the targets."""
        next_action = self.smoothed_action(data.next_obs)
        next_obs = self.policy.normalizer.obs(data.next_obs)
        values: Tensor = self.critic_target(next_obs, next_action)
        return values.amin(0)

    def smoothed_action(self, obs: Obs) -> Tensor:
        """Return the target actor's actions with noise, scaled to [-1, 1], ``[B, H, A]``."""
        squashed = self.policy_target.squashed(obs)
        limit = self.target_noise_clip
        noise = (torch.randn_like(squashed) * self.target_noise).clamp(-limit, limit)
        return (squashed + noise).clamp(-1, 1)

    def actor_value(self, obs: Tensor, squashed: Tensor) -> Tensor:
        """Return the value ``[B]`` that the actor ascends: Q_1 of its actions."""
        value: Tensor = self.critic(obs, squashed, slice(1))[0]
        return value

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the loss of values ``[E, B]`` against their target ``[B]``."""
        return (value - backup).square().mean(1).sum()

    def policy_loss(self, data: Batch, value: Tensor, squashed: Tensor) -> Tensor:
        """Return the actor's loss.

        Args:
            data: the batch.
            value: :meth:`actor_value` of the actor's actions, ``[B]``.
            squashed: these actions scaled to [-1, 1], ``[B, H, A]``.
        """
        return -value.mean()

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, the actor's with noise after it."""
        shape = (count(obs), self.policy.spec.horizon, self.policy.spec.action_dim)
        device = first_leaf(obs).device
        if warmup:
            squashed = 2 * torch.rand(shape, device=device) - 1
        else:
            noise = torch.randn(shape, device=device)
            squashed = (self.policy.squashed(obs) + self.exploration_noise * noise).clamp(-1, 1)
        return self.policy.normalizer.raw_action(squashed), {}

    def make_critic(self, obs_dim: int, size: int, hidden: Sequence[int]) -> EnsembleCritic:
        """Return the Q functions of observations and of actions of ``size`` entries."""
        return EnsembleCritic(obs_dim, size, hidden=hidden)

    def initialize_weights(self) -> None:
        """Change the weights that actor and critics begin with; here they stay."""
