"""Target networks, which follow the ones that learn."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["polyak"]


@torch.no_grad()
def polyak(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move ``target`` to ``online`` by ``rate``: ``target <- (1 - rate) target + rate online``.

    Buffers, such as the statistics of batch normalisation or of a normaliser, are copied, as in
    Stable-Baselines3.
    """
    torch._foreach_lerp_(list(target.parameters()), [p.detach() for p in online.parameters()], rate)
    for behind, ahead in zip(target.buffers(), online.buffers(), strict=True):
        behind.copy_(ahead)
