"""Observations, noise and rows that are drawn for a policy, the same every time."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.types import Batch, PolicySpec, Statistics


def draws(policy: Policy, count: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(count, policy.spec.obs_dim, generator=generator)
    return obs, torch.randn(count, *policy.noise_shape, generator=generator)


def batch_for(spec: PolicySpec, count: int = 8, seed: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    shape = (count, spec.horizon, spec.action_dim)
    obs = torch.randn(count, spec.obs_dim, generator=generator)
    return Batch(
        obs=obs,
        action=low + (high - low) * torch.rand(shape, generator=generator),
        reward=torch.zeros(count),
        next_obs=obs,
        discount=torch.ones(count),
        valid=torch.ones(shape[:2], dtype=torch.bool),
    )


def statistics(obs_low: Tensor, obs_high: Tensor, low: Tensor, high: Tensor) -> Statistics:
    return Statistics(obs_low, obs_low * 0 + 1, obs_low, obs_high, low, high)
