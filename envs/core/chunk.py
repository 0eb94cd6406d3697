"""Action chunks: several environment steps as one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.spec import FloatArray
from trimtab.envs.core.task_env import TaskEnv
from trimtab.errors import TrimtabError

__all__ = ["ChunkWrapper"]


class ChunkWrapper(gymnasium.Env[FloatArray, FloatArray]):
    """Takes ``act_steps`` actions at once and stops early where the episode ends.

    The reward is ``sum_i discount**i * r_i`` over the steps that were really taken. With discount
    1.0 it is their plain sum, the convention of DPPO (Ren et al., 2024) and DSRL (Wagenmaker et
    al., 2025). ``info`` is that of the last step taken, with ``steps`` (how many were taken) and,
    where the task has success, its key true if any of the steps had success; ``cost`` of a
    task that has costs is their sum.

    Args:
        env: environment of single actions [A].
        act_steps: actions per chunk, at least 1.
        discount: factor per step inside the chunk, in (0, 1].

    Raises:
        TrimtabError: if ``act_steps`` or ``discount`` is out of range.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, env: TaskEnv, act_steps: int, discount: float = 1.0) -> None:
        if isinstance(act_steps, bool) or not isinstance(act_steps, int) or act_steps < 1:
            raise TrimtabError(f"act_steps must be a whole number >= 1, got {act_steps!r}")
        if not 0.0 < discount <= 1.0:
            raise TrimtabError(f"the discount inside a chunk must be in (0, 1], got {discount!r}")
        self.env = env
        self.act_steps = act_steps
        self.discount = float(discount)
        self.observation_space = env.observation_space
        single = env.action_space
        assert isinstance(single, gymnasium.spaces.Box)
        repeated = (act_steps, 1)
        self.action_space = gymnasium.spaces.Box(
            np.tile(single.low, repeated), np.tile(single.high, repeated), dtype=np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        return self.env.reset(seed=seed, options=options)

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Apply ``action`` [act_steps, A]; return obs [O], reward, terminated, truncated, info."""
        step, key, costly = self.env.step, self.env.success_key, self.env.costly
        total, weight, steps, success, cost = 0.0, 1.0, 0, False, 0.0
        for single in action:
            obs, reward, terminated, truncated, info = step(single)
            total += weight * reward
            weight *= self.discount
            steps += 1
            if key is not None and info[key]:
                success = True
            cost += info["cost"] if costly else 0.0
            if terminated or truncated:
                break
        info["steps"] = steps
        if key is not None:
            info[key] = success
        if costly:
            info["cost"] = cost
        return obs, total, terminated, truncated, info

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
