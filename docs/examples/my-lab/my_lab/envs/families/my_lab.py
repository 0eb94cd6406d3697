"""A cart on a rail that is pushed to a mark."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.spec import Family, Task

STEP = 0.1  # seconds


class Cart(gymnasium.Env[Any, Any]):
    """Observes position, speed (m, m/s) and the mark (m); is pushed by a force of at most 1 N."""

    def __init__(self) -> None:
        limit = np.inf
        self.observation_space = gymnasium.spaces.Box(-limit, limit, (3,))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.state = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Put the cart and the mark somewhere on the rail."""
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-1, 1), 0.0, self.np_random.uniform(-1, 1)])
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push for a tenth of a second."""
        position, speed, mark = self.state
        speed = 0.9 * speed + STEP * float(np.clip(action, -1, 1)[0])
        self.state = np.array([position + STEP * speed, speed, mark])
        distance = abs(self.state[0] - mark)
        return self.state.copy(), -float(distance), False, False, {"success": bool(distance < 0.1)}


FAMILY = Family(
    name="my_lab",
    install="my-lab",
    packages=("numpy",),  # whose versions decide the physics, beside this file
    tasks={"Cart-v0": Task(horizon=60, success_key="success", tags=("control",))},
    build=lambda task, *, render: Cart(),
    frames=lambda env: (STEP, 1, "euler"),
)
