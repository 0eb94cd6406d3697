"""Simple policy optimisation: PPO with a quadratic penalty in place of the clip.

Xie et al., "Simple Policy Optimization" (arXiv 2401.16025), equation 10:

- policy:  L_pi = -mean [rho A - |A| / (2 eps) (rho - 1)^2]

Its best ratio is 1 + sign(A) eps, and its gradient leads back there from outside, where that of a
clipped surrogate vanishes. Everything else is PPO's.
"""

from __future__ import annotations

from torch import Tensor

from trimtab.algorithms.on_policy.ppo import PPO, Samples


class SPO(PPO):
    """Simple policy optimisation, with PPO's settings; ``clip`` is eps."""

    capturable = True

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return the penalised surrogate's loss."""
        ratio = (log_prob - part.log_prob).exp()
        penalty = part.advantage.abs() / (2 * self.clip) * (ratio - 1).square()
        return (penalty - ratio * part.advantage).mean()
