"""State-action value functions that give distributions over fixed atoms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["AtomCritic"]


class AtomCritic(nn.Module):
    """E networks from observation and action to logits over K evenly spaced returns.

    Attributes:
        support: the returns, ``[K]``.
        members: the networks.

    Args:
        make: returns a network with fresh weights, ``[B, inputs]`` to ``[B, K]``.
        count: number E of networks.
        bound: the atoms lie from ``-bound`` to ``bound``.
        atoms: number K.
    """

    support: Tensor

    def __init__(self, make: Callable[[], nn.Module], count: int, bound: float, atoms: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(make() for _ in range(count))
        self.register_buffer("support", torch.linspace(-bound, bound, atoms))

    def forward(self, obs: Tensor, action: Tensor, **mode: Any) -> Tensor:
        """Return logits ``[E, B, K]``.

        Args:
            obs: ``[B, O]``.
            action: a chunk ``[B, H, A]``.
            mode: passed to the networks.
        """
        x = torch.cat([obs, action.flatten(1)], dim=1)
        # One after another: torch's batch normalisation is for one network, and where kernels are
        # replayed as a graph a second one costs no launch.
        return torch.stack([member(x, **mode) for member in self.members])
