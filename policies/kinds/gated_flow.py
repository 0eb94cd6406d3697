"""A flow with a gated velocity and noise in every step, whose path has a density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.base import Policy
from trimtab.policies.kinds.tanh_gaussian import spread_tanh
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, Size, Steps
from trimtab.types import Obs, PolicySpec

TIME_FEATURES = 32
"""Length of what the networks read of the time."""


class GatedFlowPolicy(Policy):
    """``action = tanh(x_K)``, the end of K noisy Euler steps from ``x_0 ~ N(0, I)``.

    The policy of SAC Flow, variant Flow-G (Zhang et al., arXiv 2509.25756, and its public code,
    ``SAC_flow_gru_jax.py``). The velocity is that of a gated recurrent unit:

    - x_{k+1} = x_k + v(x_k, t_k, s) / K + std(s) noise_{k+1},  t_k = k / K
    - v = gate (candidate - x),  gate = sigmoid(MLP(s, x, t)) near 1 at first,  candidate = MLP(...)

    A row's noise is its whole path: ``x_0``, then that of each step. Judged at ``noise = 0``.

    Args:
        spec: shapes and limits.
        steps: K.
        hidden: widths of the hidden layers of gate and candidate.
        log_std_hidden: widths of the hidden layers of the steps' log standard deviation.
        log_std_min: lower bound of the steps' log standard deviation, by a tanh.
        log_std_max: upper bound of it.
    """

    evaluate_deterministic = True
    built_by_method = True
    times: Tensor

    def __init__(
        self,
        spec: PolicySpec,
        *,
        steps: Steps = 4,
        hidden: Sequence[Size] = (128,),
        log_std_hidden: Sequence[Size] = (512, 512),
        log_std_min: float = -5.0,
        log_std_max: Annotated[float, Bounds(least_of="log_std_min")] = 2.0,
    ) -> None:
        super().__init__(spec, (steps + 1, spec.horizon, spec.action_dim))
        self.steps, self.log_std_range = steps, (log_std_min, log_std_max)
        size = self.size = spec.horizon * spec.action_dim
        # Sines and cosines of each step's time, at the frequencies of the public code.
        half = TIME_FEATURES // 2
        frequency = 10_000.0 ** (-torch.arange(half) / (half - 1))
        angle = torch.arange(steps)[:, None] / steps * frequency
        self.register_buffer("times", torch.cat([angle.sin(), angle.cos()], 1), persistent=False)
        self.time = mlp(TIME_FEATURES, (2 * TIME_FEATURES,), TIME_FEATURES, activation="silu")
        inputs = spec.obs_dim + size + TIME_FEATURES
        self.gate = mlp(inputs, hidden, size, activation="silu")
        self.candidate = mlp(inputs, hidden, size, activation="silu")
        self.width = mlp(spec.obs_dim, log_std_hidden, size)
        last = self.gate[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, 5.0)

    def log_std(self, obs: Tensor) -> Tensor:
        """Return every step's log standard deviation ``[B, D]`` at normalised observations."""
        return spread_tanh(self.width(obs), *self.log_std_range)

    def velocity(self, obs: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Return ``gate (candidate - x)`` of points ``[B, D]``, at a time's features ``[32]``."""
        inputs = torch.cat([obs, x, time.expand(x.shape[0], -1)], dim=1)
        velocity: Tensor = torch.sigmoid(self.gate(inputs)) * (self.candidate(inputs) - x)
        return velocity

    def walk(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the path's end ``[B, D]`` before squashing, and the steps' log std ``[B, D]``.

        Args:
            obs: normalised observations ``[B, O]``.
            noise: standard normal ``[B, K + 1, H, A]``.
        """
        log_std = self.log_std(obs)
        std, (x, *later) = log_std.exp(), noise.flatten(2).unbind(1)
        for time, drawn in zip(self.time(self.times), later, strict=True):
            x = x + self.velocity(obs, x, time) / self.steps + std * drawn
        return x, log_std

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        end, _ = self.walk(self.normalizer.obs(obs), noise)
        shape = (-1, self.spec.horizon, self.spec.action_dim)
        return self.normalizer.raw_action(torch.tanh(end).reshape(shape))

    def sample_with_log_prob(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions scaled to [-1, 1] ``[B, H, A]``, and the log-density of paths ``[B]``.

        That is log N(x_0) plus the log-density of each step, less the logarithm of the squashing's
        slope. It is the density of the whole path, which is not the density of its end.

        Args:
            obs: raw observations ``[B, O]``, or parts.
            noise: standard normal ``[B, K + 1, H, A]``.
        """
        x, log_std = self.walk(self.normalizer.obs(obs), noise)
        # N(x_{k+1}; mean, std) at the point that noise leads to is N(noise; 0, 1) / std.
        drawn = -0.5 * noise.square().flatten(1).sum(1) - self.steps * log_std.sum(1)
        constant = 0.5 * math.log(2 * math.pi) * (self.steps + 1) * self.size
        # log (1 - tanh(x)^2) as 2 (log 2 - x - softplus(-2 x)).
        log_slope = 2.0 * (math.log(2.0) - x - functional.softplus(-2.0 * x)).sum(1)
        shape = (-1, self.spec.horizon, self.spec.action_dim)
        return torch.tanh(x).reshape(shape), drawn - constant - log_slope
