"""Unrolled samplers: from a latent to an action chunk by a fixed list of steps.

The noise schedule is the cosine one of Nichol and Dhariwal, "Improved Denoising Diffusion
Probabilistic Models" (arXiv 2102.09672), equation 17, in the numbers and with the timesteps that
diffusers has for it (``squaredcos_cap_v2``, leading). The arithmetic of each step is written out,
so that a sampler is one straight piece of graph. Tests compare both with diffusers itself. It is
not imported here, because that takes three seconds, also where a robot only loads a bundle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from trimtab.errors import TrimtabError

Field = Callable[[Tensor, Tensor], Tensor]
"""A network with its observation bound: (noisy chunk ``[B, H, A]``, time ``[1]``) -> same shape."""


class Sampler(Protocol):
    """A deterministic map from noise ``[B, *noise_shape]`` to a normalised chunk ``[B, H, A]``."""

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return the shape of one row's noise."""
        ...

    def __call__(self, field: Field, noise: Tensor) -> Tensor:
        """Return the chunk that ``noise`` leads to."""
        ...


class Euler:
    """Integrate a velocity field from time 0 (noise) to 1 (action) by ``steps`` Euler steps."""

    def __init__(self, steps: int) -> None:
        if steps < 1:
            raise TrimtabError(f"flow policy: sampling_steps must be at least 1, got {steps}")
        self.steps = steps

    def noise_shape(self, horizon: int, action_dim: int) -> tuple[int, ...]:
        """Return ``(H, A)``: the initial latent."""
        return (horizon, action_dim)

    def __call__(self, field: Field, noise: Tensor) -> Tensor:
        """Return the end of the integrated path."""
        action = noise
        for step in range(self.steps):
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

    def __call__(self, field: Field, noise: Tensor) -> Tensor:
        """Return the denoised chunk."""
        action = noise
        for index, (alpha, alpha_next) in enumerate(zip(self.alpha, self.alpha_next, strict=True)):
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
    if train_steps < 1:
        raise TrimtabError(f"diffusion policy: train_steps must be at least 1, got {train_steps}")
    return _SAMPLERS[sampler](train_steps, steps)
