"""Stochastic denoising chains: a sampler as K Gaussian steps, each with a density.

A chain goes from noise ``x_0 ~ N(0, I)`` to an action ``x_K`` by steps

    x_{i+1} ~ N(mean_i(x_i, network(x_i, t_i)), std_i^2)

so that what a generative policy did has a likelihood, step by step, and can be learned from by
policy gradients. Diffusion models are such chains already (DPPO, arXiv 2409.00588); a flow becomes
one by adding noise, with or without a drift that keeps its marginals (OGPO, arXiv 2605.03065;
ReinFlow, arXiv 2505.22094; Flow-GRPO, arXiv 2505.05470).

A step's number may be one for all rows, or a tensor ``[B]`` with one for each row, so that steps of
many chains are computed in one pass of the network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.networks.mlp import mlp
from trimtab.policies.networks.samplers import DDIM, DDPM, TableSampler, with_steps

__all__ = [
    "FLOW_NOISE", "Chain", "DiffusionChain", "FlowChain", "NoiseNetwork", "chain_noise",
    "guarded_log_ratio", "log_density", "walk",
]  # fmt: skip

Index = int | Tensor
"""Number of a step, for all rows or for each ``[B]``."""

Predict = Callable[[Tensor, int], Tensor]
"""(point ``[B, H, A]``, number of the step) to what the network says there, of the same shape."""

NOISE_LIMIT = 3.0
"""Noise of a step is cut at so many standard deviations, as in the codes of all these papers."""

FLOW_NOISE = ("tapered", "constant", "odds")
"""How the noise of a flow's steps goes with time; see :class:`FlowChain`."""

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class Chain(nn.Module, ABC):
    """K steps, with tables of one number for each of them.

    Attributes:
        steps: K.
        sensitivity: how far the mean of each step moves when the network's output does, ``[K]``.
    """

    times: Tensor
    deviations: Tensor
    sensitivity: Tensor

    def __init__(self, **tables: Sequence[float]) -> None:
        super().__init__()
        self.steps = len(tables["times"])
        for name, values in tables.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def time(self, index: Index) -> Tensor:
        """Return what the network is told of the time of a step, ``[1]`` or ``[B]``."""
        return self.times[index].reshape(-1)

    def std(self, index: Index) -> Tensor:
        """Return the standard deviation of a step, ``[1, 1, 1]`` or ``[B, 1, 1]``."""
        return _at(self.deviations, index)

    @abstractmethod
    def mean(self, point: Tensor, prediction: Tensor, index: Index) -> Tensor:
        """Return the mean of the next point ``[B, H, A]``.

        Args:
            point: where the chain is, ``[B, H, A]``.
            prediction: what the network says there, ``[B, H, A]``.
            index: number of the step.
        """


def _at(table: Tensor, index: Index) -> Tensor:
    return table[index].reshape(-1, 1, 1)


