"""Diffusion Policy with its U-Net over time, as its own code and LeRobot's trained it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.conditional_unet import ConditionalUNet
from trimtab.policies.networks.samplers import cosine_alphas
from trimtab.policies.networks.scheduler_steps import SchedulerSteps
from trimtab.settings import Bounds, Natural, Positive, Size, Steps
from trimtab.types import Obs, PolicySpec

Betas = Literal["squaredcos_cap_v2", "linear", "scaled_linear"]
"""Schedules of the noise, by diffusers' names."""


class UNetDiffusionPolicy(Policy):
    """Chi et al., "Diffusion Policy" (arXiv 2303.04137), section 3, of low-dimensional states.

    What is denoised has ``past`` actions before the present one, which are not returned: the
    network was trained on chunks that begin at the oldest observation. Steps are those of
    diffusers' schedulers: ``ddpm``, whose noise is the whole path, and ``ddim`` with eta 0, whose
    noise is the initial latent.

    Args:
        spec: shapes and limits; ``obs_dim`` has all observations of its history.
        hidden: channels of each level.
        kernel: rows that a convolution reads.
        groups: of each normalisation.
        step_dim: width of the features of the noise level.
        scaled: whether the condition scales features, and does not only shift them.
        past: actions of a chunk that lie before the present one.
        train_steps: number T of noise levels.
        beta_schedule: of the levels.
        beta_start: of the first level; the cosine schedule has no use for it.
        beta_end: of the last level.
        says_clean: whether the network says the clean chunk, and not the noise.
        clip: clean estimates are clipped to ``[-clip, clip]``; None: they are not.
        sampler: ``ddpm`` or ``ddim``.
        sampling_steps: denoising steps at acting time.

    Raises:
        TrimtabError: if the widths do not fit, or a chunk cannot be halved between the levels.
    """

    built_by_method = True
    adjustable = frozenset({"sampler", "sampling_steps"})

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 512, 1024),
        kernel: Size = 5,
        groups: Size = 8,
        step_dim: Size = 256,
        scaled: bool = True,
        past: Natural = 0,
        train_steps: Steps = 100,
        beta_schedule: Betas = "squaredcos_cap_v2",
        beta_start: Annotated[float, Bounds(above=0, below=1)] = 0.0001,
        beta_end: Annotated[float, Bounds(above=0, below=1)] = 0.02,
        says_clean: bool = False,
        clip: Positive | None = 1.0,
        sampler: Literal["ddpm", "ddim"] = "ddpm",
        sampling_steps: Steps = 100,
    ) -> None:
        length = spec.horizon + past
        if length % 2 ** (len(hidden) - 1):
            raise TrimtabError(
                f"hidden has {len(hidden)} levels: a chunk of {length} actions cannot be halved "
                "between them"
            )
        made = SchedulerSteps(
            _alphas(train_steps, beta_schedule, beta_start, beta_end), sampling_steps,
            ancestral=sampler == "ddpm", clip=clip, says_clean=says_clean,
        )  # fmt: skip
        super().__init__(spec, made.noise_shape(length, spec.action_dim))
        self.sampler, self.past, self.train_steps = made, past, train_steps
        self.network = ConditionalUNet(
            spec.action_dim, spec.obs_dim, hidden=hidden, step_dim=step_dim, kernel=kernel,
            groups=groups, scaled=scaled,
        )  # fmt: skip

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``, the present one first."""
        condition = self.normalizer.obs(obs)

        def field(x: Tensor, time: Tensor) -> Tensor:
            result: Tensor = self.network(x, time * self.train_steps, condition)
            return result

        return self.normalizer.raw_action(self.sampler(field, noise)[:, self.past :])


def _alphas(levels: int, schedule: Betas, start: float, end: float) -> list[float]:
    """Return the share of the signal at each noise level, in 32 bits as diffusers has it."""
    if schedule == "squaredcos_cap_v2":
        return cosine_alphas(levels)
    root = 0.5 if schedule == "scaled_linear" else 1.0
    betas = torch.linspace(start**root, end**root, levels, dtype=torch.float32) ** (1 / root)
    alphas: list[float] = (1.0 - betas).cumprod(0).tolist()
    return alphas
