"""Proximal policy optimisation, with a clipped surrogate.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347):

- advantage:  A_t by generalised advantage estimation (arXiv 1506.02438) from V; R_t = A_t + V(s_t)
- policy:     L_pi = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = pi(a|s) / pi_old(a|s)
- value:      L_V = mean (V(s) - R)^2
- in all:     L = L_pi + c_V L_V - c_H H(pi), several epochs of minibatches over each rollout

An episode that ran out of time is bootstrapped with the value of its last observation, not taken
for a failure. As is usual (Engstrom et al., arXiv 2005.12729): orthogonal initialisation,
advantages normalised in each minibatch, a bound on the gradient's norm, rewards divided by the
running standard deviation of the return, observations normalised by running statistics, which are a
part of the policy and change between rollouts only; the first rollout is as it comes.

Deviations from the paper: no adaptive KL penalty; actor and critic share no layer; the action's
likelihood is that before clipping to the limits; decisions that fill no whole minibatch wait for
the next epoch's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.returns import ReturnScale, normalized
from trimtab.algorithms.common.rollouts import estimate_advantages, estimate_kl
from trimtab.observations import count
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.networks.mlp import Activation, mlp, orthogonal_
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share, Size
from trimtab.types import Metrics, Obs, Rollout


@dataclass(frozen=True)
class Samples:
    """M decisions of a rollout without their order, and what the old policy said of them."""

    obs: Tensor  # [M, O] normalised
    action: Tensor  # [M, H, A] normalised, before it was clipped
    mean: Tensor  # [M, H, A] mean of the old policy
    log_prob: Tensor  # [M] log-density under the old policy
    value: Tensor  # [M] V before the update
    advantage: Tensor  # [M], normalised in a minibatch
    target: Tensor  # [M] R

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, rows: Tensor) -> Self:
        """Return some of the rows, in the shape of ``rows``."""
        return type(self)(*(part[rows] for part in vars(self).values()))

    def unbind(self) -> list[Self]:
        """Return what :meth:`__getitem__` made of ``rows`` of two dimensions, row by row."""
        parts = zip(*(part.unbind() for part in vars(self).values()), strict=True)
        return [type(self)(*values) for values in parts]


class PPO(Algorithm):
    """Proximal policy optimisation.

    Args:
        setup: shapes, limits, number of environments and discount.
        hidden: widths of the hidden layers of actor and critic.
        activation: of the hidden layers: tanh, relu, elu, gelu or silu.
        initial_log_std: logarithm of the actor's width at the start, in actions scaled to [-1, 1].
        normalize_observations: whether the policy keeps running statistics of observations.
        normalize_rewards: whether rewards are divided by the running scale of returns.
        learning_rate: Adam's, at the start.
        decay_steps: environment steps over which the learning rate falls to 0 in a line, where a
            decision counts as a whole chunk; None: it does not fall.
        rollout_steps: decisions of each environment between updates.
        batch_size: decisions in a minibatch.
        epochs: passes over each rollout.
        gae_decay: lambda of the advantage's estimate.
        clip: eps.
        value_clip: how far V may move from its old value before its loss stops; None: no bound.
        value_weight: c_V.
        entropy_weight: c_H.
        max_gradient_norm: bound on the norm of all gradients together.
    """

    # 2: with normalize_observations, the first rollout's observations are no longer clipped at 10.
    # Results change only where raw observations exceed that, such as the speeds of CheetahRun's
    # joints; gym's Hopper and InvertedDoublePendulum bound theirs and give the same bits as before.
    revision: ClassVar[int] = 2
    minibatch_updates: ClassVar[tuple[str, ...]] = ("learn",)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (64, 64),
        activation: Activation = "tanh",
        initial_log_std: float = 0.0,
        normalize_observations: bool = True,
        normalize_rewards: bool = True,
        learning_rate: NonNegative = 3e-4,
        decay_steps: Count | None = None,
        rollout_steps: Count = 256,
        batch_size: Annotated[int, Bounds(least=2)] = 64,
        epochs: Size = 10,
        gae_decay: Share = 0.95,
        clip: Positive = 0.2,
        value_clip: Positive | None = None,
        value_weight: NonNegative = 0.5,
        entropy_weight: NonNegative = 0.0,
        max_gradient_norm: Positive = 0.5,
    ) -> None:
        self.pace, self.epochs = Pace(batch_size, rollout_steps=rollout_steps), epochs
        self.learning_rate, self.decay_steps = learning_rate, decay_steps
        self.steps_per_update = rollout_steps * setup.num_envs * setup.spec.horizon
        self.gae_decay, self.clip, self.value_clip = gae_decay, clip, value_clip
        self.value_weight, self.entropy_weight = value_weight, entropy_weight
        self.hidden = hidden

        self.policy: DiagonalGaussianPolicy = DiagonalGaussianPolicy(
            setup.spec,
            hidden=hidden,
            activation=activation,
            initial_log_std=initial_log_std,
            normalize_observations=normalize_observations,
        ).to(setup.device)
        self.actor = self.policy
        critic = self.make_critic(setup.spec.obs_dim, hidden, activation)
        self.critic: nn.Module = critic.to(setup.device)
        scale = ReturnScale(setup.num_envs, setup.discount).to(setup.device)
        self.reward_scale = scale if normalize_rewards else None
        # Adam's epsilon is that of the published codes of PPO (Huang et al., "The 37 Implementation
        # Details of Proximal Policy Optimization", ICLR blog track 2022).
        learned = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = Adam(
            learned, learning_rate, epsilon=1e-5, max_gradient_norm=max_gradient_norm
        )

    def update(self, data: Rollout) -> Metrics:
        """Improve policy and value on one rollout, then let the normaliser see it."""
        metrics = self.improve(self.samples(data))
        if isinstance(self.actor.normalizer, RunningNormalizer):
            self.actor.normalizer.see(data.obs)
        self.updates += 1
        return metrics

    def improve(self, samples: Samples) -> Metrics:
        """Go through the rollout in minibatches, several times."""
        rate = self.schedule_rate()
        steps = [self.learn(part) for part in self.minibatches(samples)]
        return {
            **{name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]},
            "entropy": self.actor.entropy().detach(),
            "learning_rate": rate,
        }

    def learn(self, part: Samples) -> dict[str, Tensor]:
        """Take one step of policy and value on a minibatch."""
        mean = self.actor.head(part.obs)
        log_prob = self.actor.log_prob(mean, part.action)
        policy_loss, value_loss = self.policy_loss(part, mean, log_prob), self.value_loss(part)
        loss = policy_loss + self.value_weight * value_loss
        if self.entropy_weight:
            loss = loss - self.entropy_weight * self.actor.entropy()
        self.optimizer.step(loss)
        divergence = estimate_kl(log_prob - part.log_prob)
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "kl": divergence,
        }

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return the loss of the policy for a minibatch.

        Args:
            part: the minibatch.
            mean: of the policy that is learned, ``[M, H, A]``.
            log_prob: of the stored actions under it, ``[M]``.
        """
        # Clipped surrogate: nothing is gained by a ratio further than eps from 1.
        ratio = (log_prob - part.log_prob).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        return -torch.minimum(ratio * part.advantage, clipped * part.advantage).mean()

    def value_loss(self, part: Samples) -> Tensor:
        """Return the squared error of V, or the worse one of V and V kept near its old value."""
        value = self.value(part)
        error = (value - part.target).square()
        if self.value_clip is not None:
            near = part.value + (value - part.value).clamp(-self.value_clip, self.value_clip)
            error = torch.maximum(error, (near - part.target).square())
        return error.mean()

    def value(self, part: Samples) -> Tensor:
        """Return V of a minibatch ``[M]``."""
        value: Tensor = self.critic(part.obs).squeeze(-1)
        return value

    @torch.no_grad()
    def samples(self, data: Rollout) -> Samples:
        """Return the rollout's decisions with advantages, targets and old likelihoods."""
        seen = estimate_advantages(
            data, self.actor.normalizer.obs, self.critic, self.reward_scale, self.gae_decay
        )
        obs, value, advantage = seen.obs, seen.value, seen.advantage
        mean = self.actor.head(obs.flatten(0, 1))
        action = data.aux["unclipped"].flatten(0, 1)
        return Samples(
            obs=obs.flatten(0, 1),
            action=action,
            mean=mean,
            log_prob=self.actor.log_prob(mean, action),
            value=value.flatten(),
            advantage=advantage.flatten(),
            target=(advantage + value).flatten(),
        )

    def minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Yield minibatches of ``batch_size``, every decision once an epoch; the rest is left.

        Advantages are normalised in each.
        """
        size = min(self.pace.batch_size, len(samples))
        count = len(samples) // size
        for _ in range(self.epochs):
            order = torch.randperm(len(samples), device=samples.obs.device)
            rows = order[: count * size].view(count, size)
            epoch = samples[rows]
            yield from replace(epoch, advantage=normalized(epoch.advantage)).unbind()

    def make_critic(self, obs_dim: int, hidden: Sequence[int], activation: Activation) -> nn.Module:
        """Return V with fresh weights."""
        return orthogonal_(mlp(obs_dim, hidden, 1, activation=activation), last_gain=1.0)

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The action before it was clipped is stored: the likelihood is about that one."""
        return {"unclipped": self.actor.noise_shape}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions; there is no warm-up."""
        unclipped = self.actor.unclipped(obs, self.actor.sample_noise(count(obs)))
        return self.actor.normalizer.raw_action(unclipped), {"unclipped": unclipped}

    def progress(self) -> float:
        """Return how much of ``decay_steps`` is over, from 0 to 1; 0 where there is no end."""
        if self.decay_steps is None:
            return 0.0
        return min(self.updates * self.steps_per_update / self.decay_steps, 1.0)

    def schedule_rate(self) -> float:
        """Set the learning rate of this update, and return it."""
        rate = self.learning_rate * (1.0 - self.progress())
        self.optimizer.change_rate(rate)
        return rate
