"""Mirror descent policy optimisation, on-policy.

Tomar et al., "Mirror Descent Policy Optimization" (arXiv 2005.09814), equation 6: several steps on

- policy:  L_pi = -mean [rho A - KL(pi || pi_old) / t_k]

over all of a rollout, with t_k = 1 - k / K falling from 1 to 0 over the K updates of a run, so
that the policy moves ever less. The divergence is that of the new policy from the old one, in
closed form. Everything else is PPO's.
"""

from __future__ import annotations

from torch import Tensor

from trimtab.algorithms.ppo import PPO, Samples
from trimtab.policies.diagonal_gaussian import gaussian_kl
from trimtab.types import Metrics


class MDPO(PPO):
    """On-policy mirror descent, with PPO's settings; ``decay_steps`` is where t_k reaches 0."""

    without = frozenset({"clip"})

    def improve(self, samples: Samples) -> Metrics:
        """Keep the old policy's width and go through the rollout."""
        self.old_log_std = self.policy.log_std.detach().clone()
        return super().improve(samples)

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return the surrogate's loss with its divergence."""
        ratio = (log_prob - part.log_prob).exp()
        divergence = gaussian_kl(mean, self.policy.log_std, part.mean, self.old_log_std)
        # A run's last update has t = 1/K, not 0.
        step_size = max(1.0 - self.progress(), 1e-3)
        return (divergence / step_size - ratio * part.advantage).mean()
