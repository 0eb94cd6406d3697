"""Flow-matching policy: carry a latent to an action chunk along a learned velocity."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.samplers import Euler
from trimtab.types import Batch, Obs, PolicySpec


class FlowPolicy(Policy):
    """Flow matching with straight paths (Lipman et al., arXiv 2210.02747), time from 0 to 1.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        time_dim: width of the sinusoidal time features.
        sampling_steps: Euler steps at acting time.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[int] = (256, 256, 256),
        time_dim: int = 16,
        sampling_steps: int = 10,
    ) -> None:
        self.sampler = Euler(sampling_steps)
        shape = (spec.horizon, spec.action_dim)
        super().__init__(
            spec,
            self.sampler.noise_shape(*shape),
            hidden=list(hidden),
            time_dim=time_dim,
            sampling_steps=sampling_steps,
        )
        self.network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim)

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
