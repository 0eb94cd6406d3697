"""Weights, batches and noise that follow from a formula, and not from a random generator.

``peer_numbers_offline.py`` gives them to other learners, and the tests to ours.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

OBS, ACTION, BATCH, HIDDEN, CANDIDATES, UPDATES = 4, 2, 8, 256, 10, 2
SAMPLES = 5
CQL_ALPHA, DISCOUNT = 2.0, 0.99
REBRAC = {"actor_penalty": 0.05, "critic_penalty": 0.3, "learning_rate": 1e-3}


def numbers(name: str, shape: Sequence[int], size: float = 1.0) -> Array:
    """Return numbers in [-size, size] that follow from a name and their places."""
    count = int(np.prod(shape)) if len(shape) else 1
    start = zlib.crc32(name.encode()) % 1000
    place = np.arange(start, start + count, dtype=np.float64)
    return (size * np.sin(1.3 * place + 0.001 * place**2)).reshape(tuple(shape))


def layer(name: str, outputs: int, inputs: int) -> tuple[Array, Array]:
    """Return the weight ``[outputs, inputs]`` and bias of a linear layer."""
    size = 1.5 / np.sqrt(inputs)
    return numbers(f"{name} weight", (outputs, inputs), size), numbers(
        f"{name} bias", (outputs,), size
    )


def perceptron(name: str, inputs: int, hidden: int, outputs: int) -> list[tuple[Array, Array]]:
    """Return the layers of a perceptron with ``hidden`` layers of one width."""
    widths = [inputs, *[HIDDEN] * hidden, outputs]
    pairs = zip(widths, widths[1:], strict=False)
    return [layer(f"{name} {k}", out, into) for k, (into, out) in enumerate(pairs)]


def batch(update: int) -> dict[str, Array]:
    """Return a batch; the last two transitions end an episode."""
    known = {
        name: numbers(f"{name} {update}", shape, size)
        for name, shape, size in (
            ("obs", (BATCH, OBS), 2.0),
            ("action", (BATCH, ACTION), 0.9),
            ("reward", (BATCH,), 1.0),
            ("next_obs", (BATCH, OBS), 2.0),
            ("next_action", (BATCH, ACTION), 0.9),
        )
    }
    return {**known, "ended": (np.arange(BATCH) >= BATCH - 2).astype(np.float64)}


def summary(weight: Any) -> list[float]:
    """Return the sum of a weight's entries, and a few of them, in the layout of the formula."""
    flat = np.asarray(weight, dtype=np.float64).reshape(-1)
    places = np.linspace(0, len(flat) - 1, SAMPLES).astype(int)
    return [float(flat.sum()), *(float(flat[place]) for place in places)]


def noise_of(update: int, draw: int, shape: Sequence[int]) -> Array:
    """Return a draw of an update; uniform and normal ones alike are within [-1, 1]."""
    return numbers(f"noise {update} {draw}", shape)
