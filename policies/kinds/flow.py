"""Flow-matching policy: carry a latent to an action chunk along a learned velocity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.samplers import Field
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
        prefix: most of a chunk's first actions that are known already, as those which are played
            while the chunk is computed; 0: none ever is. In training their number is drawn evenly
            from 0 to it, they stand clean in the chunk, and the loss is that of the others
            (training-time real-time chunking, arXiv 2512.05964; there they have flow time 1, here
            a mask in the first layer tells them).

    Raises:
        TrimtabError: if there is no such scheduler, its settings do not fit, or ``prefix`` is not
            less than the chunk's length.
    """

    neutral = MappingProxyType(
        {"scheduler": None, "scheduler_settings": None, "table": None, "prefix": 0}
    )
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
        prefix: Annotated[int, Bounds(least=0)] = 0,
    ) -> None:
        if prefix >= spec.horizon:
            raise TrimtabError(
                f"policy.prefix={prefix}: a chunk has {spec.horizon} actions; give fewer"
            )
        sampler, keywords = flow_sampler(sampling_steps, scheduler, scheduler_settings, table)
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, sampler.noise_shape(*shape), **keywords)
        self.sampler, self.prefix = sampler, prefix
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)
        if prefix:
            self.known_layer = nn.Linear(spec.horizon, hidden[0], bias=False)

    @classmethod
    def settled(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with those of a ``scheduler_config.json`` in place of its path."""
        return settled_scheduler(settings)

    @classmethod
    def readjusted(cls, config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with changes; another scheduler does not take over the old settings."""
        return readjusted_scheduler(super().readjusted(config, changes), config, changes)

    def field(self, obs: Obs, known: Tensor | None = None) -> Field:
        """Return the velocity at some observations.

        Args:
            obs: raw observations ``[B, O]``, or parts.
            known: ``[B, H]``, 1 for the actions that stand clean in a chunk, which only a policy
                with a ``prefix`` is told; None: none does.
        """
        condition = self.network.condition(self.normalizer.obs(obs))
        if known is not None:
            condition = condition + self.known_layer(known)
        return lambda x, time: self.network(x, time, condition)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.sampler(self.field(obs), noise))

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the mean of :meth:`bc_errors`, over the actions that were not known."""
        error, known = self._errors(batch)
        return self.masked_mean(error, batch.valid if known is None else batch.valid & ~known)

    def bc_errors(self, batch: Batch) -> Tensor:
        """Return ``(v(x_t, t) - (a - eps))^2`` with ``x_t = (1 - t) eps + t a`` ``[B, H, A]``.

        Of the first actions that a policy with a ``prefix`` was told, it is 0.
        """
        error, known = self._errors(batch)
        return error if known is None else error * ~known[..., None]

    def _errors(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the errors, and which actions were known ``[B, H]``."""
        clean = self.normalizer.normalize_action(batch.action)
        epsilon = torch.randn_like(clean)
        time = torch.rand(len(batch), device=clean.device)
        noisy = torch.lerp(epsilon, clean, time[:, None, None])
        known = None
        if self.prefix:
            length = torch.randint(self.prefix + 1, (len(batch), 1), device=clean.device)
            known = torch.arange(self.spec.horizon, device=clean.device) < length
            noisy = torch.where(known[..., None], clean, noisy)
        velocity = self.field(batch.obs, None if known is None else known.float())(noisy, time)
        return (velocity - (clean - epsilon)).square(), known
