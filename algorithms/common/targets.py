"""Target networks, which follow the ones that learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["polyak"]


@torch.no_grad()
def polyak(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move ``target`` to ``online`` by ``rate``: ``target <- (1 - rate) target + rate online``.

    Buffers, such as the statistics of batch normalisation or of a normaliser, are copied, as in
    Stable-Baselines3.
    """
    behind, behind_buffers = _tensors(target)
    ahead, ahead_buffers = _tensors(online)
    torch._foreach_lerp_(behind, [weight.detach() for weight in ahead], rate)
    for mine, other in zip(behind_buffers, ahead_buffers, strict=True):
        mine.copy_(other)


def _tensors(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters and the buffers of a module and of those in it, each once.

    They come in one order for all modules that are built alike; it is another one than that of
    ``Module.parameters``. That one also makes the names of all, which takes longer than to move
    the weights of a small network.
    """
    parameters: dict[int, Tensor] = {}
    buffers: dict[int, Tensor] = {}
    inside = [module]
    for one in inside:
        parameters |= {id(held): held for held in one._parameters.values() if held is not None}
        buffers |= {id(held): held for held in one._buffers.values() if held is not None}
        inside += [part for part in one._modules.values() if part is not None]
    return [*parameters.values()], [*buffers.values()]