class DiffusionChain(Chain):
    """The steps of a diffusion sampler, ancestral or implicit with noise.

    The clean chunk's estimate is clipped to [-1, 1] at every step; an implicit sampler (Song et
    al., arXiv 2010.02502, equation 12) then computes its noise from the clipped estimate.

    Args:
        sampler: a diffusion policy's; a ``DDIM`` gets the noise of ``eta``, a ``DDPM`` has its own.
        eta: of an implicit sampler; 1: the variance of the ancestral one, 0: none.
        floor: least standard deviation of a step.

    Raises:
        TrimtabError: if the sampler is a scheduler's table, which has no such steps.
    """

    root_alpha: Tensor
    root_rest: Tensor
    of_clean: Tensor
    of_point: Tensor

    def __init__(
        self, sampler: DDIM | DDPM | TableSampler, *, eta: float = 1.0, floor: float = 0.0
    ) -> None:
        sampler = with_steps(sampler)
        columns: list[tuple[float, ...]] = []
        for alpha, following, step in zip(
            sampler.alpha, sampler.alpha_next, sampler.timesteps, strict=True
        ):
            ratio = alpha / following
            std = ((1 - following) / (1 - alpha) * (1 - ratio)) ** 0.5
            if isinstance(sampler, DDPM):
                of_clean = following**0.5 * (1 - ratio) / (1 - alpha)
                of_point = ratio**0.5 * (1 - following) / (1 - alpha)
            else:
                std *= eta
                of_point = max(1 - following - std**2, 0.0) ** 0.5 / (1 - alpha) ** 0.5
                of_clean = following**0.5 - of_point * alpha**0.5
            root, rest = alpha**0.5, (1 - alpha) ** 0.5
            time = step / sampler.train_steps
            columns.append(
                (time, max(std, floor), of_clean * rest / root, root, rest, of_clean, of_point)
            )
        names = (
            "times", "deviations", "sensitivity", "root_alpha", "root_rest", "of_clean", "of_point",
        )  # fmt: skip
        super().__init__(**dict(zip(names, zip(*columns, strict=True), strict=True)))

    def mean(self, point: Tensor, prediction: Tensor, index: Index) -> Tensor:
        """Return the mean of the next point, for a prediction of the noise."""
        clean = (point - _at(self.root_rest, index) * prediction) / _at(self.root_alpha, index)
        clean = clean.clamp(-1.0, 1.0)
        return _at(self.of_clean, index) * clean + _at(self.of_point, index) * point


class FlowChain(Chain):
    """Euler steps of a flow with noise added to each, from time 0 (noise) to 1 (action).

    With a score ``s = (t v - x) / (1 - t)`` and noise at a rate g_t, the process
    ``dx = (v + g_t^2 s / 2) dt + g_t dW`` has the flow's own marginals. A step's standard deviation
    is ``g_t / sqrt(K)``; ``noise`` says how it goes with t:

    - ``tapered``: level sqrt(1 - t), of OGPO's released runs
    - ``constant``: level
    - ``odds``: level sqrt(u / (1 - u)) / sqrt(K) with u = 1 - t, of Flow-GRPO; its first step has
      the second one's denominator, as there

    Args:
        steps: K.
        noise: one of ``FLOW_NOISE``.
        level: see above; 0: the flow itself.
        drift: whether the term with the score is added; else the mean is that of the Euler step.
        limit: means are clipped to ``[-limit, limit]``.

    Raises:
        TrimtabError: if there is no such noise, or the level is below 0.
    """

    pull: Tensor

    def __init__(
        self,
        steps: int,
        *,
        noise: str = "tapered",
        level: float = 0.0,
        drift: bool = True,
        limit: float = 1.0,
    ) -> None:
        if noise not in FLOW_NOISE:
            raise TrimtabError(f"flow chain: noise={noise}: there are {', '.join(FLOW_NOISE)}")
        if not 0 <= level < math.inf:
            raise TrimtabError(f"flow chain: its noise level must be at least 0, got {level}")
        times = [step / steps for step in range(steps)]
        stds = [self._std(time, steps, noise, level) for time in times]
        # g^2 / K is the variance of a step, so the drift's share of a step has no further 1 / K.
        pull = [0.5 * s**2 / (1 - t) if drift else 0.0 for s, t in zip(stds, times, strict=True)]
        moved = [1 / steps + p * t for p, t in zip(pull, times, strict=True)]
        super().__init__(times=times, deviations=stds, sensitivity=moved, pull=pull)
        self.limit = limit

    @staticmethod
    def _std(time: float, steps: int, noise: str, level: float) -> float:
        if noise == "constant":
            return level
        left = 1 - time
        if noise == "tapered":
            return level * math.sqrt(left)
        return level * math.sqrt(left / max(time, 1 / steps) / steps)

    def mean(self, point: Tensor, prediction: Tensor, index: Index) -> Tensor:
        """Return the mean of the next point, for a predicted velocity."""
        time = _at(self.times, index)
        drift = _at(self.pull, index) * (time * prediction - point)
        return (point + prediction / self.steps + drift).clamp(-self.limit, self.limit)


