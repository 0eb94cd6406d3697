"""A short name for an environment's dynamics: equal names, equal physics to six digits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.spec import FloatArray

__all__ = ["fingerprint"]

_EPISODES = 3
_STEPS = 25


def _six_digits(values: NDArray[Any] | list[float]) -> str:
    # Below 1e-8 a simulator's zeros are rounding noise; adding 0.0 makes -0.0 the same as 0.0.
    rounded = np.round(np.asarray(values, np.float64).ravel(), 8) + 0.0
    return ",".join(f"{value:.5e}" for value in rounded)


def fingerprint(
    make_env: Callable[[], gymnasium.Env[FloatArray, FloatArray]],
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Return 12 hexadecimal digits of a SHA-256 over a short seeded trajectory.

    The first 25 steps of three seeded episodes under seeded uniform actions: observations, rewards
    and flags, rounded to six significant digits so that a different processor's last bit seldom
    matters, while a changed model, time step or engine does.

    Seldom is not never. A number next to a rounding boundary falls on either side of it: with n
    numbers that differ by a share d of their size that happens about n * d * 1e6 times at most,
    0.003 for 30,000 numbers and d = 1e-13. And rounding cannot help where a step itself enlarges
    the last bit: a flat object that touches a table may gain a contact or lose one. Measured with
    MuJoCo 3.3.0: one part in 2**52 more or less in every position and velocity after a reset
    changes ten of 66 fingerprints, all of Meta-World; and a C library that is told to do without
    the processor's fused multiplication changes six of those ten. For them another fingerprint may
    mean another processor and not other physics; ``tests/envs/fingerprints.json`` names the six.
    The same holds for a simulator in float32 that is compiled for each processor.

    Args:
        make_env: makes the environment; it is closed afterwards.
        extra: JSON values hashed along (engine version, options).
    """
    digest = hashlib.sha256(json.dumps(dict(extra or {}), sort_keys=True).encode())
    env = make_env()
    try:
        space = env.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        generator = np.random.default_rng(0)
        for episode in range(_EPISODES):
            obs, _ = env.reset(seed=episode)
            digest.update(_six_digits(obs).encode())
            for _ in range(_STEPS):
                action = generator.uniform(space.low, space.high).astype(np.float32)
                obs, reward, terminated, truncated, _ = env.step(action)
                digest.update(_six_digits(obs).encode())
                digest.update(_six_digits([float(reward), terminated, truncated]).encode())
                if terminated or truncated:
                    break
    finally:
        env.close()
    return digest.hexdigest()[:12]
