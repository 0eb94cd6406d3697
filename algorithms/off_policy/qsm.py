"""QSM: a diffusion policy whose predicted noise is matched to the critics' slope.

Psenka et al., "Learning a Diffusion Model Policy from Rewards via Q-Score Matching" (arXiv
2312.11752), algorithm 1; in the settings of flow-rl (arXiv 2603.27450, its
``flowrl/agent/online/qsm.py``):

- critic:  as :mod:`trimtab.algorithms.off_policy.sdac`
- noise:   a_t = alpha_t a + sigma_t e,  a from the buffer, t uniform, e ~ N(0, I)
- policy:  g = slope of mean_i Q'_i(s, .) at a_t
           L_pi = mean |eps(s, a_t, t) + sigma_t g / (temperature mean |g|)|^2

A policy with the density ``exp(Q / temperature)`` at every level of noise has the score ``g /
temperature``, and predicted noise is minus sigma_t times the score. That of noisy actions is
another one (the posterior's, as SDAC estimates it), so the policy is a heuristic: at high levels
it climbs a critic where no action has been. The mean size of the slopes of the batch, over all its
entries, makes the temperature one without units.

Deviations from flow-rl: those of SDAC that are not about its candidates. The targets move after
the policy's step (there: before it).

The authors' code (Alescontrela/score_matching_rl) has otherwise: the critics in place of their
targets; no division by the mean slope (``normalize_slope=false``), and ``M_q`` 50 without sigma_t
in place of the temperature; 5 levels with a variance-preserving schedule; noise of 0.1 on the
target's action, too; single draws in evaluation (``action_candidates=1``). The port in SDAC's
repository has a fixed Langevin chain without levels, which is another method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.sdac import SDAC
from trimtab.settings import NonNegative, Positive
from trimtab.types import Metrics, Obs


class QSM(SDAC):
    """Q-score matching.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        temperature: divides the slope of the critics.
        normalize_slope: whether slopes are divided by their mean size in the batch; without it the
            temperature is in units of the return.
        exploration_noise: see :class:`SDAC`.
        keywords: those of :class:`SDAC`.
    """

    capturable = True
    unused_settings = frozenset({"candidates"})  # it has no clean actions to weigh

    def __init__(
        self,
        setup: Setup,
        *,
        temperature: Positive = 0.1,
        normalize_slope: bool = True,
        exploration_noise: NonNegative = 0.1,
        **keywords: Any,
    ) -> None:
        super().__init__(
            setup, temperature=temperature, exploration_noise=exploration_noise, **keywords
        )
        self.normalize_slope = normalize_slope

    def update_policy(self, raw_obs: Obs, obs: Tensor, action: Tensor) -> Metrics:
        """Take one step of the policy."""
        noisy, level, _ = self.add_noise(action)
        slope = self.slope(obs, noisy)
        size = slope.abs().mean() + 1e-6
        wanted = self.noise_of(slope / size if self.normalize_slope else slope, level)
        loss = (self.predict_noise(obs, noisy, level) - wanted).square().mean()
        self.policy_optimizer.step(loss)
        return {"policy_loss": loss.detach(), "slope": size}

    def slope(self, obs: Tensor, noisy: Tensor) -> Tensor:
        """Return the gradient ``[B, H, A]`` of the target critics' mean at noisy chunks."""
        point = noisy.detach().requires_grad_()
        value = self.target(obs, point).mean(0).sum()
        (found,) = torch.autograd.grad(value, point)
        return found

    def noise_of(self, slope: Tensor, level: Tensor) -> Tensor:
        """Return the noise ``[B, H, A]`` whose score is ``slope / temperature``."""
        _, sigma = self.scales(level)
        return -sigma * slope / self.temperature
