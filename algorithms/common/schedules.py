"""What changes along a run: learning rates, and how often an action is corrected."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["UpdateCount", "Progress", "average_decay", "cosine", "rising"]


class UpdateCount(nn.Module):
    """How many updates there were, as a tensor.

    A GPU that replays an update runs none of its Python. So what changes along a run is computed
    from a tensor, which the update itself counts on.

    Args:
        device: of the tensor.
    """

    updates: Tensor

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        # With 64 bits a schedule has the numbers that it would have in Python; MPS has none.
        exact = torch.float32 if torch.device(device).type == "mps" else torch.float64
        self.register_buffer("updates", torch.zeros((), dtype=exact, device=device))

    def forward(self) -> Tensor:
        """Return the number of updates, a float64 scalar."""
        return self.updates

    def increase(self) -> None:
        """Count an update."""
        self.updates += 1


def cosine(start: float, end: float, updates: Tensor, length: int) -> Tensor:
    """Return a rate that falls from ``start`` to ``end`` by half a cosine, and stays there.

    Args:
        start: the rate of the first update.
        end: the rate after ``length`` updates.
        updates: how many were made, a scalar.
        length: of the fall.
    """
    progress = (updates / max(length, 1)).clamp(max=1.0)
    return end + (start - end) * 0.5 * (1.0 + torch.cos(math.pi * progress))


def rising(highest: float, updates: Tensor, length: int) -> Tensor:
    """Return a rate that rises evenly to ``highest`` and stays there.

    The first of ``length`` updates has one part in ``length`` of it, the last one has all of it.

    Args:
        highest: the rate after the rise.
        updates: how many were made, a scalar.
        length: updates of the rise; 0: there is none.
    """
    return highest * ((updates + 1) / max(length, 1)).clamp(max=1.0)


def average_decay(highest: float, updates: Tensor) -> Tensor:
    """Return the decay of an average of weights, ``min(highest, (1 + n) / (10 + n))``.

    So the average forgets its start quickly at first.
    """
    return ((1 + updates) / (10 + updates)).clamp(max=highest)


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
