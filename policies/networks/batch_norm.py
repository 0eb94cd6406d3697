"""Batch normalisation whose mode is an argument, so that a policy never depends on a flag.

Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift" (arXiv 1502.03167); Ioffe, "Batch Renormalization: Towards Reducing Minibatch
Dependence in Batch-Normalized Models" (arXiv 1702.03275).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["BatchNorm", "BatchRenorm"]


class BatchNorm(nn.BatchNorm1d):
    """Torch's batch normalisation of ``[B, D]``, by what is told and not by ``training``."""

    def forward(self, input: Tensor, learning: bool = False) -> Tensor:  # noqa: A002
        """Return ``input`` normalised, scaled and shifted.

        Args:
            input: ``[B, D]``; torch's name for it.
            learning: whether the batch's own statistics are used, and the running ones follow
                them; else the running ones are used and stay.
        """
        return functional.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            learning,
            self.momentum or 0.0,
            self.eps,
        )


class BatchRenorm(nn.Module):
    """Batch renormalisation of ``[B, D]``, or of the rows of several members ``[E, B, D]``.

    While it learns, a batch is normalised by its own mean and deviation and then corrected towards
    the running ones, ``x' = (x - mean) / std * r + d``, by factors that get no gradients:

    - r = clip(std / running std, 1 / 3, 3),  d = clip((mean - running mean) / running std, -5, 5)

    The first ``warmup`` batches are not corrected, as the running statistics are not known yet.
    Bounds, warm-up and defaults are those of CrossQ's code, whose running variance is the biased
    one, too. There the small ``epsilon`` is added once more to the corrected variance.

    Args:
        width: D.
        members: number E of members with statistics and weights of their own; None: one.
        momentum: share of the running statistics that stays.
        epsilon: added to variances.
        warmup: batches that are not corrected.
    """

    running_mean: Tensor
    running_var: Tensor
    seen: Tensor

    def __init__(
        self,
        width: int,
        members: int | None = None,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        warmup: int = 100_000,
    ) -> None:
        super().__init__()
        shape = (1, width) if members is None else (members, 1, width)
        self.members, self.momentum, self.epsilon, self.warmup = members, momentum, epsilon, warmup
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, learning: bool = False) -> Tensor:
        """Return ``x`` normalised, scaled and shifted; see :class:`BatchNorm` for ``learning``."""
        if not learning:
            scale = self.weight * (self.running_var + self.epsilon).rsqrt()
            return torch.addcmul(self.bias - self.running_mean * scale, x, scale)
        with torch.no_grad():
            variance, mean = torch.var_mean(x, dim=-2, correction=0, keepdim=True)
            running_std = (self.running_var + self.epsilon).sqrt()
            ratio = ((variance + self.epsilon).sqrt() / running_std).clamp(1 / 3, 3)
            shift = ((mean - self.running_mean) / running_std).clamp(-5, 5)
            known = self.seen >= self.warmup
            ratio = torch.where(known, ratio, torch.ones_like(ratio))
            shift = torch.where(known, shift, torch.zeros_like(shift))
            self.running_mean.lerp_(mean, 1 - self.momentum)
            self.running_var.lerp_(variance, 1 - self.momentum)
            self.seen += 1
        scale, bias = self.weight * ratio, self.bias + self.weight * shift
        if self.members is None:
            return self._by_batch(x, scale[0], bias[0])
        # Torch's own kernel is three times as fast on a processor as the formula written out.
        rows = zip(x.unbind(), scale.unbind(), bias.unbind(), strict=True)
        return torch.stack([self._by_batch(own, a[0], b[0]) for own, a, b in rows])

    def _by_batch(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """Return ``x`` ``[B, D]`` normalised by its own statistics."""
        return functional.batch_norm(x, None, None, scale, bias, True, 0.0, self.epsilon)
