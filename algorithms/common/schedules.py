"""What changes along a run: learning rates, and how often an action is corrected."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["Progress", "cosine", "rising"]


def cosine(start: float, end: float, updates: int, length: int) -> float:
    """Return a rate that falls from ``start`` to ``end`` by half a cosine, and stays there.

    Args:
        start: the rate of the first update.
        end: the rate after ``length`` updates.
        updates: how many were made.
        length: of the fall.
    """
    progress = min(updates / max(length, 1), 1.0)
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))


def rising(highest: float, updates: int, length: int) -> float:
    """Return a rate that rises evenly to ``highest`` and stays there.

    The first of ``length`` updates has one part in ``length`` of it, the last one has all of it.

    Args:
        highest: the rate after the rise.
        updates: how many were made.
        length: updates of the rise; 0: there is none.
    """
    return highest * min((updates + 1) / max(length, 1), 1.0)


class Progress(nn.Module):
    """How many decisions there were, which says how often the next one is corrected."""

    decisions: Tensor

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.register_buffer("decisions", torch.zeros((), dtype=torch.int64))

    def forward(self) -> Tensor:
        """Return the probability with which a decision is corrected, a scalar."""
        share: Tensor = (self.decisions + (self.most == 0)) / max(self.most, 1)
        return share.clamp(max=1.0)

    def coins(self, rows: int) -> Tensor:
        """Return which of as many decisions side by side are corrected ``[rows]``; count them."""
        chosen: Tensor = torch.rand(rows, device=self.decisions.device) < self()
        self.decisions += rows
        return chosen
