"""D-PPO: PPO that drops the samples which raise the variance of its surrogate most.

Xie, Yu and Qiao, "Dropout Strategy in Reinforcement Learning: Limiting the Surrogate Objective
Variance in Policy Optimization Methods" (arXiv 2310.20380). The paper bounds the variance of the
surrogate and drops the samples that raise the bound most, of the positive and of the negative ones
apart, so that both signs stay.

Deviations, as only the abstract was at hand: the criterion here is, with x_i = rho_i A_i the
surrogate of sample i in a minibatch of M,

- phi_i = sum_j (x_i - x_j)^2 / M,

what a sample contributes to the variance; among those with x_i > 0, and among those with x_i < 0,
the share ``dropout`` with the largest phi is left out of the clipped surrogate, in place of the
paper's threshold. The paper tests on Atari, not on continuous control. Everything else is PPO's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup, check_range
from trimtab.algorithms.ppo import PPO, Samples


class DPPO(PPO):
    """PPO with dropout of large surrogates.

    Args:
        setup: as in PPO.
        dropout: share of the samples of each sign that is left out.
        ppo: settings of PPO.
    """

    def __init__(self, setup: Setup, *, dropout: float = 0.2, **ppo: Any) -> None:
        check_range("dropout", dropout, 0, 1)
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
        """Return which samples ``[M]`` stay, by their share of the surrogate's variance."""
        # mean_j (x_i - x_j)^2 is (x_i - mean)^2 and a constant.
        spread = (surrogate - surrogate.mean()).square()
        kept = torch.ones_like(surrogate, dtype=torch.bool)
        for side in (surrogate > 0, surrogate < 0):
            count = int(self.dropout * int(side.sum()))
            if count:
                kept[torch.where(side, spread, -1.0).topk(count).indices] = False
        return kept
