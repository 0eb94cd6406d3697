"""Consistency policy: from noise to an action chunk in one evaluation of a network, or in a few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.settings import Bounds, Positive, Size
from trimtab.types import Batch, Obs, PolicySpec

RHO = 7.0  # of the grid of noise levels (Karras et al., arXiv 2206.00364, equation 5)


class ConsistencyPolicy(Policy):
    """A map ``f(x, sigma)`` from a noisy chunk ``x = a + sigma eps`` to a clean one.

    Song et al., "Consistency Models" (arXiv 2303.01469), with the parametrisation of ConRFT (Chen
    et al., arXiv 2502.05450) and Consistency Policy (Prasad et al., arXiv 2405.07503):

        f(x, sigma) = c_skip x + c_out F(c_in x, sigma),   f(x, sigma_min) = x
        c_skip = s^2 / ((sigma - sigma_min)^2 + s^2)
        c_out  = s (sigma - sigma_min) / sqrt(sigma^2 + s^2),   c_in = 1 / sqrt(sigma^2 + s^2)

    An action is ``f(sigma_max eps, sigma_max)``, where ``eps`` is the policy's noise. With several
    sampling steps, noise is added again at lower levels (Song et al., algorithm 1) to the clipped
    chunk; the noise of the later steps is a part of the policy's noise.

    F reads the position of ``ln sigma`` between its limits, from 0 to 1 (published: 250 ln sigma).

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        time_dim: width of the sinusoidal features of the noise level.
        levels: number N of noise levels.
        sampling_steps: evaluations of the network at acting time.
        sigma_min: the lowest noise level, where a chunk counts as clean.
        sigma_max: the highest noise level.
        sigma_data: standard deviation s that normalised actions are taken to have.

    Raises:
        TrimtabError: if the levels are not in order, or there are fewer of them than steps.
    """

    adjustable = frozenset({"sampling_steps"})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        levels: Annotated[int, Bounds(least=2, most=1 << 16)] = 40,
        sampling_steps: Annotated[int, Bounds(least=1, most_of="levels")] = 1,
        sigma_min: Positive = 0.002,
        sigma_max: Annotated[float, Bounds(above_of="sigma_min", most=1e6)] = 80.0,
        sigma_data: Positive = 0.5,
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape if sampling_steps == 1 else (sampling_steps, *shape))
        self.levels, self.sampling_steps = levels, sampling_steps
        self.sigma_min, self.sigma_max, self.sigma_data = sigma_min, sigma_max, sigma_data
        first, last = sigma_max ** (1 / RHO), sigma_min ** (1 / RHO)
        grid = [(first + i / (levels - 1) * (last - first)) ** RHO for i in range(levels)]
        self.register_buffer("sigmas", torch.tensor(grid), persistent=False)
        # Three steps of 80 levels are taken at the levels 0, 27 and 54, as in Consistency Policy.
        self._steps = [grid[-(-k * levels // sampling_steps)] for k in range(sampling_steps)]
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)

    sigmas: Tensor

    def denoise(self, noisy: Tensor, sigma: Tensor, condition: Tensor) -> Tensor:
        """Return ``f``: the clean chunks ``[B, H, A]``, normalised and not clipped.

        Args:
            noisy: ``x``, ``[B, H, A]``.
            sigma: noise level of each row ``[B]``, or ``[1]`` for all of them.
            condition: what ``network.condition`` makes of the normalised observations.
        """
        level = sigma[:, None, None]
        spread = (level.square() + self.sigma_data**2).sqrt()
        above = level - self.sigma_min
        skip = self.sigma_data**2 / (above.square() + self.sigma_data**2)
        lowest, highest = math.log(self.sigma_min), math.log(self.sigma_max)
        position = (sigma.log() - lowest) / (highest - lowest)
        inside: Tensor = self.network(noisy / spread, position, condition)
        return skip * noisy + self.sigma_data * above / spread * inside

    def chunk(self, condition: Tensor, noise: Tensor) -> Tensor:
        """Return the normalised chunks ``[B, H, A]`` that ``noise`` leads to, not clipped."""
        draws = noise[:, None] if self.sampling_steps == 1 else noise
        noisy = self.sigma_max * draws[:, 0]
        clean = self.denoise(
            noisy, torch.full((1,), self._steps[0], device=noise.device), condition
        )
        for step, sigma in enumerate(self._steps[1:], start=1):
            added = max(sigma**2 - self.sigma_min**2, 0.0) ** 0.5
            noisy = clean.clamp(-1.0, 1.0) + added * draws[:, step]
            clean = self.denoise(noisy, torch.full((1,), sigma, device=noise.device), condition)
        return clean

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        condition = self.network.condition(self.normalizer.obs(obs))
        return self.normalizer.raw_action(self.chunk(condition, noise))

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return ConRFT's loss ``(sigma^-2 + s^-2) |f(a + sigma eps, sigma) - a|^2``.

        The level is drawn uniformly from all but the lowest one. There is neither a second level
        nor a target network in it, so at the highest level it is least at the mean of the actions:
        a clone of several modes needs several sampling steps. (Published, ``f`` is clipped to
        [-1, 1] here, where a chunk outside gets no gradient.)
        """
        clean = self.normalizer.normalize_action(batch.action)
        level = torch.randint(self.levels - 1, (len(batch),), device=clean.device)
        sigma = self.sigmas[level]
        noisy = clean + sigma[:, None, None] * torch.randn_like(clean)
        condition = self.network.condition(self.normalizer.obs(batch.obs))
        estimate = self.denoise(noisy, sigma, condition)
        weight = sigma.pow(-2) + self.sigma_data**-2
        error = weight[:, None, None] * (estimate - clean).square()
        return self.masked_mean(error, batch.valid)
