"""Diffusion policy: denoise an action chunk by a learned noise estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.samplers import DDIM, DDPM, Field, TableSampler, cosine_schedule
from trimtab.policies.networks.schedulers import (
    check_alone,
    diffusion_sampler,
    readjusted_scheduler,
    settled_scheduler,
)
from trimtab.settings import Bounds, Size, Steps
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
        scheduler: a deterministic scheduler of diffusers in place of ``sampler``: a short name such
            as ``unipc``, a class, or a ``scheduler_config.json``; noise is the initial latent.
        scheduler_settings: of the scheduler.
        table: the scheduler's steps, as a saved policy has them; made by diffusers if it is None.

    Raises:
        TrimtabError: if there is no such sampler or scheduler, or its settings do not fit.
    """

    neutral = MappingProxyType({"scheduler": None, "scheduler_settings": None, "table": None})
    derived = frozenset({"table"})
    adjustable = frozenset({"sampler", "sampling_steps", "scheduler", "scheduler_settings"})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        train_steps: Steps = 20,
        sampler: str = "ddim",
        sampling_steps: Steps = 5,
        scheduler: str | None = None,
        scheduler_settings: Mapping[str, Any] | None = None,
        table: Mapping[str, Any] | None = None,
    ) -> None:
        # Level k of the forward process keeps a share alpha[k] of the clean chunk's variance.
        alpha: Sequence[float] = cosine_schedule("ddpm", train_steps, train_steps).alpha[::-1]
        chosen: DDIM | DDPM | TableSampler
        keywords: Mapping[str, Any] = {}
        if scheduler is None:
            check_alone(scheduler_settings, table)
            chosen = cosine_schedule(sampler, train_steps, sampling_steps)
        else:
            if sampler != "ddim":
                raise TrimtabError(f"policy.scheduler={scheduler}: leave out sampler={sampler}")
            chosen, alpha, keywords = diffusion_sampler(
                sampling_steps, scheduler, scheduler_settings, table, alpha
            )
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, chosen.noise_shape(*shape), **keywords)
        self.sampler, self.train_steps = chosen, train_steps
        self.register_buffer("alpha", torch.tensor(alpha), persistent=False)
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)

    alpha: Tensor

    @classmethod
    def settled(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with those of a ``scheduler_config.json`` in place of its path."""
        return settled_scheduler(settings)

    @classmethod
    def readjusted(cls, config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with changes; another scheduler does not take over the old settings."""
        return readjusted_scheduler(super().readjusted(config, changes), config, changes)

    def field(self, obs: Obs) -> Field:
        """Return the network of the noise at some observations."""
        condition = self.network.condition(self.normalizer.obs(obs))
        return lambda x, time: self.network(x, time, condition)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.sampler(self.field(obs), noise))

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
