"""A U-Net over the rows of a trajectory, for diffusion of whole trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import TrimtabError
from trimtab.policies.networks.mlp import check_widths, mlp

_MOST_GROUPS = 8
_LONGEST_WAVE = 10_000.0


class TrajectoryUNet(nn.Module):
    """From noisy trajectories ``[B, L, C]`` and a noise level ``[B]`` to as many numbers.

    Going down, each level convolves twice and halves the length; going up, each doubles it, reads
    what that level had on the way down, and convolves twice. The noise level is added at each.

    Args:
        channels: numbers C of a row.
        length: rows L of a trajectory.
        hidden: channels of each level, the longest first.

    Raises:
        TrimtabError: if a width is below 1, there is no level, or more than L can be halved to.
    """

    frequencies: Tensor

    def __init__(self, channels: int, length: int, hidden: Sequence[int]) -> None:
        super().__init__()
        check_widths(hidden)
        if not hidden or length < 2 ** (len(hidden) - 1):
            raise TrimtabError(
                f"hidden has {len(hidden)} levels: a trajectory of {length} rows can be halved "
                f"for 1 to {length.bit_length()}"
            )
        half = max(hidden[0] // 8, 2)
        exponent = torch.arange(half) / (half - 1)
        self.register_buffer("frequencies", _LONGEST_WAVE**-exponent, persistent=False)
        told = hidden[0]
        self.level = nn.Sequential(mlp(2 * half, (told,), told, activation="silu"), nn.SiLU())
        inputs = [channels, *hidden[:-1]]
        self.down = nn.ModuleList(_Level(*pair, told) for pair in zip(inputs, hidden, strict=True))
        upwards = hidden[::-1]
        pairs = list(zip(upwards[:-1], upwards[1:], strict=True))
        self.lift = nn.ModuleList(_Convolution(*pair) for pair in pairs)
        self.up = nn.ModuleList(_Level(2 * width, width, told) for _, width in pairs)
        self.out = nn.Conv1d(hidden[0], channels, 1)

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        """Return the network's output ``[B, L, C]``.

        Args:
            noisy: trajectories ``[B, L, C]``.
            level: what says how noisy they are, ``[B]``, or ``[1]`` for all.
        """
        angle = level[:, None] * self.frequencies
        told = self.level(torch.cat([angle.sin(), angle.cos()], dim=1))
        x, seen = noisy.transpose(1, 2), list[Tensor]()
        for number, block in enumerate(self.down):
            x = block(functional.max_pool1d(x, 2) if number else x, told)
            seen.append(x)
        for lift, block, beside in zip(self.lift, self.up, seen[-2::-1], strict=True):
            x = lift(functional.interpolate(x, size=beside.shape[-1], mode="nearest"))
            x = block(torch.cat([x, beside], dim=1), told)
        result: Tensor = self.out(x).transpose(1, 2)
        return result


class _Convolution(nn.Module):
    """Convolution over three rows, normalisation in groups, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(math.gcd(_MOST_GROUPS, outputs), outputs)

    def forward(self, x: Tensor, told: Tensor | None = None) -> Tensor:
        x = self.convolution(x)
        return functional.relu(self.norm(x if told is None else x + told[..., None]))


class _Level(nn.Module):
    """Two convolutions, the first of which is told the noise level."""

    def __init__(self, inputs: int, outputs: int, told: int) -> None:
        super().__init__()
        self.first = _Convolution(inputs, outputs)
        self.second = _Convolution(outputs, outputs)
        self.told = nn.Linear(told, outputs)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x, self.told(told)))
        return result
