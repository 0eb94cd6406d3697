"""Twin delayed deep deterministic policy gradient (TD3) of Stable-Baselines3, as a peer.

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv
1802.09477), in the implementation of Raffin et al., "Stable-Baselines3: Reliable Reinforcement
Learning Implementations" (Journal of Machine Learning Research 22(268), 2021). Networks,
optimisers and the update are theirs, with their default settings; exploration adds the noise that
their zoo adds, N(0, 0.1).

Deviations from a run of theirs: environments, replay buffer and its order of sampling are
Trimtab's; noise is drawn by torch and not by numpy; ``gamma (1 - d)`` is the batch's ``discount``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Pace, Setup, Stateful
from trimtab.algorithms.peers.sb3 import ReplayingPeer, copy_layers, library, linear_layers
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.settings import Count, Natural, NonNegative, Share, Size
from trimtab.types import Metrics

if TYPE_CHECKING:
    import stable_baselines3


class SB3TD3(ReplayingPeer):
    """Stable-Baselines3's twin delayed deep deterministic policy gradient.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        hidden: widths of the hidden layers of actor and critics.
        learning_rate: Adam's, for actor and critics.
        batch_size: transitions in one update.
        tau: Polyak rate of the targets.
        exploration_noise: standard deviation of what is added to acting, of actions in [-1, 1].
        target_noise: standard deviation of what is added to the target's action.
        target_noise_clip: its bound.
        actor_every: critic updates for one of the actor and the targets.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    model: stable_baselines3.TD3
    judged: DeterministicPolicy

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (400, 300),
        learning_rate: NonNegative = 1e-3,
        batch_size: Size = 256,
        tau: Share = 0.005,
        exploration_noise: NonNegative = 0.1,
        target_noise: NonNegative = 0.2,
        target_noise_clip: NonNegative = 0.5,
        actor_every: Count = 2,
        warmup_steps: Natural = 100,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.exploration_noise = exploration_noise
        model = library().TD3(
            "MlpPolicy",
            None,
            learning_rate=learning_rate,
            tau=tau,
            gamma=setup.discount,
            policy_delay=actor_every,
            target_policy_noise=target_noise,
            target_noise_clip=target_noise_clip,
            policy_kwargs={"net_arch": list(hidden)},
            device=setup.device,
            _init_setup_model=False,
        )
        self.adopt(model, setup)
        self.judged = DeterministicPolicy(setup.spec, hidden=hidden).to(setup.device)
        self.last_metrics = {"actor_loss": 0.0}

    def squashed_action(self, obs: Tensor) -> Tensor:
        """Return the actor's actions with noise, in [-1, 1], ``[N, H * A]``."""
        action: Tensor = self.model.actor(obs)
        return (action + self.exploration_noise * torch.randn_like(action)).clamp(-1, 1)

    def metrics(self, logged: Mapping[str, Any]) -> Metrics:
        """Return the losses; the actor's is that of its last update."""
        if "train/actor_loss" in logged:
            self.last_metrics = {"actor_loss": float(logged["train/actor_loss"])}
        return {"critic_loss": float(logged["train/critic_loss"]), **self.last_metrics}

    def copy_weights(self) -> None:
        """Fill our actor."""
        copy_layers(self.judged.network, linear_layers(self.model.actor.mu))

    def state(self) -> Mapping[str, Stateful]:
        """Return their networks with their targets, and the optimisers."""
        return {
            "networks": self.model.policy,
            "actor_optimizer": self.model.actor.optimizer,
            "critic_optimizer": self.model.critic.optimizer,
        }
