"""Expectile regression of values, and an expectile that is annealed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.algorithms.common.schedules import UpdateCount

__all__ = ["AnnealedExpectile", "expectile_loss"]


def expectile_loss(value: Tensor, backup: Tensor, expectile: float | Tensor) -> Tensor:
    """Return the asymmetric squared error of values ``[E, B]``, summed over the members.

    Newey and Powell (1987): errors with ``backup`` above ``value`` weigh ``expectile``, the others
    ``1 - expectile``, both times 2, so that 0.5 is the squared error and 1 leads to the maximum.
    """
    error = backup - value
    weight = torch.where(error > 0, 2 * expectile, 2 * (1 - expectile)).to(error.dtype)
    return (weight * error.square()).mean(1).sum()


class AnnealedExpectile(nn.Module):
    """An expectile that falls in a line to 1/2: from an optimality to the Bellman operator.

    ``tau(t) = tau_0 - (tau_0 - 1/2) t / T`` at environment step t, and 1/2 from T on; the line
    begins with the run and not with its first update.

    Args:
        expectile: tau_0, between 1/2 and 1.
        anneal_steps: T, environment steps.
        warmup_steps: environment steps before the first update.
        updates_per_step: updates for each environment step after them.
    """

    def __init__(
        self, expectile: float, anneal_steps: int, warmup_steps: int, updates_per_step: float
    ) -> None:
        super().__init__()
        self.count = UpdateCount()
        self.start, self.anneal_steps = expectile, anneal_steps
        self.warmup_steps, self.updates_per_step = warmup_steps, updates_per_step

    def forward(self) -> Tensor:
        """Return the expectile of the next update, a float64 scalar."""
        updates = self.count()
        # Without updates online there is nothing to anneal, and no step to count.
        learned = updates / self.updates_per_step if self.updates_per_step else 0.0 * updates
        left = (1.0 - (self.warmup_steps + learned) / self.anneal_steps).clamp(min=0.0)
        expectile: Tensor = 0.5 + (self.start - 0.5) * left
        return expectile
