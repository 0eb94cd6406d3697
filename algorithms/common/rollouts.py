"""Learning from rollouts: advantages, minibatches, the clipped surrogate, and V beside an actor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.returns import ReturnScale, generalized_advantage, next_values
from trimtab.observations import tree_map
from trimtab.policies.networks.mlp import Activation, mlp
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Metrics, Obs, Rollout

__all__ = [
    "Advantages", "Decisions", "RolloutActorCritic", "clipped_surrogate", "estimate_advantages",
    "estimate_kl", "mean_metrics", "minibatch_rows", "surrogate_metrics",
]  # fmt: skip

_PIECE = 8192
"""Decisions that the old policy looks at in one pass, so that memory is bounded."""


@dataclass(frozen=True)
class Advantages:
    """T decisions of N environments, and what a critic says of them."""

    obs: Tensor  # [T, N, O] normalised
    value: Tensor  # [T, N] V
    advantage: Tensor  # [T, N]


@torch.no_grad()
def estimate_advantages(
    data: Rollout,
    normalize: Callable[[Obs], Tensor],
    critic: Callable[[Tensor], Tensor],
    reward_scale: ReturnScale | None,
    decay: float,
) -> Advantages:
    """Return a rollout's generalised advantages, each value computed once.

    Args:
        data: the rollout.
        normalize: from raw observations to what the critic reads.
        critic: ``[..., O]`` to ``[..., 1]``.
        reward_scale: takes account of the rewards and scales them; None: they stay.
        decay: lambda.
    """
    obs = normalize(data.obs)
    value = critic(obs).squeeze(-1)
    cuts = data.cuts
    last = normalize(tree_map(lambda part: part[-1], data.next_obs))
    at_cuts = normalize(tree_map(lambda part: part.flatten(0, 1)[cuts], data.next_obs))
    values = critic(torch.cat([last, at_cuts])).squeeze(-1)
    reward = data.reward
    if reward_scale is not None:
        reward = reward_scale(reward, data.cut)
    following = next_values(value, cuts, *values.split([len(last), len(at_cuts)]))
    advantage = generalized_advantage(reward, value, following, data.discount, data.cut, decay)
    return Advantages(obs, value, advantage)


@dataclass(frozen=True)
class Decisions:
    """M decisions without their order, and what the old policy said of them."""

    obs: Tensor  # [M, O] normalised
    chain: Tensor  # [M, P, H, A] stored points of what acted
    old: Tensor  # [M, ...] of the old policy, as the method says
    advantage: Tensor  # [M]
    target: Tensor  # [M] of V

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, rows: Tensor) -> Decisions:
        """Return some of the rows."""
        return Decisions(*(part[rows] for part in vars(self).values()))


class RolloutActorCritic(Algorithm):
    """V beside an actor that learns from rollouts: their settings, optimisers and state.

    The update is the method's own; it calls ``learn`` for each minibatch.

    Args:
        setup: number of environments and discount.
        learned: weights of the actor.
        points: points of what acted that are stored for each decision.
        hidden: widths of V's hidden layers.
        activation: of V's hidden layers.
        normalize_rewards: whether rewards are divided by the running scale of returns.
        learning_rate: Adam's, for the actor.
        critic_learning_rate: Adam's, for V.
        critic_warmup: rollouts from which V alone learns.
        rollout_steps: decisions of each environment between updates.
        batch_size: samples in a minibatch.
        epochs: passes over each rollout.
        gae_decay: lambda of the advantage's estimate.
        clip: how far a ratio may be from 1.
        max_gradient_norm: bound on the norm of the actor's gradients; None: there is none.
        weight_decay: Adam's, for the weights of the actor and of V.
    """

    minibatch_updates = ("learn",)
    neutral = MappingProxyType({"weight_decay": 0.0})

    def __init__(
        self,
        setup: Setup,
        learned: Sequence[nn.Parameter],
        points: int,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        activation: Activation = "silu",
        normalize_rewards: bool = True,
        learning_rate: NonNegative = 1e-4,
        critic_learning_rate: NonNegative = 1e-3,
        critic_warmup: Natural = 0,
        rollout_steps: Count = 64,
        batch_size: Annotated[int, Bounds(least=2)] = 512,
        epochs: Size = 5,
        gae_decay: Share = 0.95,
        clip: Positive = 0.01,
        max_gradient_norm: Positive | None = None,
        weight_decay: NonNegative = 0.0,
    ) -> None:
        self.pace, self.epochs = Pace(batch_size, rollout_steps=rollout_steps), epochs
        self.critic_warmup, self.gae_decay, self.clip = critic_warmup, gae_decay, clip
        self.critic_learning_rate, self.max_gradient_norm = critic_learning_rate, max_gradient_norm
        self.act_steps, self.points, self.hidden = setup.spec.horizon, points, hidden
        self.steps_per_update = rollout_steps * setup.num_envs * setup.spec.horizon
        self.critic = mlp(self.policy.spec.obs_dim, hidden, 1, activation=activation)
        self.critic.to(setup.device)
        scale = ReturnScale(setup.num_envs, setup.discount).to(setup.device)
        self.reward_scale = scale if normalize_rewards else None
        self.actor_optimizer = Adam(
            learned, learning_rate, max_gradient_norm=max_gradient_norm, weight_decay=weight_decay
        )
        self.critic_optimizer = Adam(
            self.critic.parameters(), critic_learning_rate, weight_decay=weight_decay
        )

    @property
    def branch(self) -> Hashable:
        """Whether the actor learns: after the first rollouts, from which V alone learns."""
        return self.updates >= self.critic_warmup

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The stored points of what acted."""
        spec = self.policy.spec
        return {"chain": (self.points, spec.horizon, spec.action_dim)}

    @torch.no_grad()
    def decisions(self, data: Rollout, old: Callable[[Tensor, Tensor], Tensor]) -> Decisions:
        """Return the rollout's decisions with their advantages, targets and old statistics.

        Args:
            data: the rollout.
            old: what the policy that acted says of its chains: from normalised observations
                ``[M, O]`` and chains ``[M, P, H, A]`` to ``[M, ...]``.
        """
        seen = estimate_advantages(
            data, self.policy.normalizer.obs, self.critic, self.reward_scale, self.gae_decay
        )
        obs, chain = seen.obs.flatten(0, 1), data.aux["chain"].flatten(0, 1)
        pieces = zip(obs.split(_PIECE), chain.split(_PIECE), strict=True)
        target = (seen.advantage + seen.value).flatten()
        said = torch.cat([old(*piece) for piece in pieces])
        return Decisions(obs, chain, said, seen.advantage.flatten(), target)


