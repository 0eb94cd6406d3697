"""Soft actor-critic of Stable-Baselines3, as a peer in the same harness.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905), in the
implementation of Raffin et al., "Stable-Baselines3: Reliable Reinforcement Learning
Implementations" (Journal of Machine Learning Research 22(268), 2021). Networks, optimisers and the
update are theirs, with their default settings.

Deviations from a run of theirs: environments, replay buffer and its order of sampling are
Trimtab's, and so is the order in which random numbers are drawn; ``gamma (1 - d)`` is the batch's
``discount``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from trimtab.algorithms.base import Pace, Setup, Stateful
from trimtab.algorithms.peers.sb3 import ReplayingPeer, copy_layers, library, linear_layers
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.settings import Natural, NonNegative, Positive, Share, Size
from trimtab.types import Metrics

if TYPE_CHECKING:
    import stable_baselines3


class SB3SAC(ReplayingPeer):
    """Stable-Baselines3's soft actor-critic.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        hidden: widths of the hidden layers of actor and critics.
        learning_rate: Adam's, for actor, critics and temperature.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        target_entropy: None for minus the number of action dimensions.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    model: stable_baselines3.SAC
    judged: TanhGaussianPolicy

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (256, 256),
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 1.0,
        target_entropy: float | None = None,
        warmup_steps: Natural = 100,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        model = library().SAC(
            "MlpPolicy",
            None,
            learning_rate=learning_rate,
            tau=tau,
            gamma=setup.discount,
            ent_coef=f"auto_{initial_temperature}",
            target_entropy=-float(size) if target_entropy is None else float(target_entropy),
            policy_kwargs={"net_arch": list(hidden)},
            device=setup.device,
            _init_setup_model=False,
        )
        self.adopt(model, setup)
        assert self.model.log_ent_coef is not None
        self.temperature = Held(self.model.log_ent_coef)
        # Theirs bounds the logarithm of the standard deviation by -20 and 2.
        self.judged = TanhGaussianPolicy(spec, hidden=hidden, log_std_min=-20.0, log_std_max=2.0)
        self.judged.to(setup.device)

    def squashed_action(self, obs: Tensor) -> Tensor:
        """Return sampled actions in [-1, 1], ``[N, H * A]``."""
        action: Tensor = self.model.actor(obs)
        return action

    def metrics(self, logged: Mapping[str, Any]) -> Metrics:
        """Return the losses and the temperature."""
        return {
            "critic_loss": float(logged["train/critic_loss"]),
            "actor_loss": float(logged["train/actor_loss"]),
            "temperature_loss": float(logged["train/ent_coef_loss"]),
            "temperature": float(logged["train/ent_coef"]),
        }

    def copy_weights(self) -> None:
        """Fill our actor; their heads for mean and log standard deviation are our last layer."""
        actor: Any = self.model.actor
        copy_layers(
            self.judged.network, [*linear_layers(actor.latent_pi), [actor.mu, actor.log_std]]
        )

    def state(self) -> Mapping[str, Stateful]:
        """Return their actor, critics and targets, the temperature, and the optimisers."""
        assert self.model.ent_coef_optimizer is not None
        return {
            "networks": self.model.policy,
            "temperature": self.temperature,
            "actor_optimizer": self.model.actor.optimizer,
            "critic_optimizer": self.model.critic.optimizer,
            "temperature_optimizer": self.model.ent_coef_optimizer,
        }


class Held(nn.Module):
    """A bare tensor of theirs as a module, so that it is saved and restored in its own memory."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value.detach())  # the same memory, not a copy
