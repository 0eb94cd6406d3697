"""Flow-matching policy: carry a latent to an action chunk along a learned velocity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.schedulers import (
    flow_sampler,
    readjusted_scheduler,
    settled_scheduler,
)
from trimtab.settings import Bounds, Size, Steps
from trimtab.types import Batch, Obs, PolicySpec


class FlowPolicy(Policy):
    """Flow matching with straight paths (Lipman et al., arXiv 2210.02747), time from 0 to 1.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        time_dim: width of the sinusoidal time features.
        sampling_steps: Euler steps at acting time.
        scheduler: a deterministic scheduler of diffusers in place of these steps, for flow matching
            (``euler``, ``heun``) or one that takes ``use_flow_sigmas``.
        scheduler_settings: of the scheduler.
        table: the scheduler's steps, as a saved policy has them; made by diffusers if it is None.

    Raises:
        TrimtabError: if there is no such scheduler, or its settings do not fit.
    """

    neutral = MappingProxyType({"scheduler": None, "scheduler_settings": None, "table": None})
    derived = frozenset({"table"})
    adjustable = frozenset({"sampling_steps", "scheduler", "scheduler_settings"})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        sampling_steps: Steps = 10,
        scheduler: str | None = None,
        scheduler_settings: Mapping[str, Any] | None = None,
        table: Mapping[str, Any] | None = None,
    ) -> None:
        sampler, keywords = flow_sampler(sampling_steps, scheduler, scheduler_settings, table)
        shape = (spec.horizon, spec.action_dim)
        super().__init__(
            spec,
            sampler.noise_shape(*shape),
            hidden=list(hidden),
            time_dim=time_dim,
            sampling_steps=sampling_steps,
            **keywords,
        )
        self.sampler = sampler
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)

    @classmethod
    def settled(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with those of a ``scheduler_config.json`` in place of its path."""
        return settled_scheduler(settings)

    @classmethod
    def readjusted(cls, config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with changes; another scheduler does not take over the old settings."""
        return readjusted_scheduler(super().readjusted(config, changes), config, changes)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        condition = self.network.condition(self.normalizer.obs(obs))
        action = self.sampler(lambda x, time: self.network(x, time, condition), noise)
        return self.normalizer.raw_action(action)

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the mean of :meth:`bc_errors`."""
        return self.masked_mean(self.bc_errors(batch), batch.valid)

    def bc_errors(self, batch: Batch) -> Tensor:
        """Return ``(v(x_t, t) - (a - eps))^2`` with ``x_t = (1 - t) eps + t a`` ``[B, H, A]``."""
        clean = self.normalizer.normalize_action(batch.action)
        epsilon = torch.randn_like(clean)
        time = torch.rand(len(batch), device=clean.device)
        noisy = torch.lerp(epsilon, clean, time[:, None, None])
        condition = self.network.condition(self.normalizer.obs(batch.obs))
        velocity = self.network(noisy, time, condition)
        error: Tensor = (velocity - (clean - epsilon)).square()
        return error
