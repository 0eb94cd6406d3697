"""Annealed Q-learning with soft actor-critic (AQ-SAC).

Omura et al., "Gradual Transition from Bellman Optimality Operator to Bellman Operator in Online
Reinforcement Learning" (arXiv 2506.05968). The critics' error is an expectile's:

- critic:  L_Q = sum_i mean |tau - 1[y < Q_i]| (y - Q_i)^2,  y as in SAC
           tau(t) = tau_0 - (tau_0 - 1/2) t / T at environment step t, then 1/2

With tau near 1 the critics model the best of the actions that the policy takes (the optimality
operator), with 1/2 their mean (the Bellman operator). It speeds learning up early and leaves no
bias at the end. In the paper tau_0 is 0.9 and T the length of the run. Everything else is SAC's.

At tau = 1/2 the loss is SAC's. An adaptation (``faithful`` is False): neither the paper's text nor
its code was at hand; loss and schedule are as two notes on the paper give them, all other settings
are SAC's.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.expectiles import AnnealedExpectile, expectile_loss
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.settings import Bounds, Count
from trimtab.types import Batch, Metrics


class AnnealedSAC(SAC):
    """SAC with annealed expectile critics.

    Args:
        setup: as in SAC.
        expectile: tau_0.
        anneal_steps: T, those of the warm-up included.
        sac: settings of SAC.
    """

    faithful: ClassVar[bool] = False
    # 2: tau falls from the first environment step on; it used to stay during the warm-up.
    revision: ClassVar[int] = 2
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        expectile: Annotated[float, Bounds(least=0.5, most=1)] = 0.9,
        anneal_steps: Count = 100_000,
        **sac: Any,
    ) -> None:
        super().__init__(setup, **sac)
        updates_per_step = self.pace.updates_per_decision / setup.spec.horizon
        self.expectile = AnnealedExpectile(
            expectile, anneal_steps, self.pace.warmup_steps, updates_per_step
        ).to(setup.device)

    def update(self, data: Batch) -> Metrics:
        """Take one step of SAC, and count it."""
        metrics = super().update(data)
        self.expectile.count.increase()
        return metrics

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the expectile's loss; at 1/2 it is SAC's."""
        return 0.5 * expectile_loss(value, backup, self.expectile())
