"""Follow one of several routes of waypoints, chosen by chance: multimodal demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.settings import NonNegative


class WaypointController:
    """A proportional-derivative controller of a planar ball, with noise.

    Reads ``[x, y, velocity x, velocity y, ...]`` (m, m/s) and returns a force in ``[-1, 1]^2``.

    Args:
        task: not used.
        generator: decides the route and the noise.
        routes: each a list of (x, y) in metres, to be visited in order.
        spread: half widths (x, y) in metres of the uniform shift of each episode's first waypoint.
        noise: standard deviation of the noise added to each force.
        proportional: gain on the distance to the waypoint, per metre.
        derivative: gain on the velocity, per metre a second.
        reached: distance in metres at which the next waypoint takes over.
    """

    name: ClassVar[str] = "waypoints"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        routes: Sequence[Sequence[Sequence[float]]],
        spread: Sequence[float] = (0.0, 0.0),
        noise: NonNegative = 0.1,
        proportional: float = 2.0,
        derivative: float = 0.5,
        reached: float = 0.3,
    ) -> None:
        self.generator = generator
        self.route = [
            np.asarray(p, dtype=float) for p in routes[int(generator.integers(len(routes)))]
        ]
        self.route[0] = self.route[0] + generator.uniform(-1, 1, size=2) * np.asarray(spread)
        self.noise, self.reached = noise, reached
        self.gains = (proportional, derivative)

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the force ``[2]`` toward the present waypoint."""
        position, velocity = obs[:2], obs[2:4]
        while len(self.route) > 1 and np.linalg.norm(self.route[0] - position) < self.reached:
            self.route.pop(0)
        force = self.gains[0] * (self.route[0] - position) - self.gains[1] * velocity
        noisy: NDArray[Any] = np.clip(force, -1, 1) + self.noise * self.generator.standard_normal(2)
        return noisy
