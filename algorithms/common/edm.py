"""Diffusion by its noise level: how a denoiser is preconditioned, trained and sampled.

Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models" (arXiv
2206.00364), table 1 and algorithm 2, for data y of standard deviation sigma_d:

- D(x; sigma) = c_skip x + c_out F(c_in x; c_noise)
      c_skip = sigma_d^2 / (sigma^2 + sigma_d^2),   c_in = 1 / sqrt(sigma^2 + sigma_d^2)
      c_out = sigma sigma_d / sqrt(sigma^2 + sigma_d^2),   c_noise = ln(sigma) / 4
- L = E w(sigma) mean (D(y + sigma n; sigma) - y)^2,   ln sigma ~ N(P_mean, P_std^2),
      w = (sigma^2 + sigma_d^2) / (sigma sigma_d)^2
- sampling: noise is added up to sigma_hat = sigma (1 + gamma) and taken away by Heun's method
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Denoiser", "Guide", "NoiseLevels", "denoised", "denoising_loss", "heun_sample"]

Network = Callable[[Tensor, Tensor], Tensor]
"""F: scaled noisy rows ``[B, L, C]`` and c_noise ``[B]`` or ``[1]`` to ``[B, L, C]``."""
Denoiser = Callable[[Tensor, float], Tensor]
"""D: noisy rows ``[B, L, C]`` and their noise level to clean ones."""
Guide = Callable[[Tensor, float, int], Tensor]
"""Moves noisy rows ``[B, L, C]`` of a noise level before a step, which is given by its number."""


@dataclass(frozen=True)
class NoiseLevels:
    """The noise that denoisers are trained and sampled with.

    Attributes:
        data: sigma_d.
        least: the last noise level but 0 of a sampler.
        most: the first one.
        curve: rho, how much closer levels lie together towards the least.
        log_mean: P_mean.
        log_std: P_std.
        churn: noise that all steps of a sampler add again, together; 0: it is deterministic.
        churn_least: noise is added at levels from here
        churn_most: to here.
        churn_scale: standard deviation of what is added.
    """

    data: float = 1.0
    least: float = 0.002
    most: float = 80.0
    curve: float = 7.0
    log_mean: float = -1.2
    log_std: float = 1.2
    churn: float = 80.0
    churn_least: float = 0.05
    churn_most: float = 50.0
    churn_scale: float = 1.003

    def steps(self, count: int) -> list[float]:
        """Return the levels that a sampler of ``count`` steps goes through, 0 at the end."""
        high, low = self.most ** (1 / self.curve), self.least ** (1 / self.curve)
        share = [number / max(count - 1, 1) for number in range(count)]
        return [*((high + one * (low - high)) ** self.curve for one in share), 0.0]

    def renewal(self, level: float, count: int) -> float:
        """Return gamma of a step from ``level``, of ``count`` steps."""
        within = self.churn_least <= level <= self.churn_most
        return min(self.churn / count, math.sqrt(2.0) - 1.0) if within else 0.0


def denoised(network: Network, noisy: Tensor, level: Tensor, data: float) -> Tensor:
    """Return D, the clean rows ``[B, L, C]`` that a network expects behind noisy ones.

    Args:
        network: F.
        noisy: ``[B, L, C]``.
        level: sigma, ``[B]``, or ``[1]`` for all.
        data: sigma_d.
    """
    sigma = level[:, None, None]
    root = (sigma.square() + data**2).rsqrt()
    skip, out = (data * root).square(), sigma * data * root
    return skip * noisy + out * network(root * noisy, level.log() / 4)


def denoising_loss(network: Network, clean: Tensor, levels: NoiseLevels) -> Tensor:
    """Return the loss L of a network on clean rows ``[B, L, C]``."""
    normal = torch.randn(len(clean), device=clean.device)
    level = (levels.log_mean + levels.log_std * normal).exp()
    noisy = clean + level[:, None, None] * torch.randn_like(clean)
    weight = (level.square() + levels.data**2) / (level * levels.data).square()
    error = (denoised(network, noisy, level, levels.data) - clean).square()
    return (weight * error.mean((1, 2))).mean()


def heun_sample(
    denoiser: Denoiser,
    noise: Tensor,
    levels: NoiseLevels,
    count: int,
    guide: Guide | None = None,
) -> Tensor:
    """Return samples ``[B, L, C]`` of what a denoiser was trained on.

    Args:
        denoiser: D.
        noise: standard normal, ``[B, L, C]``.
        levels: of the noise.
        count: steps.
        guide: moves what is noisy before each step but the last; None: nothing does.
    """
    sigmas: Sequence[float] = levels.steps(count)
    x = noise * sigmas[0]
    for number in range(count):
        sigma, following = sigmas[number], sigmas[number + 1]
        if guide is not None and number < count - 1:
            x = guide(x, sigma, number)
        gamma = levels.renewal(sigma, count)
        raised = sigma * (1.0 + gamma)
        if gamma:
            spread = levels.churn_scale * math.sqrt(raised**2 - sigma**2)
            x = x + spread * torch.randn_like(x)
        slope = (x - denoiser(x, raised)) / raised
        reached = x + (following - raised) * slope
        if following:
            corrected = (reached - denoiser(reached, following)) / following
            reached = x + (following - raised) * 0.5 * (slope + corrected)
        x = reached
    return x
