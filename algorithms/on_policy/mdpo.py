"""Mirror descent policy optimisation, on-policy.

Tomar et al., "Mirror Descent Policy Optimization" (arXiv 2005.09814), equation 6, with what their
code adds to it:

- policy: ``policy_steps`` steps of Adam on L_pi = -mean [rho A - KL(pi || pi_old) / t_k], each over
          the whole rollout, whose advantages are normalised once; t_k = 1 - k / K falls from 1 to 0
          over the K updates of a run, so that the policy moves ever less; the learning rate stays
- value:  several passes of minibatches over the rollout, with an Adam of its own

The divergence is that of the new policy from the old one, in closed form. Everything else is PPO's.

Deviations: the last t_k is held above 0; Tsallis entropies, which the paper also has, are left out.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.policies.kinds.diagonal_gaussian import gaussian_kl
from trimtab.settings import Count
from trimtab.types import Metrics


class MDPO(PPO):
    """On-policy mirror descent.

    Args:
        setup: as in PPO.
        policy_steps: steps of the policy on each rollout.
        ppo: settings of PPO but ``unused_settings``; ``batch_size`` and ``epochs`` are those of the
            value, ``max_gradient_norm`` is that of the policy, and ``decay_steps`` are the
            environment steps over which t_k falls to 0; None: it stays 1.
    """

    unused_settings = frozenset({"clip", "value_weight", "entropy_weight"})
    # 2: as PPO; the policy's steps are over the whole rollout and apart from the value's, and the
    # learning rate no longer falls with t_k.
    revision: ClassVar[int] = 2

    def __init__(self, setup: Setup, *, policy_steps: Count = 10, **ppo: Any) -> None:
        super().__init__(setup, **ppo)
        self.policy_steps = policy_steps
        self.policy_optimizer = Adam(
            self.policy.parameters(),
            self.learning_rate,
            epsilon=1e-5,
            max_gradient_norm=self.optimizer.max_gradient_norm,
        )
        # In their code the value's Adam has the usual epsilon and no bound on the gradient.
        self.optimizer = Adam(self.critic.parameters(), self.learning_rate)

    def improve(self, samples: Samples) -> Metrics:
        """Take the policy's steps, and fit the value."""
        metrics = self.improve_policy(samples)
        loss = torch.zeros(())
        for part in self.minibatches(samples):
            loss = self.value_loss(part)
            self.optimizer.step(loss)
        return {**metrics, "value_loss": loss.detach(), "learning_rate": self.learning_rate}

    def improve_policy(self, samples: Samples) -> Metrics:
        """Take all of the policy's steps on the whole rollout; return how they went."""
        self.old_log_std = self.policy.log_std.detach().clone()
        advantage = normalized(samples.advantage)
        # A run's last update has t = 1/K, not 0.
        step_size = max(1.0 - self.progress(), 1e-3)
        for _ in range(self.policy_steps):
            gain, divergence = self.gain_and_divergence(samples, advantage)
            self.policy_optimizer.step(divergence / step_size - gain)
        with torch.no_grad():
            gain, divergence = self.gain_and_divergence(samples, advantage)
        return {
            "policy_loss": -gain.detach(),
            "kl": divergence.detach(),
            "step_size": step_size,
            "entropy": self.policy.entropy().detach(),
        }

    def gain_and_divergence(self, samples: Samples, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [rho A] and mean KL(pi || pi_old), both scalars.

        Args:
            samples: the whole rollout.
            advantage: normalised, ``[M]``.
        """
        mean = self.policy.head(samples.obs)
        log_prob = self.policy.log_prob(mean, samples.action)
        gain = ((log_prob - samples.log_prob).exp() * advantage).mean()
        divergence = gaussian_kl(mean, self.policy.log_std, samples.mean, self.old_log_std)
        return gain, divergence.mean()
