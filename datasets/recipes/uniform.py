"""Act uniformly at random: the data of a policy that knows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError


class UniformRandom:
    """Draws every action anew between two limits.

    Args:
        task: not used.
        generator: draws the actions.
        low: lower limit of each action dimension, raw units.
        high: upper limit of each action dimension, raw units.

    Raises:
        TrimtabError: if the limits do not fit each other.
    """

    name: ClassVar[str] = "uniform_random"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        low: Sequence[float],
        high: Sequence[float],
    ) -> None:
        if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
            raise TrimtabError(
                f"dataset.controller: low={list(low)} and high={list(high)} must have a number for "
                "each action dimension, the lower first"
            )
        self.generator = generator
        self.low, self.high = np.asarray(low, float), np.asarray(high, float)

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return an action ``[A]``."""
        return self.generator.uniform(self.low, self.high)
