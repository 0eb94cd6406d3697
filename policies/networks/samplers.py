"""Unrolled samplers: from a latent to an action chunk by a fixed list of steps.

The noise schedule is the cosine one of Nichol and Dhariwal, "Improved Denoising Diffusion
Probabilistic Models" (arXiv 2102.09672), equation 17, in the numbers and with the timesteps that
diffusers has for it (``squaredcos_cap_v2``, leading). The arithmetic of each step is written out,
so that a sampler is one straight piece of graph. Tests compare both with diffusers itself. It is
not imported here, because that takes three seconds, also where a robot only loads a bundle. Other
schedulers of diffusers are tables of numbers (:class:`TableSampler`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError

Field = Callable[[Tensor, Tensor], Tensor]
"""A network with its observation bound: (noisy chunk ``[B, H, A]``, time ``[1]``) -> same shape."""

Level = tuple[float, float]
"""Factors s and n of a noisy chunk ``x = s clean + n noise``."""


class Euler:
    """Integrate a velocity field from time 0 (noise) to 1 (action) by ``steps`` Euler steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return ``(H, A)``: the initial latent."""
        return (horizon, action_dim)

    @property
    def levels(self) -> list[Level]:
        """Shares of signal and noise at each step, ``(t, 1 - t)``."""
        return [(step / self.steps, 1 - step / self.steps) for step in range(self.steps)]

    def __call__(
        self, field: Field, noise: Tensor, first: int = 0, last: int | None = None
    ) -> Tensor:
        """Return the end of the integrated path, or of its steps ``first`` to ``last - 1``."""
        action = noise
        for step in range(self.steps)[first:last]:
            time = torch.full((1,), step / self.steps, device=noise.device)
            action = action + field(action, time) / self.steps
        return action


class _Diffusion:
    """What the two diffusion samplers share: schedule, timesteps and the clipped estimate of x0.

    Args:
        train_steps: number T of noise levels.
        steps: number of sampling steps, at timesteps that are equally far apart.
    """

    def __init__(self, train_steps: int, steps: int) -> None:
        if not 1 <= steps <= train_steps:
            raise TrimtabError(
                f"diffusion policy: sampling_steps must be from 1 to {train_steps}, got {steps}"
            )
        stride = train_steps // steps
        self.train_steps = train_steps
        self.timesteps = [index * stride for index in reversed(range(steps))]
        alpha = cosine_alphas(train_steps)
        self.alpha = [alpha[t] for t in self.timesteps]
        self.alpha_next = [alpha[t - stride] if t >= stride else 1.0 for t in self.timesteps]

    @property
    def levels(self) -> list[Level]:
        """Shares of signal and noise at each step, the roots of their variances."""
        return [(alpha**0.5, (1 - alpha) ** 0.5) for alpha in self.alpha]

    def estimate(self, field: Field, action: Tensor, index: int) -> Tensor:
        """Return the clipped estimate of the clean chunk at step ``index``."""
        time = torch.full((1,), self.timesteps[index] / self.train_steps, device=action.device)
        epsilon = field(action, time)
        alpha = self.alpha[index]
        clean: Tensor = (action - (1 - alpha) ** 0.5 * epsilon) / alpha**0.5
        return clean.clamp(-1.0, 1.0)


class DDIM(_Diffusion):
    """Denoising diffusion implicit model with eta 0 (Song et al., arXiv 2010.02502, eq. 12).

    The noise estimate is recomputed from the clipped clean estimate, as in DPPO.
    """

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return ``(H, A)``: the initial latent."""
        return (horizon, action_dim)

    def __call__(
        self, field: Field, noise: Tensor, first: int = 0, last: int | None = None
    ) -> Tensor:
        """Return the denoised chunk, or what steps ``first`` to ``last - 1`` make of ``noise``."""
        action = noise
        for index in range(len(self.alpha))[first:last]:
            alpha, alpha_next = self.alpha[index], self.alpha_next[index]
            clean = self.estimate(field, action, index)
            epsilon = (action - alpha**0.5 * clean) / (1 - alpha) ** 0.5
            action = alpha_next**0.5 * clean + (1 - alpha_next) ** 0.5 * epsilon
        return action


