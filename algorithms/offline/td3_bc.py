"""TD3+BC: a minimalist approach to offline reinforcement learning.

Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860): TD3,
with an actor that is also held to the actions of the data, on observations of mean 0 and standard
deviation 1:

- actor:  L_mu = -lambda mean Q_1(s, mu(s)) + mean (mu(s) - a)^2
          with lambda = alpha / mean |Q_1(s, mu(s))|, which gets no gradient

Online it goes on with the same loss, on what the run gathers and, by ``offline_share``, on the
data.

Deviation: actions of a chunk that its episode cut short are left out of the imitation term.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.settings import NonNegative
from trimtab.types import Batch


class TD3BC(TD3):
    """TD3 with behaviour cloning.

    Args:
        setup: needs ``dataset``.
        alpha: weight of the value against imitation.
        td3: settings of TD3.
    """

    needs = Needs({"dataset"}, transitions_only=True)  # as the authors' loader has them
    revision = 2  # 1 counted the last observation of each episode in the statistics, too
    capturable = True

    def __init__(self, setup: Setup, *, alpha: NonNegative = 2.5, **td3: Any) -> None:
        super().__init__(setup, **td3)
        assert setup.statistics is not None
        self.alpha = alpha
        for policy in (self.policy, self.policy_target):
            policy.normalizer.standardize(setup.statistics)

    def policy_loss(self, data: Batch, value: Tensor, squashed: Tensor) -> Tensor:
        """Return the value's loss at its own scale, and the imitation of the batch's actions."""
        scale = self.alpha / value.abs().mean().detach()
        target = self.policy.normalizer.normalize_action(data.action)
        imitation = self.policy.masked_mean((squashed - target).square(), data.valid)
        return -scale * value.mean() + imitation
