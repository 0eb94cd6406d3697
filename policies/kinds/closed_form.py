"""A mixture of squashed Gaussians that is moved up its critics in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.action_gradient import bound_and_gradient, obs_share
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import NonNegative, Size
from trimtab.types import Batch, Obs, PolicySpec

_WIDTHS = (-5.0, 2.0)
"""Range of the logarithm of a component's standard deviation."""

_INSIDE = 1.0 - 1e-6
"""Largest action that is unsquashed as it is."""

_SMALLEST = 1e-7
"""Added to a length that is divided by."""


class ClosedFormPolicy(Policy):
    """``action = tanh(mu')``, with ``mu'`` the best that a linear critic has near a clone.

    Li et al., "Offline Reinforcement Learning with Closed-Form Policy Improvement Operators" (arXiv
    2211.15956). The clone is a mixture of K diagonal Gaussians before the squashing. A critic that
    is linear around a point has its maximum, within a likelihood of the clone, in closed form; for
    a mixture there are two bounds of the likelihood, and the better of both answers is taken. The
    critic is the mean of an ensemble less some of its deviation, and its gradient is written out,
    so that clone, critics and improvement are one graph.

    Args:
        spec: shapes and limits.
        components: number K of Gaussians.
        deltas: how far the action may go, one or several; the most valued answer is played, and 0
            stands for the clone itself.
        pessimism: weight of the ensemble's deviation.
        trivial: components that weigh less propose nothing.
        hidden: widths of the hidden layers of clone and critics.
        critics: number of Q functions.

    Raises:
        TrimtabError: if a number is not in its range.
    """

    evaluate_deterministic = True
    built_by_method = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        components: Size = 1,
        deltas: Sequence[NonNegative] = (0.5,),
        pessimism: NonNegative = 1.0,
        trivial: float = 0.05,
        hidden: Sequence[Size] = (256, 256, 256),
        critics: Size = 2,
    ) -> None:
        _check(components, deltas, trivial)
        super().__init__(
            spec, (0,), deltas=[float(delta) for delta in deltas], pessimism=float(pessimism),
            trivial=float(trivial),
        )  # fmt: skip
        self.components, self.trivial = components, float(trivial)
        self.deltas, self.pessimism = tuple(float(delta) for delta in deltas), float(pessimism)
        size = self.size = spec.horizon * spec.action_dim
        self.clone = mlp(spec.obs_dim, hidden, components * (1 + 2 * size))
        self.critic = EnsembleCritic(spec.obs_dim, size, hidden=hidden, members=critics)

    def distribution(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clone's Gaussians before squashing, for normalised observations ``[B, O]``.

        These are logarithms of weights ``[B, K]``, then means and logarithms of widths, each
        ``[B, K, H * A]``.
        """
        sizes = [self.components, *[self.components * self.size] * 2]
        weight, mean, log_std = self.clone(features).split(sizes, dim=1)
        shape = (-1, self.components, self.size)
        log_std = log_std.reshape(shape).clamp(*_WIDTHS)
        return functional.log_softmax(weight, dim=1), mean.reshape(shape), log_std

    def log_likelihood(self, batch: Batch) -> Tensor:
        """Return the log-density of a batch's scaled actions under the clone ``[B]``.

        Of chunks that their episode cut it is the density of what was done.
        """
        action = self.normalizer.normalize_action(batch.action).clamp(-_INSIDE, _INSIDE)
        log_weight, mean, log_std = self.distribution(self.normalizer.obs(batch.obs))
        action = action.flatten(1)
        distance = (torch.atanh(action)[:, None] - mean) * (-log_std).exp()
        each = -0.5 * distance.square() - log_std - 0.5 * math.log(2 * math.pi)
        # The density of a squashed number is that of the number, over the slope of the squashing.
        each = each - torch.log1p(-action.square())[:, None]
        done = batch.valid[..., None].expand_as(batch.action).flatten(1)[:, None]
        return (log_weight + (each * done).sum(2)).logsumexp(1)

    def bound(self, share: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' bound ``[B, C]`` of points, and its gradient by them ``[B, C, D]``.

        Args:
            share: of the observations, ``[E, B, width]``.
            point: actions before squashing ``[B, C, D]``.
        """
        many = point.shape[1]
        rows = share[:, :, None].expand(-1, -1, many, -1).reshape(self.critic.members, -1,
                                                                  share.shape[2])  # fmt: skip
        action = torch.tanh(point).reshape(-1, self.size)
        value, slope = bound_and_gradient(self.critic, rows, action, self.pessimism)
        slope = slope * (1.0 - action.square())
        return value.reshape(-1, many), slope.reshape(-1, many, self.size)

    @torch.no_grad()  # with gradients torch multiplies in another order, of other last bits
    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``; ``noise`` ``[B, 0]`` is empty."""
        features = self.normalizer.obs(obs)
        share = obs_share(self.critic, features)
        points, possible = self.proposals(features, share)
        value, _ = self.bound(share, points)
        best = torch.where(possible, value, -math.inf).argmax(1)
        index = best[:, None, None].expand(-1, 1, self.size)
        action = torch.tanh(torch.gather(points, 1, index)[:, 0])
        action = action.reshape(-1, self.spec.horizon, self.spec.action_dim)
        # The empty noise is added up so that an exported graph still has it as an input.
        return self.normalizer.raw_action(action + noise.sum())

    def proposals(self, features: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers before squashing ``[B, C, D]``, and which of them there are ``[B, C]``."""
        log_weight, mean, log_std = self.distribution(features)
        variance = (2.0 * log_std).exp()
        # Bound by the greatest component: each is moved within what its own density allows.
        peak = log_weight - log_std.sum(2)  # of the log-density, less a constant
        room = peak - peak.amax(1, keepdim=True)
        heavy = log_weight.exp() >= self.trivial
        if self.components == 1:
            return self._moved(share, mean, variance, room, heavy)
        # Jensen's bound: one Gaussian between all, with the precision A.
        weight = log_weight.exp()[..., None]
        precision = (weight / variance).sum(1, keepdim=True)
        middle = (weight / variance * mean).sum(1, keepdim=True) / precision
        spread = (weight / variance * mean.square()).sum((1, 2)) - (
            precision * middle.square()
        ).sum((1, 2))
        # Its room is k / 2 of k = 2 delta - spread; below 0 it has no answer.
        centres = torch.cat([mean, middle], 1)
        variances = torch.cat([variance, 1.0 / precision], 1)
        rooms = torch.cat([room, -0.5 * spread[:, None]], 1)
        usable = torch.cat([heavy, torch.ones_like(heavy[:, :1])], 1)
        points, there = self._moved(share, centres, variances, rooms, usable)
        between = torch.arange(there.shape[1], device=there.device) % (self.components + 1)
        enough = rooms[:, -1:] + self._steps(rooms) >= 0  # [B, N]
        enough = enough[:, :, None].expand(-1, -1, self.components + 1).flatten(1)
        return points, there & (enough | (between < self.components))

    def _steps(self, like: Tensor) -> Tensor:
        return torch.tensor(self.deltas, device=like.device)

    def _moved(
        self, share: Tensor, centre: Tensor, variance: Tensor, room: Tensor, usable: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``c + sqrt(2 max(0, delta + room)) S g / sqrt(g' S g)`` for each delta.

        Args:
            share: of the observations.
            centre: points c ``[B, C, D]``.
            variance: S ``[B, C, D]``.
            room: of each point besides delta ``[B, C]``.
            usable: whether a point may be taken ``[B, C]``.
        """
        _, slope = self.bound(share, centre)
        length = (slope.square() * variance).sum(2, keepdim=True).sqrt() + _SMALLEST
        direction = variance * slope / length
        reach = (2.0 * (room[:, None] + self._steps(room)[:, None]).clamp_min(0.0)).sqrt()
        points = centre[:, None] + reach[..., None] * direction[:, None]  # [B, N, C, D]
        many = len(self.deltas)
        return points.flatten(1, 2), usable[:, None].expand(-1, many, -1).flatten(1)


def _check(components: int, deltas: Sequence[float], trivial: float) -> None:
    if not deltas:
        raise TrimtabError("policy.deltas=[]: give one or several")
    if not 0 <= trivial * components <= 1:
        raise TrimtabError(
            f"policy.trivial={trivial}: must be from 0 to 1 / components, or all of "
            f"{components} components might weigh less"
        )
