"""Diffusion policy: denoise an action chunk by a learned noise estimate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.samplers import cosine_schedule
from trimtab.types import Batch, Obs, PolicySpec


class DiffusionPolicy(Policy):
    """Chi et al., "Diffusion Policy" (arXiv 2303.04137), with a perceptron as in DPPO.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        time_dim: width of the sinusoidal time features.
        train_steps: number K of noise levels, cosine schedule.
        sampler: ``ddim`` (eta 0; noise is the initial latent) or ``ddpm`` (noise: the whole path).
        sampling_steps: denoising steps at acting time.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[int] = (256, 256, 256),
        time_dim: int = 16,
        train_steps: int = 20,
        sampler: str = "ddim",
        sampling_steps: int = 5,
    ) -> None:
        self.sampler = cosine_schedule(sampler, train_steps, sampling_steps)
        super().__init__(
            spec,
            self.sampler.noise_shape(spec.horizon, spec.action_dim),
            hidden=list(hidden),
            time_dim=time_dim,
            train_steps=train_steps,
            sampler=sampler,
            sampling_steps=sampling_steps,
        )
        self.train_steps = train_steps
        full = cosine_schedule("ddpm", train_steps, train_steps)
        # Level k of the forward process keeps a share alpha[k] of the clean chunk's variance.
        self.register_buffer("alpha", torch.tensor(full.alpha[::-1]), persistent=False)
        shape = (spec.horizon, spec.action_dim)
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)

    alpha: Tensor

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        condition = self.network.condition(self.normalizer.obs(obs))
        action = self.sampler(lambda x, time: self.network(x, time, condition), noise)
        return self.normalizer.raw_action(action)

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the mean of :meth:`bc_errors`."""
        return self.masked_mean(self.bc_errors(batch), batch.valid)

    def bc_errors(self, batch: Batch) -> Tensor:
        """Return the squared error of the noise at a random level (Ho et al., eq. 14)."""
        clean = self.normalizer.normalize_action(batch.action)
        level = torch.randint(self.train_steps, (len(batch),), device=clean.device)
        epsilon = torch.randn_like(clean)
        alpha = self.alpha[level][:, None, None]
        noisy = alpha.sqrt() * clean + (1 - alpha).sqrt() * epsilon
        condition = self.network.condition(self.normalizer.obs(batch.obs))
        predicted = self.network(noisy, level / self.train_steps, condition)
        error: Tensor = (predicted - epsilon).square()
        return error
