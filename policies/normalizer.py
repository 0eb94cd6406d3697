"""Normalisation: a part of the policy and of nothing else."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.features import column_of, features
from trimtab.types import Obs, PolicySpec, Statistics

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_SMALLEST_RANGE = 1e-4
"""Half range below which a dataset's dimension counts as constant and is not scaled up."""


class Normalizer(nn.Module):
    """Affine maps between raw units and the range [-1, 1] in which networks work.

    Unfitted it leaves observations alone and maps actions from the limits of the spec. Fitted to a
    dataset it maps each observation and action dimension from the dataset's own range, as DPPO and
    DSRL do (arXiv 2409.00588, 2506.15799). Observations outside that range are not clipped; actions
    are always inside the limits of the spec.

    An observation of several parts, or with a history, becomes one vector here, ``obs_dim`` long.
    Bytes of pictures are mapped from 0 to 255; inputs that a user gives are left as they are.

    Attributes:
        spec: shapes and limits.
        limit: normalised observations are clipped to ``[-limit, limit]``; None: they are not.
    """

    limit: float | None = None
    obs_shift: Tensor
    obs_scale: Tensor
    action_shift: Tensor
    action_scale: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        self.register_buffer("obs_shift", self._of_bytes(127.5, torch.zeros(spec.obs_dim)))
        self.register_buffer("obs_scale", self._of_bytes(127.5, torch.ones(spec.obs_dim)))
        self.register_buffer("action_shift", (high + low) / 2)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_low", low)
        self.register_buffer("action_high", high)

    def _of_bytes(self, value: float, vector: Tensor) -> Tensor:
        """Return ``vector`` ``[obs_dim]`` with a value in the entries of pictures."""
        first = 0
        for part in self.spec.layout.values():
            width = column_of(part, self.spec)
            if part.dtype == "uint8":
                vector[first : first + width] = value
            first += width
        return vector

    def _take(self, vector: Tensor, values: Tensor) -> None:
        """Set the entries of ``vector`` ``[obs_dim]`` that a dataset observes.

        Args:
            vector: shift or scale.
            values: ``[O]``, of the observed parts one after another.
        """
        if not self.spec.parts and self.spec.history == 1:
            vector.copy_(values)
            return
        first = taken = 0
        for part in self.spec.layout.values():
            width = column_of(part, self.spec)
            if part.given is None:
                own = values[taken : taken + part.size].to(vector.device)
                vector[first : first + width] = own.repeat(self.spec.history)
                taken += part.size
            first += width

    def fit(self, statistics: Statistics) -> None:
        """Take the ranges of a dataset.

        Args:
            statistics: raw-unit statistics, observations ``[O]``, those of the observed parts one
                after another, actions ``[A]``, any device.
        """
        device = self.obs_shift.device
        obs_low, obs_high = statistics.obs_min.to(device), statistics.obs_max.to(device)
        self._take(self.obs_shift, (obs_high + obs_low) / 2)
        half = (obs_high - obs_low) / 2
        half = torch.where(half > _SMALLEST_RANGE, half, torch.ones_like(half))
        self._take(self.obs_scale, half)
        low = torch.maximum(statistics.action_min.to(device), self.action_low)
        high = torch.minimum(statistics.action_max.to(device), self.action_high)
        half = (high - low) / 2
        self.action_shift.copy_((high + low) / 2)
        self.action_scale.copy_(half.clamp_min(_SMALLEST_RANGE))

    def take_maps(self, inner: Normalizer) -> None:
        """Take the maps of a policy within this one, which reads further inputs after it."""
        for name in ("obs_shift", "obs_scale", "action_shift", "action_scale"):
            values = getattr(inner, name)
            getattr(self, name)[: len(values)].copy_(values)

    def take_range(self, obs: Obs) -> None:
        """Take the range of some observations for that of all; pictures keep theirs.

        Args:
            obs: raw observations ``[B, O]``, or parts.
        """
        seen = features(obs, self.spec)
        low, high = seen.amin(0), seen.amax(0)
        half = (high - low) / 2
        numbers = (self.obs_scale == 1) & (half > _SMALLEST_RANGE)
        self.obs_shift.copy_(torch.where(numbers, (high + low) / 2, self.obs_shift))
        self.obs_scale.copy_(torch.where(numbers, half, self.obs_scale))

    def standardize(self, statistics: Statistics, smallest: float = 1e-3) -> None:
        """Map observations to mean 0 and standard deviation 1 of a dataset; actions stay as is.

        Args:
            statistics: raw-unit statistics.
            smallest: added to the standard deviation, as TD3+BC does (arXiv 2106.06860, section 5).
        """
        self._take(self.obs_shift, statistics.obs_mean)
        self._take(self.obs_scale, statistics.obs_std + smallest)

    def obs(self, obs: Obs) -> Tensor:
        """Return raw observations ``[..., O]``, or of parts, normalised: ``[..., obs_dim]``."""
        return (features(obs, self.spec) - self.obs_shift) / self.obs_scale

    def normalize_action(self, action: Tensor) -> Tensor:
        """Return raw actions ``[..., A]`` normalised."""
        return (action - self.action_shift) / self.action_scale

    def gaussian_log_density(self, action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """Return the log-density of raw actions ``[..., A]`` of a normalised Gaussian, ``[...]``.

        Args:
            action: raw.
            mean: of normalised actions, ``[..., A]``.
            log_std: logarithm of the standard deviation, which ``mean`` can be broadcast with.
        """
        scaled = (self.normalize_action(action) - mean) * (-log_std).exp()
        units = log_std + self.action_scale.log() + _LOG_ROOT_TWO_PI
        return -(0.5 * scaled.square() + units).sum(-1)

    def raw_action(self, action: Tensor) -> Tensor:
        """Return normalised actions ``[..., A]`` in raw units, inside the spec's limits."""
        raw = action * self.action_scale + self.action_shift
        return torch.maximum(torch.minimum(raw, self.action_high), self.action_low)


class ClippedNormalizer(Normalizer):
    """A normaliser that clips normalised observations.

    Args:
        spec: shapes and limits.
        limit: normalised observations are clipped to ``[-limit, limit]``.

    Raises:
        TrimtabError: if ``limit`` is not above 0.
    """

    limit: float

    def __init__(self, spec: PolicySpec, limit: float) -> None:
        if not limit > 0:
            raise TrimtabError(f"a limit of normalised observations must be above 0, got {limit}")
        super().__init__(spec)
        self.limit = float(limit)

    def obs(self, obs: Obs) -> Tensor:
        """Return raw observations normalised and clipped, ``[..., obs_dim]``."""
        return super().obs(obs).clamp(-self.limit, self.limit)


class RunningNormalizer(Normalizer):
    """Observations to mean 0 and standard deviation 1 of all that was seen, clipped.

    The usual observation normalisation of on-policy learning (Engstrom et al., arXiv 2005.12729,
    section 3). Nothing was seen at first, and observations are then left as they are: the limit is
    in standard deviations, which are not known yet. A learner calls :meth:`see` between rollouts,
    so that the policy that acted is the policy that is improved.

    Args:
        spec: shapes and limits.
        limit: normalised observations are clipped to ``[-limit, limit]``; None: they are not.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, spec: PolicySpec, limit: float | None = 10.0) -> None:
        super().__init__(spec)
        self.limit = limit
        self.fitted = False  # beside ``count``, so that an exported graph has no branch in it
        self.register_buffer("mean", torch.zeros(spec.obs_dim, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(spec.obs_dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def see(self, obs: Obs) -> None:
        """Take account of raw observations ``[..., O]``, or of parts."""
        rows = features(obs, self.spec).reshape(-1, self.spec.obs_dim)
        absorb(rows, self.mean, self.variance, self.count)
        self.obs_shift.copy_(self.mean)
        self.obs_scale.copy_((self.variance + 1e-8).sqrt())
        self.fitted = True

    def obs(self, obs: Obs) -> Tensor:
        """Return raw observations normalised and clipped, or as they are: ``[..., obs_dim]``."""
        normalised = super().obs(obs)
        if self.limit is None or not self.fitted:
            return normalised
        return normalised.clamp(-self.limit, self.limit)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.fitted = bool(self.count > 0)


def absorb(rows: Tensor, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Join the mean and variance of ``rows`` ``[M, D]`` to running ones ``[D]``, in place.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), equation 2.1. A count of 0 means that nothing was seen yet.
    """
    rows = rows.double()
    size, total = len(rows), count + len(rows)
    batch_mean = rows.mean(0)
    batch_variance = rows.var(0, correction=0)
    shift = batch_mean - mean
    spread = variance * count + batch_variance * size + shift.square() * count * size / total
    variance.copy_(spread / total)
    mean.add_(shift * size / total)
    count.copy_(total)
