"""A policy that maps its noise to an action chunk in one pass: the actor of flow Q-learning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import Activation, mlp
from trimtab.policies.normalizer import ClippedNormalizer, Normalizer
from trimtab.settings import Positive, Size
from trimtab.types import Obs, PolicySpec


class OneStepPolicy(Policy):
    """``action = network(obs, noise)``, clipped to the action limits.

    Park et al., "Flow Q-Learning" (arXiv 2502.02538), section 4. Its noise is one latent chunk
    ``(H, A)``, that of the flow whose end points it learns, so that it can be steered as well.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        layer_norm: normalise after each hidden layer.
        activation: of the hidden layers: relu, tanh, elu, gelu or silu.
        obs_limit: normalised observations are clipped to ``[-obs_limit, obs_limit]``; None: they
            are not.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        layer_norm: bool = False,
        activation: Activation = "gelu",
        obs_limit: Positive | None = None,
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        if obs_limit is not None:
            self.normalizer = ClippedNormalizer(spec, obs_limit)
        flat = spec.horizon * spec.action_dim
        self.network = mlp(
            spec.obs_dim + flat, hidden, flat, layer_norm=layer_norm, activation=activation
        )

    def unclipped(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return normalised actions ``[B, H, A]`` that no limit holds."""
        read = torch.cat([self.normalizer.obs(obs), noise.flatten(1)], dim=1)
        action: Tensor = self.network(read)
        return action.reshape(-1, *self.noise_shape)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.unclipped(obs, noise))

    def read_as(self, normalizer: Normalizer) -> None:
        """Take the units of observations and actions of ``normalizer``, whose clip must be its own.

        Args:
            normalizer: of the policy that it learns from.
        """
        assert normalizer.limit == self.normalizer.limit
        for name, mine in self.normalizer.named_buffers():
            mine.copy_(normalizer.get_buffer(name))
