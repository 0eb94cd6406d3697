"""Minimal iterative policy: regression in two steps, the second a correction of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.settings import Bounds, Size
from trimtab.types import Batch, Obs, PolicySpec


class MIPPolicy(Policy):
    """Two-step regression (Pan et al., "Much Ado About Noising", arXiv 2512.01809).

    With a network f(x, t | o) that predicts the clean chunk, and t* = 0.9:

    - acting:  a_0 = f(0, 0 | o),  a = f(a_0, t* | o); nothing is drawn
    - loss:    |f(0, 0 | o) - a|^2 / t*^2 + |f(a + (1 - t*) eps, t* | o) - a|^2 / (1 - t*)^2,
               eps ~ N(0, I), times a constant

    It has the two steps and the training noise of a flow and no distribution, so it shows what of a
    generative clone's score comes from its distribution. Both steps are as in the authors' code;
    the paper writes ``t* a + (1 - t*) eps`` for the second input. Its noise has shape ``(0,)``, so
    it cannot be steered through it.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        time_dim: width of the sinusoidal time features.
        second_time: t* of the second step.
    """

    evaluate_deterministic = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        second_time: Annotated[float, Bounds(above=0, below=1)] = 0.9,
    ) -> None:
        super().__init__(spec, (0,))
        self.second_time = second_time
        shape = (spec.horizon, spec.action_dim)
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)

    def _step(self, chunk: Tensor, time: float, condition: Tensor) -> Tensor:
        """Return f(x, t | o): the clean chunk ``[B, H, A]`` as seen from ``chunk``."""
        at = torch.full((1,), time, device=chunk.device)
        clean: Tensor = self.network(chunk, at, condition)
        return clean

    def _first(self, condition: Tensor) -> Tensor:
        shape = (condition.shape[0], self.spec.horizon, self.spec.action_dim)
        return self._step(torch.zeros(shape, device=condition.device), 0.0, condition)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``; ``noise`` ``[B, 0]`` is empty."""
        condition = self.network.condition(self.normalizer.obs(obs))
        chunk = self._step(self._first(condition), self.second_time, condition)
        # The empty noise is added up so that an exported graph still has it as an input.
        return self.normalizer.raw_action(chunk + noise.sum())

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the loss of both steps, each weighted by the inverse square of its noise.

        The whole is scaled by ``(1 - t*)^2``, so that the second step weighs as plain regression
        does (in the authors' code by 0.1, which one learning rate for all policies does not fit).
        """
        clean = self.normalizer.normalize_action(batch.action)
        condition = self.network.condition(self.normalizer.obs(batch.obs))
        left = 1.0 - self.second_time
        noisy = clean + left * torch.randn_like(clean)
        first = (self._first(condition) - clean).square() * (left / self.second_time) ** 2
        second = (self._step(noisy, self.second_time, condition) - clean).square()
        return self.masked_mean(first + second, batch.valid)
