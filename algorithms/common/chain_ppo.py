"""What PPO over denoising chains has in common, whatever the chain: the outer loop.

A decision is a whole chain: its points are stored when it acts, and one advantage of the
environment's own time scale counts for all its steps (Ren et al., "Diffusion Policy Policy
Optimization", arXiv 2409.00588; Zhang et al., "ReinFlow", arXiv 2505.22094). Several passes of
minibatches over each rollout improve the chain by the loss of the method, and V by its error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Needs, Setup, Stateful
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.returns import ReturnScale, normalized
from trimtab.algorithms.common.rollouts import estimate_advantages
from trimtab.policies.networks.mlp import Activation, mlp
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Metrics, Rollout

_PIECE = 8192
"""Decisions whose old chains are looked at in one pass, so that memory is bounded."""


@dataclass(frozen=True)
class Decisions:
    """M decisions without their order, and what the old policy said of them."""

    obs: Tensor  # [M, O] normalised
    chain: Tensor  # [M, P, H, A] stored points
    old: Tensor  # [M, ...] of the old policy, as the method says
    advantage: Tensor  # [M], normalised in a minibatch
    target: Tensor  # [M] of V

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, rows: Tensor) -> Decisions:
        """Return some of the rows."""
        return Decisions(*(part[rows] for part in vars(self).values()))


@dataclass(frozen=True)
class Judged:
    """A minibatch under the policy that is learned."""

    loss: Tensor  # scalar
    log_ratio: Tensor  # [M] of the new to the old policy
    clipped: Tensor  # [M] bool: further from 1 than the clip


class ChainPPO(Algorithm):
    """Proximal policy optimisation of a denoising chain.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``.
        learned: weights of the actor.
        points: points of a chain that are stored.
        items: samples that a decision is in a minibatch.
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
    """

    needs = Needs({"start"})

    def __init__(
        self,
        setup: Setup,
        learned: Sequence[nn.Parameter],
        points: int,
        items: int,
        *,
        hidden: Sequence[int] = (256, 256, 256),
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
    ) -> None:
        self.rollout_steps, self.batch_size, self.epochs = rollout_steps, batch_size, epochs
        self.critic_warmup, self.gae_decay, self.clip = critic_warmup, gae_decay, clip
        self.act_steps = setup.spec.horizon
        self.steps_per_update = rollout_steps * setup.num_envs * setup.spec.horizon
        self.points, self.items = points, items
        self.critic = mlp(self.policy.spec.obs_dim, hidden, 1, activation=activation)
        self.critic.to(setup.device)
        scale = ReturnScale(setup.num_envs, setup.discount).to(setup.device)
        self.reward_scale = scale if normalize_rewards else None
        self.actor_optimizer = Adam(learned, learning_rate, max_gradient_norm=max_gradient_norm)
        self.critic_optimizer = Adam(self.critic.parameters(), critic_learning_rate)

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The stored points of the chain that acted."""
        spec = self.policy.spec
        return {"chain": (self.points, spec.horizon, spec.action_dim)}

    @abstractmethod
    def old_statistics(self, obs: Tensor, chain: Tensor) -> Tensor:
        """Return what the policy that acted says of its chains, ``[M, ...]``.

        Args:
            obs: normalised ``[M, O]``.
            chain: ``[M, P, H, A]``.
        """

    @abstractmethod
    def surrogate_loss(self, part: Decisions, item: Tensor) -> Judged:
        """Return the loss of the actor for a minibatch.

        Args:
            part: one decision a row.
            item: which of a decision's samples each row is, ``[M]``.
        """

    def update(self, data: Rollout) -> Metrics:
        """Improve chain and V on one rollout."""
        samples = self.decisions(data)
        tuned = self.updates >= self.critic_warmup
        rows = [self.gradient_step(part, item, tuned) for part, item in self.minibatches(samples)]
        losses = torch.stack([torch.stack(row) for row in rows]).mean(0)
        self.updates += 1
        names = ("policy_loss", "value_loss", "kl", "clip_share")
        return dict(zip(names, losses.unbind(), strict=True))

    @torch.no_grad()
    def decisions(self, data: Rollout) -> Decisions:
        """Return the rollout's decisions with advantages, targets and what the old policy says."""
        seen = estimate_advantages(
            data, self.policy.normalizer.obs, self.critic, self.reward_scale, self.gae_decay
        )
        obs, chain = seen.obs.flatten(0, 1), data.aux["chain"].flatten(0, 1)
        pieces = zip(obs.split(_PIECE), chain.split(_PIECE), strict=True)
        return Decisions(
            obs=obs,
            chain=chain,
            old=torch.cat([self.old_statistics(*piece) for piece in pieces]),
            advantage=seen.advantage.flatten(),
            target=(seen.advantage + seen.value).flatten(),
        )

    def minibatches(self, samples: Decisions) -> Iterator[tuple[Decisions, Tensor]]:
        """Yield minibatches of samples, each once an epoch, and their items; the rest is left.

        Advantages are normalised in each.
        """
        total = len(samples) * self.items
        size = min(self.batch_size, total)
        for _ in range(self.epochs):
            order = torch.randperm(total, device=samples.obs.device)
            for first in range(0, total - size + 1, size):
                rows = order[first : first + size]
                part = samples[torch.div(rows, self.items, rounding_mode="floor")]
                advantage = normalized(part.advantage)
                yield (
                    Decisions(part.obs, part.chain, part.old, advantage, part.target),
                    rows % self.items,
                )

    def gradient_step(self, part: Decisions, item: Tensor, tuned: bool) -> tuple[Tensor, ...]:
        """Take one step; return the losses of actor and V, the KL and the share that is clipped."""
        # Value: V knows the environment's state alone, so one value counts for a whole chain.
        value = self.critic(part.obs).squeeze(-1)
        value_loss = 0.5 * (value - part.target).square().mean()
        self.critic_optimizer.step(value_loss)
        nothing = torch.zeros((), device=value.device)
        if not tuned:
            return nothing, value_loss.detach(), nothing, nothing
        judged = self.surrogate_loss(part, item)
        self.actor_optimizer.step(judged.loss)
        # The estimate k3 of KL(old || new), http://joschu.net/blog/kl-approx.html.
        log_ratio = judged.log_ratio.detach()
        divergence = (log_ratio.exp() - 1 - log_ratio).mean()
        share = judged.clipped.float().mean()
        return judged.loss.detach(), value_loss.detach(), divergence, share

    def state(self) -> Mapping[str, Stateful]:
        """Return policy, critic, optimisers and reward scale."""
        parts: dict[str, Stateful] = {
            "policy": self.policy,
            "critic": self.critic,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }
        return parts if self.reward_scale is None else {**parts, "reward_scale": self.reward_scale}


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """Return ``-min(rho A, clip(rho, 1 - eps, 1 + eps) A)`` of each row."""
    ratio = log_ratio.exp()
    if isinstance(clip, Tensor):
        bounded = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
    else:
        bounded = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, bounded * advantage)
