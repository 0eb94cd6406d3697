"""A Gaussian policy whose mean and width depend on the state and have bounds: Uni-O4's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab.policies.base import Policy
from trimtab.policies.networks.critic import EnsembleLinear
from trimtab.policies.networks.initial import orthogonal_members_
from trimtab.policies.networks.mlp import check_widths
from trimtab.settings import Size
from trimtab.types import Obs, PolicySpec

__all__ = ["BoundedGaussianPolicy", "MemberGaussians", "density"]

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_LEAST_LOG_STD = -5.0


class MemberGaussians(nn.Module):
    """E Gaussians of action chunks in each state, by E perceptrons in one batched pass.

    Means are from -1 to 1, log standard deviations from -5 to 0: each is a tanh, spread over its
    range. Weights begin orthogonal.

    Args:
        obs_dim: length of a normalised observation.
        shape: of a chunk, H and A.
        hidden: widths of the hidden layers.
        members: number E.
    """

    def __init__(
        self, obs_dim: int, shape: tuple[int, int], *, hidden: Sequence[int], members: int = 1
    ) -> None:
        super().__init__()
        check_widths(hidden)
        self.members, self.shape = members, shape
        layers: list[nn.Module] = []
        inputs = obs_dim
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), nn.ReLU(inplace=True)]
            inputs = width
        layers.append(EnsembleLinear(members, inputs, 2 * math.prod(shape)))
        self.network = nn.Sequential(*layers)
        orthogonal_members_(self.network, last_gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations, each ``[E, B, H, A]``.

        Args:
            obs: normalised, the same for all members ``[B, O]`` or their own ``[E, B, O]``.
        """
        rows = obs.expand(self.members, -1, -1) if obs.ndim == 2 else obs
        mean, width = torch.tanh(self.network(rows)).chunk(2, dim=-1)
        log_std = 0.5 * _LEAST_LOG_STD * (1.0 - width)
        return mean.unflatten(-1, self.shape), log_std.unflatten(-1, self.shape)


def density(action: Tensor, mean: Tensor, log_std: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return log-densities ``[..., B]`` of normalised chunks ``[..., B, H, A]``.

    Args:
        action: chunks.
        mean: of each Gaussian.
        log_std: of each Gaussian.
        valid: which actions of a chunk count, ``[B, H]``; None: all.
    """
    scaled = (action - mean) * (-log_std).exp()
    each = -0.5 * scaled.square() - log_std - _LOG_ROOT_TWO_PI
    steps = each.sum(-1)
    return (steps if valid is None else steps * valid).sum(-1)


class BoundedGaussianPolicy(Policy):
    """``action = mean(obs) + std(obs) * noise`` in normalised units, clipped to the limits.

    Lei et al., "Uni-O4: Unifying Online and Offline Deep Reinforcement Learning with Multi-Step
    On-Policy Optimization" (arXiv 2311.03351), in their code. Nothing squashes a sample, so that
    its density is the Gaussian's own. Judged at its mean.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
    """

    evaluate_deterministic = True
    built_by_method = True

    def __init__(self, spec: PolicySpec, *, hidden: Sequence[Size] = (256, 256, 256)) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        self.network = MemberGaussians(spec.obs_dim, shape, hidden=hidden)

    def head(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log widths ``[B, H, A]`` for normalised observations ``[B, O]``."""
        mean, log_std = self.network(features)
        return mean[0], log_std[0]

    def unclipped(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return normalised actions ``[B, H, A]`` before they are clipped."""
        mean, log_std = self.head(self.normalizer.obs(obs))
        return mean + log_std.exp() * noise

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.unclipped(obs, noise))
