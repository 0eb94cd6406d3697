"""PPO that drops the samples which raise the variance of its surrogate most.

Xie, Yu and Qiao, "Dropout Strategy in Reinforcement Learning: Limiting the Surrogate Objective
Variance in Policy Optimization Methods" (arXiv 2310.20380), there called D-PPO. The paper bounds
the variance of the surrogate; one term of the bound is a correlation between samples, and samples
for which it is small are dropped. Then PPO takes its step.

An adaptation (``faithful`` is False): neither the paper's text nor its code was at hand, and what
follows is reconstructed from a summary. With x_i = rho_i A_i of the n samples of a minibatch,

- n^2 Var[x] = (n - 1) sum_i x_i^2 - sum_i phi_i,   phi_i = x_i sum_{j != i} x_j

so that a large phi_i lowers the variance. Among the samples with phi_i >= 0, and among those with
phi_i < 0, the share ``dropout`` with the smallest phi_i is left out of the clipped surrogate. The
ratio rho is that of the moment, so each gradient step chooses anew; the value learns from all
samples. Share and split are from memory. The paper tests on Atari, not on continuous control.
Everything else is PPO's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.settings import Share


class DropoutPPO(PPO):
    """PPO with dropout of the samples that raise the surrogate's variance.

    Args:
        setup: as in PPO.
        dropout: share of the samples that is left out, of those with phi >= 0 and with phi < 0.
        ppo: settings of PPO.
    """

    faithful: ClassVar[bool] = False
    # 2: as PPO; phi is the correlation with the other samples; it was the distance to their mean.
    revision: ClassVar[int] = 2
    capturable = True

    def __init__(self, setup: Setup, *, dropout: Share = 0.2, **ppo: Any) -> None:
        super().__init__(setup, **ppo)
        self.dropout = dropout

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return the clipped surrogate's loss over the samples that are kept."""
        ratio = (log_prob - part.log_prob).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        surrogate = torch.minimum(ratio * part.advantage, clipped * part.advantage)
        kept = self.kept((ratio * part.advantage).detach())
        return -(surrogate * kept).sum() / kept.sum().clamp_min(1)

    def kept(self, surrogate: Tensor) -> Tensor:
        """Return which samples stay, ``[M]`` bool, by their correlation with the others.

        Args:
            surrogate: x of each sample, ``[M]``.
        """
        correlation = surrogate * (surrogate.sum() - surrogate)
        kept = torch.ones_like(surrogate, dtype=torch.bool)
        for side in (correlation >= 0, correlation < 0):
            rank = torch.where(side, correlation, torch.inf).argsort().argsort()
            kept &= rank >= (self.dropout * side.sum().double()).floor()
        return kept
