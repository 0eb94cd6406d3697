"""Annealed Q-learning with TD3 (AQ-TD3).

Omura et al., "Gradual Transition from Bellman Optimality Operator to Bellman Operator in Online
Reinforcement Learning" (arXiv 2506.05968). The critics' error is an expectile's:

- critic:  L_Q = sum_i mean |tau - 1[y < Q_i]| (y - Q_i)^2,  y as in TD3

With tau near 1 the critics model the best of the actions that the policy takes (the optimality
operator), with 1/2 their mean (the Bellman operator); tau falls from one to the other in a line. It
speeds learning up early and leaves no bias at the end. Everything else is TD3's.

Deviation: the paper's start and length of the schedule could not be read; they are settings.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.critic import AnnealedExpectile, expectile_loss
from trimtab.algorithms.td3 import TD3


class AnnealedTD3(TD3):
    """TD3 with annealed expectile critics.

    Args:
        setup: as in TD3.
        expectile: tau at the start.
        anneal_steps: environment steps after which tau is 1/2, those of the warm-up included.
        td3: settings of TD3.
    """

    def __init__(
        self, setup: Setup, *, expectile: float = 0.9, anneal_steps: int = 100_000, **td3: Any
    ) -> None:
        super().__init__(setup, **td3)
        updates_per_step = self.updates_per_decision / setup.spec.horizon
        self.expectile = AnnealedExpectile(
            expectile, anneal_steps, self.warmup_steps, updates_per_step
        )

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the expectile's loss; at 1/2 it is TD3's."""
        return expectile_loss(value, backup, self.expectile.after(self.updates))
