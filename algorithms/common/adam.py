"""Adam, from a loss to moved weights in one call.

Kingma and Ba, "Adam: A Method for Stochastic Optimization" (arXiv 1412.6980), algorithm 1. The
arithmetic is that of ``torch.optim.Adam(fused=True)``, by the same kernel; what is left out is its
bookkeeping, which for the small networks of robot control takes longer than the kernel does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """Adam over fixed weights.

    A loss is differentiated by these weights alone: others that it depends on, such as those of a
    critic that an actor climbs, get no gradients, and nothing is left in ``Tensor.grad``.

    Args:
        parameters: the weights, all of one type and on one device.
        learning_rate: alpha.
        betas: decay rates of the two moments.
        epsilon: what is added to the root of the second moment.
        max_gradient_norm: bound on the norm of all gradients together; None: there is none.

    Raises:
        ValueError: if the learning rate is below 0 or not a number.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        max_gradient_norm: float | None = None,
    ) -> None:
        if not learning_rate >= 0:
            raise ValueError(f"a learning rate must be at least 0, got {learning_rate}")
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        self.betas, self.epsilon = betas, epsilon
        self.max_gradient_norm = max_gradient_norm
        self.first_moment = [torch.zeros_like(weight) for weight in self.parameters]
        self.second_moment = [torch.zeros_like(weight) for weight in self.parameters]
        self.steps = torch.zeros((), device=self.parameters[0].device)

    def step(self, loss: Tensor) -> None:
        """Take one step down ``loss``, a scalar that depends on every one of the weights."""
        # The kernel takes every tensor to lie in memory as its weight does.
        gradients = tuple(g.contiguous() for g in torch.autograd.grad(loss, self.parameters))
        with torch.no_grad():
            if self.max_gradient_norm is not None:
                clip_gradients(gradients, self.max_gradient_norm)
            self.steps += 1
            torch._fused_adam_(
                self.parameters,
                gradients,
                self.first_moment,
                self.second_moment,
                [],
                [self.steps] * len(self.parameters),
                lr=self.learning_rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return moments and count of steps."""
        return {
            "first_moment": self.first_moment,
            "second_moment": self.second_moment,
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        for name in ("first_moment", "second_moment"):
            for mine, stored in zip(getattr(self, name), state[name], strict=True):
                mine.copy_(stored)
        self.steps.copy_(state["steps"])


@torch.no_grad()
def clip_gradients(gradients: tuple[Tensor, ...], most: float) -> None:
    """Scale all gradients together so that their norm is at most ``most``."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp_(max=1.0))
