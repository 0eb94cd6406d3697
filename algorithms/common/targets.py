"""Target networks, which follow the ones that learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["polyak"]


@torch.no_grad()
def polyak(
    target: nn.Module, online: nn.Module, rate: float | Tensor, *, buffers: bool = True
) -> None:
    """Move ``target`` to ``online`` by ``rate``: ``target <- (1 - rate) target + rate online``.

    Args:
        target: moves.
        online: stays.
        rate: from 0 to 1.
        buffers: whether buffers, such as the statistics of batch normalisation or of a normaliser,
            are copied, as in Stable-Baselines3; otherwise the target keeps its own.
    """
    if isinstance(rate, Tensor):
        rate = rate.to(next(target.parameters()).dtype)
    for mine, ahead in zip(target.parameters(), online.parameters(), strict=True):
        mine.lerp_(ahead, rate)
    if not buffers:
        return
    for behind, now in zip(target.buffers(), online.buffers(), strict=True):
        behind.copy_(now)