class DDPM(_Diffusion):
    """Ancestral sampling (Ho et al., arXiv 2006.11239, eq. 7); its noise is the whole path."""

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return ``(steps, H, A)``: the initial latent, then each step's noise but the last's."""
        return (len(self.timesteps), horizon, action_dim)

    def __call__(self, field: Field, noise: Tensor) -> Tensor:
        """Return the denoised chunk."""
        action = noise[:, 0]
        last = len(self.timesteps) - 1
        for index, (alpha, alpha_next) in enumerate(zip(self.alpha, self.alpha_next, strict=True)):
            clean = self.estimate(field, action, index)
            step_alpha = alpha / alpha_next
            action = (
                alpha_next**0.5 * (1 - step_alpha) / (1 - alpha) * clean
                + step_alpha**0.5 * (1 - alpha_next) / (1 - alpha) * action
            )
            if index < last:
                variance = (1 - alpha_next) / (1 - alpha) * (1 - step_alpha)
                action = action + variance**0.5 * noise[:, index + 1]
        return action


@dataclass(frozen=True)
class Table:
    """A deterministic sampler of K network calls as numbers; see :class:`TableSampler`.

    Attributes:
        times: what the network is told at each call, ``[K]``, from 0 to 1.
        rows: of the input of each call, and of the result: a number for the noise, and one for each
            estimate so far; ``[K + 1]`` rows, the first with 1 number, the last with ``K + 1``.
        signal: root of the signal's share in each input, ``[K]``; none for velocities.
        noise: root of the noise's share ``[K]``, likewise.
    """

    times: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    signal: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {name: [*value] for name, value in vars(self).items()}

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Table:
        """Return the table that :meth:`to_json` wrote.

        Raises:
            TrimtabError: if the numbers are none, or are not those of a table.
        """
        try:
            rows = tuple(tuple(float(x) for x in row) for row in numbers["rows"])
            times, signal, noise = (
                tuple(float(x) for x in numbers[name]) for name in ("times", "signal", "noise")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TrimtabError("policy.table: is no table of a scheduler; leave it out") from error
        shaped = [len(row) for row in rows] == [*range(1, len(times) + 2)]
        flat = [*times, *signal, *noise, *(x for row in rows for x in row)]
        levels = {len(signal), len(noise)} in ({len(times)}, {0})
        if not (times and shaped and levels and all(map(math.isfinite, flat))):
            raise TrimtabError("policy.table: has numbers that are no table; leave it out")
        return cls(times, rows, signal, noise)


class TableSampler(nn.Module):
    """A scheduler's steps as one lower triangular table.

    The input of each call, and the result, is a sum of the noise and of the estimates so far, each
    times its number. An estimate is the network's velocity; or, where the table has levels, the
    clean chunk that the predicted noise leaves, clipped to [-1, 1].

    Args:
        table: the numbers.
    """

    first: Tensor

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table
        self.register_buffer(
            "first", torch.tensor([row[0] for row in table.rows]), persistent=False
        )
        for call in range(len(table.times)):
            column = torch.tensor([row[call + 1] for row in table.rows[call + 1 :]])
            self.register_buffer(f"column_{call}", column, persistent=False)

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return ``(H, A)``: the initial latent."""
        return (horizon, action_dim)

    @property
    def levels(self) -> list[Level]:
        """Shares of signal and noise at each call; of velocities ``(t, 1 - t)``."""
        if self.table.signal:
            return list(zip(self.table.signal, self.table.noise, strict=True))
        return [(time, 1 - time) for time in self.table.times]

    def forward(self, field: Field, noise: Tensor) -> Tensor:
        """Return the chunk that ``noise`` leads to."""
        left = self.first[:, None, None, None] * noise  # inputs still to come, and the result
        for call, time in enumerate(self.table.times):
            point = left[0]
            told = torch.full((1,), time, dtype=noise.dtype, device=noise.device)
            estimate = field(point, told)
            if self.table.signal:
                rest = self.table.noise[call] * estimate
                estimate = ((point - rest) / self.table.signal[call]).clamp(-1.0, 1.0)
            left = left[1:] + self.get_buffer(f"column_{call}")[:, None, None, None] * estimate
        return left[0]


def cosine_alphas(train_steps: int) -> list[float]:
    """Return ``alpha_bar_t`` of every noise level t, the share of the signal that is left.

    ``alpha_bar`` is the product of ``1 - beta_t``, with ``beta_t = 1 - f(t + 1) / f(t)``, no more
    than 0.999, and ``f(t) = cos((t / T + s) / (1 + s) * pi / 2) ** 2``, s = 0.008.
    """

    def left(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    beta = [
        min(1 - left((t + 1) / train_steps) / left(t / train_steps), 0.999)
        for t in range(train_steps)
    ]
    # In 32 bits and one after another, as published policies were trained.
    alpha: list[float] = (1.0 - torch.tensor(beta, dtype=torch.float32)).cumprod(0).tolist()
    return alpha


def with_steps(sampler: DDIM | DDPM | TableSampler) -> DDIM | DDPM:
    """Return a diffusion policy's sampler for a method that needs its steps one by one.

    Raises:
        TrimtabError: if it is a scheduler's table, whose steps have no density of their own.
    """
    if isinstance(sampler, TableSampler):
        raise TrimtabError(f"policy.scheduler: {_NO_STEPS}; use policy.sampler=ddim or ddpm alone")
    return sampler


def euler_steps(sampler: Euler | TableSampler) -> int:
    """Return the number of a flow policy's Euler steps for a method that needs each of them.

    Raises:
        TrimtabError: if its sampler is a scheduler's table.
    """
    if isinstance(sampler, TableSampler):
        raise TrimtabError(f"policy.scheduler: {_NO_STEPS}; leave policy.scheduler out")
    return sampler.steps


_NO_STEPS = "this method learns from each step of the sampler, and a scheduler's table has none"
_SAMPLERS: dict[str, type[DDIM] | type[DDPM]] = {"ddim": DDIM, "ddpm": DDPM}


def cosine_schedule(sampler: str, train_steps: int, steps: int) -> DDIM | DDPM:
    """Return a sampler over the cosine schedule.

    Args:
        sampler: ``ddim`` or ``ddpm``.
        train_steps: number T of noise levels.
        steps: number of sampling steps.

    Raises:
        TrimtabError: if ``sampler`` is unknown or the numbers of steps do not fit.
    """
    if sampler not in _SAMPLERS:
        raise TrimtabError(
            f"diffusion policy: unknown sampler {sampler!r}; use {' or '.join(_SAMPLERS)}"
        )
    return _SAMPLERS[sampler](train_steps, steps)
