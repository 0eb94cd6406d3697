"""A deterministic policy: the actor of TD3."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import Activation, mlp
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Positive, Size
from trimtab.types import Batch, Obs, PolicySpec


class DeterministicPolicy(Policy):
    """``action = tanh(network(obs))``, scaled to the action limits; it takes no noise.

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv
    1802.09477), appendix C. Its noise has shape ``(0,)``, so it cannot be steered through it.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        layer_norm: normalise after each hidden layer.
        activation: of the hidden layers: relu, tanh, elu, gelu or silu.
        normalize_observations: keep a running mean and standard deviation of observations.
        obs_limit: normalised observations are clipped to ``[-obs_limit, obs_limit]``; None: they
            are not, and those with running statistics are clipped at 10.

    Raises:
        TrimtabError: if ``obs_limit`` is not above 0.
    """

    evaluate_deterministic = True
    neutral = MappingProxyType({"normalize_observations": False, "obs_limit": None})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = False,
        activation: Activation = "relu",
        normalize_observations: bool = False,
        obs_limit: Positive | None = None,
    ) -> None:
        super().__init__(spec, (0,))
        if obs_limit is not None:
            self._clip_observations(obs_limit)
        if normalize_observations:
            self.normalizer = RunningNormalizer(spec, 10.0 if obs_limit is None else obs_limit)
        self.network = mlp(
            spec.obs_dim, hidden, spec.horizon * spec.action_dim,
            layer_norm=layer_norm, activation=activation,
        )  # fmt: skip

    def squashed(self, obs: Obs) -> Tensor:
        """Return actions scaled to [-1, 1], ``[B, H, A]``, for raw ``obs`` ``[B, O]``."""
        action = torch.tanh(self.network(self.normalizer.obs(obs)))
        return action.reshape(-1, self.spec.horizon, self.spec.action_dim)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``; ``noise`` ``[B, 0]`` is empty."""
        # The empty noise is added up so that an exported graph still has it as an input.
        return self.normalizer.raw_action(self.squashed(obs) + noise.sum())

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the mean squared error of actions scaled to [-1, 1]."""
        target = self.normalizer.normalize_action(batch.action)
        return self.masked_mean((self.squashed(batch.obs) - target).square(), batch.valid)