class NoiseNetwork(nn.Module):
    """Learned standard deviations of a chain's steps, within bounds (ReinFlow, arXiv 2505.22094).

    ``log std = lower + (upper - lower) (tanh(g) + 1) / 2``, with g of time and observation.

    Args:
        obs_dim: length of the observation.
        action_shape: of a chunk; each entry has a standard deviation of its own.
        frequencies: of the sinusoidal time features.
        hidden: widths of the hidden layers.
    """

    frequencies: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_shape: tuple[int, int],
        frequencies: Tensor,
        hidden: Sequence[int],
    ) -> None:
        super().__init__()
        self.action_shape = action_shape
        self.register_buffer("frequencies", frequencies.detach().clone(), persistent=False)
        inputs = obs_dim + 2 * len(frequencies)
        self.network = mlp(inputs, hidden, math.prod(action_shape), activation="tanh")

    def forward(self, obs: Tensor, time: Tensor, least: float, most: float | Tensor) -> Tensor:
        """Return standard deviations ``[B, H, A]``.

        Args:
            obs: normalised observations ``[B, O]``.
            time: of the step, ``[1]`` or ``[B]``.
            least: lower bound.
            most: upper bound; a scalar tensor where it changes.
        """
        angle = time[:, None] * self.frequencies
        features = torch.cat([angle.sin(), angle.cos()], dim=1).expand(len(obs), -1)
        share = (torch.tanh(self.network(torch.cat([features, obs], dim=1))) + 1) / 2
        low = math.log(least)
        high = most.log() if isinstance(most, Tensor) else math.log(most)
        return (low + (high - low) * share).exp().reshape(-1, *self.action_shape)


def walk(chain: Chain, predict: Predict, noise: Tensor) -> list[Tensor]:
    """Return all K + 1 points of a chain, each ``[B, H, A]``, from the first noise to the action.

    Args:
        chain: says how.
        predict: the network.
        noise: ``[B, K + 1, H, A]``: where the chain starts, then the noise of each step.
    """
    points = [noise[:, 0]]
    for index in range(chain.steps):
        mean = chain.mean(points[-1], predict(points[-1], index), index)
        points.append(mean + chain.std(index) * noise[:, index + 1])
    return points


def chain_noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return noise ``[B, K + 1, H, A]`` of a chain, that of its steps cut at ``NOISE_LIMIT``."""
    noise = torch.randn(shape, device=device)
    noise[:, 1:].clamp_(-NOISE_LIMIT, NOISE_LIMIT)
    return noise


def log_density(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the logarithm of each entry's Gaussian density, of the shape of ``value``."""
    return -0.5 * ((value - mean) / std).square() - std.log() - _LOG_ROOT_TWO_PI


def guarded_log_ratio(value: Tensor, mean: Tensor, old_mean: Tensor, std: Tensor) -> Tensor:
    """Return a step's log-ratio as GRPO-Guard normalises it, ``[B]`` (arXiv 2510.22319, eq. 8).

    A step's log-ratio, a mean over its entries, has an expectation below 0 and a spread that goes
    as 1 / std. This one is ``std (log p - log p_old + mean |mu - mu_old|^2 / (2 std^2))``, which
    has expectation 0 and the same spread at every step for the same shift of the mean.

    Args:
        value: the point that was reached, ``[B, H, A]``.
        mean: of the policy that is learned, ``[B, H, A]``.
        old_mean: of the policy that acted, ``[B, H, A]``.
        std: of both, ``[1, 1, 1]`` or ``[B, 1, 1]``.
    """
    # The squares of the shift cancel: what is left is the noise times the shift.
    return ((value - old_mean) * (mean - old_mean) / std).mean((1, 2))