def minibatch_rows(total: int, size: int, epochs: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the rows of minibatches, each row once an epoch; what fills no minibatch is left."""
    size = min(size, total)
    for _ in range(epochs):
        order = torch.randperm(total, device=device)
        for first in range(0, total - size + 1, size):
            yield order[first : first + size]


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """Return ``-min(rho A, clip(rho, 1 - eps, 1 + eps) A)`` of each row."""
    ratio = log_ratio.exp()
    if isinstance(clip, Tensor):
        bounded = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
    else:
        bounded = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, bounded * advantage)


def estimate_kl(log_ratio: Tensor) -> Tensor:
    """Return the estimate k3 of KL(old || new), http://joschu.net/blog/kl-approx.html, a scalar."""
    log_ratio = log_ratio.detach()
    return (log_ratio.exp() - 1 - log_ratio).mean()


def surrogate_metrics(
    policy_loss: Tensor, value_loss: Tensor, log_ratio: Tensor, clip: float | Tensor
) -> dict[str, Tensor]:
    """Return what is logged of one gradient step: losses, divergence, share of clipped ratios."""
    clipped = (log_ratio.detach().exp() - 1).abs() > clip
    return {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "kl": estimate_kl(log_ratio),
        "clip_share": clipped.float().mean(),
    }


def mean_metrics(steps: Sequence[Mapping[str, Tensor]]) -> Metrics:
    """Return the means over gradient steps of scalars that have the same names in each."""
    means = torch.stack([torch.stack([*step.values()]) for step in steps]).mean(0)
    return dict(zip(steps[0], means.unbind(), strict=True))
