"""Camera frames in which a square moves, and how they are saved and read as LeRobot does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.registry import get_format

Picture = npt.NDArray[np.uint8]

TOP, WRIST = "observation.images.top", "observation.images.wrist"
HEIGHT, WIDTH, SQUARE = 32, 48, 12
GREY = (60, 90, 120)


def square(steps: int, begin: int, colour: Sequence[int], size: tuple[int, int]) -> Picture:
    """Return frames in which a square is at column 2 * (begin + t)."""
    frames = np.full((steps, *size, 3), GREY, np.uint8)
    for step in range(steps):
        left = 2 * (begin + step)
        frames[step, 8 : 8 + SQUARE, left : left + SQUARE] = colour
    return frames


def columns_of(frames: Picture) -> list[int]:
    """Return the column at which the square of each frame begins, by its reds."""
    return [int(np.flatnonzero(frame[14, :, 0] > 130)[0]) for frame in frames]


def save(dataset: Dataset, path: Path) -> Path:
    format = get_format("lerobot")
    assert format.save is not None
    format.save(dataset, path)
    return path


load = get_format("lerobot").load
