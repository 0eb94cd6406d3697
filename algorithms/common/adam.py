"""Adam, from a loss to moved weights in one call.

Kingma and Ba, "Adam: A Method for Stochastic Optimization" (arXiv 1412.6980), algorithm 1; with
weight decay, Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv 1711.05101),
algorithm 2. The arithmetic is that of ``torch.optim.Adam`` and ``AdamW`` with ``fused=True``, by
the same kernels; what is left out is their bookkeeping, which for the small networks of robot
control takes longer than the kernel does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.settings import NonNegative

__all__ = ["Adam", "Group", "clip_gradients"]


@dataclass(frozen=True)
class Group:
    """Weights that share a learning rate.

    Attributes:
        parameters: the weights.
        learning_rate: alpha.
        weight_decay: lambda; each step takes ``alpha * lambda`` of a weight off it.
    """

    parameters: Sequence[nn.Parameter]
    learning_rate: float | Tensor
    weight_decay: float = 0.0


class Adam:
    """Adam over fixed weights.

    A loss is differentiated by these weights alone: others that it depends on, such as those of a
    critic that an actor climbs, get no gradients, and nothing is left in ``Tensor.grad``.

    Attributes:
        learning_rates: alpha of each group: a number, or a scalar tensor where it changes.

    Args:
        parameters: the weights, all of one type and on one device; or groups of them.
        learning_rate: alpha, of weights that come in no group.
        betas: decay rates of the two moments.
        epsilon: what is added to the root of the second moment.
        max_gradient_norm: bound on the norm of all gradients together; None: there is none.
        max_gradient: bound on the size of each single number of a gradient; None: there is none.
        weight_decay: lambda, of weights that come in no group.
        bounded_apart: whether each group's gradients are bounded by themselves.
        partial: whether a loss may leave some of the weights unused; those stay as they are, with
            their moments, in that step.

    Raises:
        ValueError: if a learning rate or weight decay is below 0 or not a number.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter | Group],
        learning_rate: NonNegative | Tensor = 0.0,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        max_gradient_norm: float | None = None,
        max_gradient: float | None = None,
        weight_decay: float = 0.0,
        bounded_apart: bool = False,
        partial: bool = False,
    ) -> None:
        groups: list[Group] = []
        loose: list[nn.Parameter] = []
        for one in parameters:
            if isinstance(one, Group):
                groups.append(one)
            else:
                loose.append(one)
        if loose:
            groups.append(Group(loose, learning_rate, weight_decay))
        for group in groups:
            if not group.learning_rate >= 0:
                raise ValueError(f"a learning rate must be at least 0, got {group.learning_rate}")
            if not group.weight_decay >= 0:
                raise ValueError(f"a weight decay must be at least 0, got {group.weight_decay}")
        self.parameters: list[Tensor] = [one for group in groups for one in group.parameters]
        self.learning_rates: list[float | Tensor] = [group.learning_rate for group in groups]
        self.weight_decays = [group.weight_decay for group in groups]
        self._sizes = [len(group.parameters) for group in groups]
        self.betas, self.epsilon = betas, epsilon
        self.max_gradient_norm, self.partial = max_gradient_norm, partial
        self.max_gradient = max_gradient
        self.bounded_apart = bounded_apart
        self.first_moment = [torch.zeros_like(weight) for weight in self.parameters]
        self.second_moment = [torch.zeros_like(weight) for weight in self.parameters]
        counts = len(self.parameters) if partial else 1  # one count for all, where all step alike
        self._counts = [torch.zeros((), device=self.parameters[0].device) for _ in range(counts)]

    @property
    def learning_rate(self) -> float | Tensor:
        """The learning rate of the first group, which is all of them where there is one."""
        return self.learning_rates[0]

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        self.learning_rates[0] = value

    def change_rate(self, value: float) -> None:
        """Give the first group another learning rate, also for steps that were captured before."""
        if isinstance(held := self.learning_rate, Tensor):
            held.fill_(value)
            return
        device = self.parameters[0].device
        exact = torch.float32 if device.type == "mps" else torch.float64
        self.learning_rate = torch.full((), value, dtype=exact, device=device)

    def step(self, loss: Tensor) -> None:
        """Take one step down ``loss``, a scalar that depends on the weights.

        Raises:
            RuntimeError: if it does not depend on one of them, unless it is ``partial``.
        """
        found = torch.autograd.grad(loss, self.parameters, allow_unused=self.partial)
        # The kernel takes every tensor to lie in memory as its weight does.
        gradients = {
            number: one.contiguous() for number, one in enumerate(found) if one is not None
        }
        with torch.no_grad():
            if self.max_gradient is not None:
                for one in gradients.values():
                    one.clamp_(-self.max_gradient, self.max_gradient)
            if self.max_gradient_norm is not None:
                for together in self._bounded_together(gradients):
                    clip_gradients(together, self.max_gradient_norm)
            if self.partial:
                torch._foreach_add_([self._counts[number] for number in gradients], 1)
            else:
                self._counts[0] += 1
            first = 0
            for group, size in enumerate(self._sizes):
                members = [number for number in range(first, first + size) if number in gradients]
                if members:
                    self._move(group, members, gradients)
                first += size

    def _bounded_together(self, gradients: Mapping[int, Tensor]) -> list[tuple[Tensor, ...]]:
        """Return the gradients in tuples. The norm of each tuple as a whole is bounded."""
        if not self.bounded_apart:
            return [tuple(gradients.values())]
        ends = itertools.accumulate(self._sizes, initial=0)
        groups = [
            tuple(gradients[number] for number in range(first, last) if number in gradients)
            for first, last in itertools.pairwise(ends)
        ]
        return [group for group in groups if group]

    def _move(self, group: int, members: Sequence[int], gradients: Mapping[int, Tensor]) -> None:
        """Move some weights of a group, given by their numbers, by their gradients."""
        decay = self.weight_decays[group]
        kernel = torch._fused_adamw_ if decay else torch._fused_adam_
        rate = self.learning_rates[group]
        if isinstance(rate, Tensor) and not rate.is_cpu:
            # Kernels of a device read 32 bits; for meta there is none that takes a tensor.
            rate = 0.0 if rate.is_meta else rate.float()
        kernel(
            [self.parameters[number] for number in members],
            [gradients[number] for number in members],
            [self.first_moment[number] for number in members],
            [self.second_moment[number] for number in members],
            [],
            [self._counts[number if self.partial else 0] for number in members],
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=decay,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return moments and counts of steps."""
        return {
            "first_moment": self.first_moment,
            "second_moment": self.second_moment,
            "steps": self._counts if self.partial else self._counts[0],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        for name in ("first_moment", "second_moment"):
            for mine, stored in zip(getattr(self, name), state[name], strict=True):
                mine.copy_(stored)
        counts = state["steps"] if self.partial else [state["steps"]]
        for mine, stored in zip(self._counts, counts, strict=True):
            mine.copy_(stored)


@torch.no_grad()
def clip_gradients(gradients: tuple[Tensor, ...], most: float) -> None:
    """Scale all gradients together so that their norm is at most ``most``."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp_(max=1.0))
