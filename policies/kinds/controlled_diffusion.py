"""A diffusion that is steered from a wide Gaussian to actions, whose paths have a cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Positive, Size, Steps
from trimtab.types import Obs, PolicySpec

_LIMIT = 1e4
"""Bound on the control, which only divergence reaches."""
_FEATURES = 128
"""Length of what the network reads of the point, of the observation and of the time."""


class ControlledDiffusionPolicy(Policy):
    """``action = tanh(x_K)``, the end of K noisy steps that a network steers.

    The policy of DIME (Celik et al., "DIME: Diffusion-Based Maximum Entropy Reinforcement
    Learning", arXiv 2502.02316), by the published code (ALRhub/DIME, ``diffusion/``), which has it
    from DIS (Berner et al., arXiv 2211.01364). With p_0 = N(0, sigma_0^2):

    - x_{k+1} = x_k + eta_k (-x_k / sigma_0^2 + f(x_k, s, k)) + sqrt(2 eta_k) noise_{k+1},
      x_0 ~ p_0
    - eta_k = softplus(dt) c_k / softplus(friction), dt and the friction of each dimension learned,
      c_k = 0.99 cos(pi/2 (1.008 - t) / 1.008)^2 + 0.01,  t = 1 - k / K

    A row's noise is its whole path: that of ``x_0``, then that of each step.

    Args:
        spec: shapes and limits.
        steps: K.
        hidden: widths of the network's hidden layers.
        initial_std: sigma_0.
        step_size: softplus(dt) at the start.

    Raises:
        TrimtabError: if there is no hidden layer.
    """

    built_by_method = True
    schedule: Tensor
    frequencies: Tensor

    def __init__(
        self,
        spec: PolicySpec,
        *,
        steps: Steps = 16,
        hidden: Sequence[Size] = (256, 256, 256),
        initial_std: Positive = 2.5,
        step_size: Positive = 0.1,
    ) -> None:
        if not hidden:
            raise TrimtabError("hidden=[]: the network needs a hidden layer, as wide as its times")
        super().__init__(spec, (steps + 1, spec.horizon, spec.action_dim))
        self.initial_std = initial_std
        size = self.size = spec.horizon * spec.action_dim
        offset = 1.008
        left = 1.0 - torch.arange(steps) / steps
        falling = torch.cos(0.5 * math.pi * (offset - left) / offset) ** 2
        self.register_buffer("schedule", 0.99 * falling + 0.01, persistent=False)
        self.raw_step = nn.Parameter(torch.full((1,), inverse_softplus(step_size)))
        self.raw_friction = nn.Parameter(torch.full((size,), inverse_softplus(1.0)))

        width = hidden[0]
        frequencies = torch.linspace(0.1, 100.0, width)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.phase = nn.Parameter(torch.zeros(width))
        self.time = nn.Sequential(
            nn.Linear(2 * width, width), nn.GELU("tanh"), nn.Linear(width, _FEATURES)
        )
        self.point = nn.Linear(size, _FEATURES)
        self.observation = nn.Linear(spec.obs_dim, _FEATURES)
        for encoder in (self.point, self.observation):
            nn.init.constant_(encoder.weight, 1e-8)
            nn.init.constant_(encoder.bias, 1.0)
        self.network = mlp(3 * _FEATURES, hidden, size)
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.weight, 1e-8)
        nn.init.zeros_(last.bias)

    @property
    def step_sizes(self) -> Tensor:
        """The sizes eta of all steps, of each dimension, ``[K, D]``."""
        friction = functional.softplus(self.raw_friction)
        return functional.softplus(self.raw_step) * self.schedule[:, None] / friction

    def times(self) -> Tensor:
        """Return what the network reads of the time of each step, ``[K, F]``."""
        steps = torch.arange(len(self.schedule), device=self.schedule.device)
        angle = steps[:, None] * self.frequencies + self.phase
        features: Tensor = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        return features

    def walk(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return where paths end, before the squashing, and what their steps cost.

        A step's cost is ``log N(x_{k+1}; forward mean, 2 eta) - log N(x_k; backward mean, 2 eta)``,
        where the backward mean is that without control, ``x_{k+1} - eta x_{k+1} / sigma_0^2``.

        Args:
            obs: normalised observations ``[B, O]``.
            noise: standard normal ``[B, K + 1, H, A]``.

        Returns:
            ``[B, D]``, and the sum of all steps' costs ``[B]``.
        """
        first, *later = noise.flatten(2).unbind(1)
        x, variance = self.initial_std * first, self.initial_std**2
        cost = obs.new_zeros(obs.shape[0])
        seen = self.observation(obs)
        for eta, time, drawn in zip(self.step_sizes, self.times(), later, strict=True):
            read = torch.cat([self.point(x), seen, time.expand_as(seen)], dim=1)
            control = self.network(read).clamp(-_LIMIT, _LIMIT)
            moved = x + eta * (control - x / variance) + (2 * eta).sqrt() * drawn
            back = (x - moved + eta * moved / variance) / (2 * eta).sqrt()
            # Both kernels have the same deviation, so that their constants cancel.
            cost = cost + 0.5 * (back.square() - drawn.square()).sum(1)
            x = moved
        return x, cost

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        end, _ = self.walk(self.normalizer.obs(obs), noise)
        return self.normalizer.raw_action(self.chunks(torch.tanh(end)))

    def sample_with_cost(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions scaled to [-1, 1], what their paths cost, and log p_0 of their starts.

        A path costs ``log p_0(x_0)``, what its steps cost, and the squashing: less ``sum log(1 -
        a^2)``. The mean cost of the paths that end in an action is at least the logarithm of its
        density, so that the mean of all, negated, is at most the entropy of actions.

        Args:
            obs: normalised observations ``[B, O]``.
            noise: standard normal ``[B, K + 1, H, A]``.

        Returns:
            ``[B, H, A]``, ``[B]``, and ``[B]``, which is a part of the cost.
        """
        x, cost = self.walk(obs, noise)
        constant = self.size * math.log(self.initial_std * math.sqrt(2 * math.pi))
        prior = -0.5 * noise[:, 0].square().flatten(1).sum(1) - constant
        # log (1 - tanh(x)^2) as 2 (log 2 - x - softplus(-2 x)).
        log_slope = 2.0 * (math.log(2.0) - x - functional.softplus(-2.0 * x)).sum(1)
        return self.chunks(torch.tanh(x)), prior + cost - log_slope, prior

    def chunks(self, flat: Tensor) -> Tensor:
        """Return ``[B, D]`` as ``[B, H, A]``."""
        return flat.reshape(-1, self.spec.horizon, self.spec.action_dim)


def inverse_softplus(value: float) -> float:
    """Return the number whose softplus is ``value``, which is above 0 and may be large."""
    return value + math.log(-math.expm1(-value))
