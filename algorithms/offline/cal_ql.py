"""Cal-QL: conservative values that stay above what the data's behaviour earned.

Nakamoto et al., "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning"
(arXiv 2303.05479), equation 5.1: CQL, in whose gap every action that was sampled from pi counts for

    max(Q_i(s, a_j), G(s))  in place of  Q_i(s, a_j),

where G(s) is what the data's behaviour collected from s to its episode's end, discounted. Uniform
actions have no such bound. So values are not pressed below those of the behaviour, and the policy
forgets less when it goes online.

Online the bound stays, with the returns of what was gathered, as in the authors' code (CORL drops
it); their batches are half offline data (``offline_share=0.5``).

Deviations: those of CQL; where a task's reward is sparse and an episode failed, the authors set
G = r / (1 - gamma), and here G is the sum of the rewards that there were.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trimtab.algorithms.offline.cql import CQL
from trimtab.types import Batch, BatchSpec


class CalQL(CQL):
    """CQL with a lower bound by the data's returns; its settings are CQL's."""

    batch_spec = BatchSpec(mc_return=True)
    capturable = True

    def least_values(self, data: Batch, many: int) -> Tensor:
        """Return G for sampled actions of the policy, ``[many, B]``, and no bound for others."""
        assert data.mc_return is not None
        unbounded = torch.full_like(data.mc_return, -math.inf)
        free = unbounded.expand(self.candidates, -1)
        return torch.cat([free, data.mc_return.expand(many - self.candidates, -1)])
