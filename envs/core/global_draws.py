"""What draws from the generators that a whole process shares."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["GlobalDraws"]


def _states() -> dict[str, Any]:
    """Return the states of the generators by name, as values that can be compared."""
    numpys: Any = np.random.get_state(legacy=False)
    return {
        "torch's": torch.get_rng_state().numpy().tobytes(),
        "NumPy's": [np.asarray(value).tobytes() for value in numpys["state"].values()],
        "Python's": random.getstate(),
    }


class GlobalDraws:
    """Finds what seeds torch's, NumPy's or Python's global generator, or draws from it.

    Attributes:
        faults: a line for each place and generator.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        # A seed that is set anew is seen only if the generator was elsewhere.
        torch.rand(())
        np.random.random()
        random.random()

    @contextlib.contextmanager
    def by(self, where: str) -> Iterator[None]:
        """Look at the generators before and after the block.

        Args:
            where: what the block calls, for the line.
        """
        before = _states()
        yield
        for name, state in _states().items():
            line = (
                f"{where} seeds {name} global random generator, or draws from it, which the whole "
                "process shares; draw from self.np_random, or from a generator of its own"
            )
            if state != before[name] and line not in self.faults:
                self.faults.append(line)
