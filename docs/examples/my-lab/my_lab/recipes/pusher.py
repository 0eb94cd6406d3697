"""Push the cart to its mark, with noise: demonstrations."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np


class Pusher:
    """A proportional-derivative controller.

    Args:
        task: not used.
        generator: draws the noise.
        noise: standard deviation of the noise on the force.
    """

    name: ClassVar[str] = "pusher"
    revision: ClassVar[int] = 1

    def __init__(self, task: str, generator: np.random.Generator, *, noise: float = 0.2) -> None:
        self.generator, self.noise = generator, noise

    def act(self, obs: Any) -> Any:
        """Return the force ``[1]``."""
        force = 4.0 * (obs[2] - obs[0]) - 3.0 * obs[1]
        return np.clip([force], -1, 1) + self.noise * self.generator.standard_normal(1)
