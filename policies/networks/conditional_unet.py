"""The U-Net of Diffusion Policy: convolutions over time, told the observation at every block.

Chi et al., "Diffusion Policy" (arXiv 2303.04137), by the published code (real-stanford/
diffusion_policy, ``ConditionalUnet1D``), of which LeRobot's is a copy. Modules are called as there,
so that their weights load. Observation and noise level shift each block's features, and scale them
(Perez et al., "FiLM", arXiv 1709.07871).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.policies.networks.mlp import check_widths

__all__ = ["ConditionalUNet"]

_LAST_GROUPS = 8
"""Groups of the last block, whatever the others have."""
_LONGEST_WAVE = 10_000.0


class ConditionalUNet(nn.Module):
    """From noisy chunks ``[B, L, C]``, a noise level and a condition ``[B, D]`` to ``[B, L, C]``.

    Args:
        channels: numbers C of an action.
        condition: length D of the condition.
        hidden: channels of each level, the longest first; between levels the length L is halved.
        step_dim: width of the features of the noise level.
        kernel: rows that a convolution reads, an odd number.
        groups: of each normalisation, a divisor of all of ``hidden``.
        scaled: whether the condition scales features, and does not only shift them.

    Raises:
        TrimtabError: if a width is below 1, or does not fit the kernel or the groups.
    """

    frequencies: Tensor

    def __init__(
        self, channels: int, condition: int, *, hidden: Sequence[int], step_dim: int, kernel: int,
        groups: int, scaled: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        check_widths(hidden)
        if not hidden or any(width % groups for width in hidden) or hidden[0] % _LAST_GROUPS:
            raise TrimtabError(
                f"hidden={list(hidden)}: each must be a multiple of groups={groups}, and the first "
                f"of {_LAST_GROUPS}"
            )
        if kernel % 2 == 0 or step_dim < 4 or step_dim % 2:
            raise TrimtabError("kernel must be odd, and step_dim an even number from 4 on")
        exponent = torch.arange(step_dim // 2) / (step_dim // 2 - 1)
        waves = torch.exp(-math.log(_LONGEST_WAVE) * exponent)
        self.register_buffer("frequencies", waves, persistent=False)
        self.diffusion_step_encoder = nn.Sequential(
            nn.Identity(),  # the published one has its frequencies here
            nn.Linear(step_dim, 4 * step_dim),
            nn.Mish(),
            nn.Linear(4 * step_dim, step_dim),
        )

        def block(inputs: int, outputs: int) -> _Block:
            return _Block(inputs, outputs, step_dim + condition, kernel, groups, scaled)

        widths = list(pairwise([channels, *hidden]))
        self.down_modules = nn.ModuleList(
            nn.ModuleList([
                block(narrow, wide), block(wide, wide),
                nn.Identity() if level == len(widths) else nn.Conv1d(wide, wide, 3, 2, 1),
            ])
            for level, (narrow, wide) in enumerate(widths, start=1)
        )  # fmt: skip
        self.mid_modules = nn.ModuleList(block(hidden[-1], hidden[-1]) for _ in range(2))
        self.up_modules = nn.ModuleList(
            nn.ModuleList([
                block(2 * wide, narrow), block(narrow, narrow),
                nn.ConvTranspose1d(narrow, narrow, 4, 2, 1),
            ])
            for narrow, wide in reversed(widths[1:])
        )  # fmt: skip
        self.final_conv = nn.Sequential(
            _convolution(hidden[0], hidden[0], kernel, _LAST_GROUPS),
            nn.Conv1d(hidden[0], channels, 1),
        )

    def forward(self, noisy: Tensor, noise_level: Tensor, condition: Tensor) -> Tensor:
        """Return what the network says of the noise, or of the clean chunk: ``[B, L, C]``.

        Args:
            noisy: chunks ``[B, L, C]``.
            noise_level: number of the noise level ``[B]``, or ``[1]`` for all rows.
            condition: ``[B, D]``.
        """
        angle = noise_level[:, None] * self.frequencies
        told = self.diffusion_step_encoder(torch.cat([angle.sin(), angle.cos()], dim=-1))
        told = torch.cat([told.expand(condition.shape[0], -1), condition], dim=-1)
        seen: list[Tensor] = []
        x = noisy.transpose(1, 2)
        for level in self.down_modules:
            first, second, halve = level.children()
            x = second(first(x, told), told)
            seen.append(x)
            x = halve(x)
        for block in self.mid_modules:
            x = block(x, told)
        for level in self.up_modules:
            first, second, double = level.children()
            x = double(second(first(torch.cat([x, seen.pop()], dim=1), told), told))
        result: Tensor = self.final_conv(x).transpose(1, 2)
        return result


def _convolution(inputs: int, outputs: int, kernel: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2),
        nn.GroupNorm(groups, outputs),
        nn.Mish(),
    )


class _Block(nn.Module):
    """Two convolutions, the condition between them, and what was read added at the end."""

    def __init__(
        self, inputs: int, outputs: int, told: int, kernel: int, groups: int, scaled: bool
    ) -> None:
        super().__init__()
        self.scaled = scaled
        self.blocks = nn.ModuleList(
            _convolution(read, outputs, kernel, groups) for read in (inputs, outputs)
        )
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(told, outputs * (1 + scaled)))
        self.residual_conv = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        film = self.cond_encoder(told)[..., None]
        out = self.blocks[0](x)
        if self.scaled:
            factor, film = film.chunk(2, dim=1)
            out = factor * out
        result: Tensor = self.blocks[1](out + film) + self.residual_conv(x)
        return result
