"""A flow policy with a label for what is good, and a weight of guidance that its user chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.schedulers import flow_sampler, readjusted_scheduler
from trimtab.settings import Bounds, Size, Steps
from trimtab.types import Batch, Obs, PolicySpec

GUIDANCE = "guidance"
"""Name of the input that weighs the label."""

NONE, NEGATIVE, POSITIVE = range(3)
"""Labels of an action: nothing is said of it, it is worse than usual, it is as good or better."""


class GuidedFlowPolicy(Policy):
    """Carry a latent along ``v = v(none) + w (v(positive) - v(none))`` to an action chunk.

    Frans et al., "Diffusion Guidance Is a Controllable Policy Improvement Operator" (arXiv
    2505.23458). The weight w is a part of what the policy reads, ``guidance``: 0 is the policy that
    cloned everything, 1 the one that cloned what is good, and more goes beyond it. A robot sets it
    by ``runner.reset(guidance=2.0)``. Where the spec has no such part, w is always ``guidance``.

    Args:
        spec: shapes and limits, with the part ``guidance`` as the last one, or without it.
        hidden: widths of the hidden layers.
        time_dim: width of the sinusoidal time features.
        sampling_steps: Euler steps at acting time.
        label_dim: numbers by which a label is told to the network.
        guidance: w where the spec has no part for it.
        scheduler: as that of a flow policy, with ``scheduler_settings`` and ``table``.
        scheduler_settings: see there.
        table: see there.

    Raises:
        TrimtabError: if that part is there and not the last one, or ``label_dim`` is less than 1.
    """

    built_by_method = True
    neutral = MappingProxyType({"scheduler": None, "scheduler_settings": None, "table": None})
    derived = frozenset({"table"})
    adjustable = frozenset({"guidance", "sampling_steps", "scheduler", "scheduler_settings"})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        sampling_steps: Steps = 16,
        label_dim: Size = 32,
        guidance: float = 1.0,
        scheduler: str | None = None,
        scheduler_settings: Mapping[str, Any] | None = None,
        table: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = GUIDANCE in spec.layout
        if chosen and (list(spec.layout)[-1] != GUIDANCE or spec.layout[GUIDANCE].size != 1):
            raise TrimtabError(
                f"guided_flow policy: {GUIDANCE} must be the last part and one number; leave it out"
            )
        sampler, keywords = flow_sampler(sampling_steps, scheduler, scheduler_settings, table)
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, sampler.noise_shape(*shape), guidance=float(guidance), **keywords)
        self.chosen, self.guidance, self.sampler = chosen, float(guidance), sampler
        self.told = nn.Embedding(3, label_dim)
        self.network = DenoisingNetwork(self.features_dim + label_dim, shape, hidden, time_dim)

    @classmethod
    def readjusted(cls, config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with changes; another scheduler does not take over the old settings."""
        return readjusted_scheduler(super().readjusted(config, changes), config, changes)

    @property
    def features_dim(self) -> int:
        """How many numbers of an observation there are beside the weight of guidance."""
        return self.spec.obs_dim - self.chosen

    def read(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Return the normalised observation ``[B, F]``, and the weight of guidance ``[B]``."""
        features = self.normalizer.obs(obs)
        if self.chosen:
            return features[:, :-1], features[:, -1]
        return features, torch.full_like(features[:, 0], self.guidance)

    def condition(self, features: Tensor, label: Tensor) -> Tensor:
        """Return the share of observations ``[B, F]`` and labels ``[B]`` in the first layer."""
        return self.network.condition(torch.cat([features, self.told(label)], dim=1))

    def velocity(self, noisy: Tensor, time: Tensor, condition: Tensor, weight: Tensor) -> Tensor:
        """Return the guided velocity ``[B, H, A]``.

        Args:
            noisy: chunks on their way ``[B, H, A]``.
            time: from 0 to 1, ``[1]``.
            condition: of the label none for B rows, then of the label positive for the same rows.
            weight: of guidance ``[B]``.
        """
        both: Tensor = self.network(torch.cat([noisy, noisy]), time, condition)
        none, positive = both.reshape(2, -1, *noisy.shape[1:])
        guided: Tensor = none + weight[:, None, None] * (positive - none)
        return guided

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        features, weight = self.read(obs)
        none = torch.zeros_like(weight, dtype=torch.long) + NONE
        condition = torch.cat(
            [self.condition(features, none), self.condition(features, none + POSITIVE)]
        )
        action = self.sampler(lambda x, time: self.velocity(x, time, condition, weight), noise)
        return self.normalizer.raw_action(action)

    def label_errors(self, batch: Batch, features: Tensor, label: Tensor) -> Tensor:
        """Return ``(v(x_t, t, s, label) - (a - eps))^2`` ``[B, H, A]``.

        Args:
            batch: with chunks of the policy's length.
            features: normalised observations ``[B, F]``.
            label: of each row ``[B]``.
        """
        clean = self.normalizer.normalize_action(batch.action)
        epsilon = torch.randn_like(clean)
        time = torch.rand(len(clean), device=clean.device)
        noisy = torch.lerp(epsilon, clean, time[:, None, None])
        velocity = self.network(noisy, time, self.condition(features, label))
        error: Tensor = (velocity - (clean - epsilon)).square()
        return error
