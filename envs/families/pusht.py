"""Push-T: a disc pushes a T-shaped block onto its outline, in two dimensions, with pymunk.

Chi et al., 2023, "Diffusion Policy", after Florence et al., 2021, "Implicit Behavioral Cloning".
An action is where the disc shall go, ``[x, y]`` in ``[0, 512]^2``, ten times a second. The
observation is ``[disc x, disc y, block x, block y, block angle]`` (angle in ``[0, 2 pi)``); with
``obs_type=environment_state_agent_pos`` it is the block's eight corners, x and y in turn, and
``[disc x, disc y]``. The reward is the share of the outline that the block covers, divided by 0.95
and at most 1.0; above 95 percent an episode ends, with success. So the best policy by return waits
below 95 percent and does not finish; with ``reward=sparse`` only success counts.

An episode starts with disc and block anywhere. With ``start=near`` the block lies within 50 pixels
of its place in ``x`` and in ``y``, and is turned by at most half a radian: an easier task of ours,
which a small network learns from demonstrations in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task

__all__ = ["FAMILY"]

# Parts of the observation and their lengths, by the simulator's name for the kind of observation.
_PARTS: Mapping[str, Mapping[str, int]] = {
    "state": {},
    "environment_state_agent_pos": {"environment_state": 16, "agent_pos": 2},
}
_NEAR = (50.0, 0.5)
"""Most that the block is moved (pixels) and turned (radian) at a start near its place."""


class _FlatPushT(gymnasium.Env[Any, Any]):
    """Push-T with its observation as one array.

    Nothing has to be cleared for a seed to decide the episode: every reset makes a new space.

    Args:
        env: the bare environment.
        obs_type: its kind of observation.
        start: where the block lies at first, ``anywhere`` or ``near`` its place.
    """

    def __init__(self, env: Any, obs_type: str, start: str) -> None:
        self._env, self._start = env, start
        self._order = tuple(_PARTS[obs_type])
        self.dt = env.dt
        self.control_hz = env.control_hz
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        if self._order:
            size = sum(_PARTS[obs_type].values())
            self.observation_space = gymnasium.spaces.Box(0.0, 512.0, (size,), np.float64)

    def _flat(self, obs: Any) -> Any:
        return np.concatenate([obs[name] for name in self._order]) if self._order else obs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        obs, info = self._env.reset(seed=seed, options=options)
        given = options is not None and options.get("reset_to_state") is not None
        if self._start == "near" and not given:  # the disc stays where the simulator put it
            move, turn = _NEAR
            goal, draw = self._env.goal_pose, self._env.np_random.uniform
            block = goal + draw(-1.0, 1.0, 3) * np.array([move, move, turn])
            # The simulator sets the place first and then turns about the centre of mass.
            centre = self._env.block.center_of_gravity
            block[:2] += np.array(centre.rotated(block[2]) - centre)
            state = [*self._env.agent.position, *block]
            obs, info = self._env.reset(options={"reset_to_state": state})
        return self._flat(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [2]; return observation [O], reward, terminated, truncated, info."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return self._flat(obs), reward, terminated, truncated, info

    def render(self) -> Any:
        """Return a picture [680, 680, 3]."""
        return self._env.render()

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()


def _build(task: str, *, render: bool, obs_type: str, start: str) -> RawEnv:
    with quiet():
        import gym_pusht  # noqa: F401  (registers its task)

        env = gymnasium.make(f"gym_pusht/{task}", obs_type=obs_type, render_mode="rgb_array")
        return _FlatPushT(env.unwrapped, obs_type, start)


def _frames(env: Any) -> tuple[float, int, str]:
    return float(env.dt), int(1 / (env.dt * env.control_hz)), "pymunk"


FAMILY = Family(
    name="pusht",
    install="trimtab[pusht]",
    packages=("pymunk", "gymnasium", "gym-pusht", "shapely"),
    tasks={
        "PushT-v0": Task(
            300,
            "is_success",
            tags=("manipulation",),
            options={"obs_type": tuple(_PARTS), "start": ("anywhere", "near")},
        )
    },
    build=_build,
    frames=_frames,
)
