"""The tasks of the DeepMind Control Suite, with their states as observations.

Tassa et al., 2018, "DeepMind Control Suite". A task's name is ``domain-task``. The observation is
dm_control's ordered dictionary of arrays laid out one after another, the reward lies in [0, 1] at
every step (but for ``lqr``), and an episode has 1000 steps; no task but ``lqr`` ends before that.

Two things about ``lqr`` are settled here. dm_control draws the springs when it makes the
environment: they are those of its seed 0, so that all episodes have the same system. And its forces
have no limit, which MuJoCo writes as 1e10: here it is 10 N, twice what the optimal controller uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.legacy_random import legacy_seed
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames
from trimtab.errors import TrimtabError

__all__ = ["FAMILY"]

_MODEL_SEED = 0  # decides lqr's springs; no other task draws anything when it is made
_UNLIMITED = 1e10  # how MuJoCo writes the limits of an actuator that has none
_FORCE_LIMIT = 10.0
_PICTURE = 480  # pixels a side


class _FlatSuiteTask(gymnasium.Env[Any, Any]):
    """A task whose ``reset(seed=...)`` seeds the one generator that it draws from.

    Args:
        task: its name here.
        env: dm_control's environment.
        diverged: what it raises where the simulation is no longer finite.
    """

    def __init__(self, task: str, env: Any, diverged: type[Exception]) -> None:
        limits = env.action_spec()
        low, high = (
            np.where(np.abs(limit) >= _UNLIMITED, np.sign(limit) * _FORCE_LIMIT, limit)
            for limit in (limits.minimum, limits.maximum)
        )
        size = sum(math.prod(spec.shape) for spec in env.observation_spec().values())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        self.model, self.data = env.physics.model.ptr, env.physics.data.ptr
        self.frame_skip = round(env.control_timestep() / env.physics.timestep())
        self._task, self._env, self._diverged = task, env, diverged
        env.task.random.seed()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and an empty dictionary."""
        if seed is not None:
            self._env.task.random.seed(legacy_seed(seed))
        return _flat(self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info.

        Raises:
            TrimtabError: if the simulation is no longer finite.
        """
        try:
            now = self._env.step(action)
        except self._diverged as error:
            message = " ".join(str(error).split())
            raise TrimtabError(f"dmc/{self._task}: the simulation diverged ({message})") from error
        return _flat(now.observation), now.reward, now.last(), False, {}

    def render(self) -> Any:
        """Return a picture [480, 480, 3]."""
        return self._env.physics.render(_PICTURE, _PICTURE, camera_id=0)

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()


def _build(task: str, *, render: bool) -> RawEnv:
    with quiet():
        from dm_control import suite
        from dm_control.rl.control import PhysicsError

        domain, name = task.split("-")
        settings: dict[str, Any] = {"random": _MODEL_SEED, "time_limit": math.inf}
        if task in _UNSEEN and not render:
            env = _UNSEEN[task](**settings)
        else:
            env = suite.load(domain, name, task_kwargs=settings)
        return _FlatSuiteTask(task, env, PhysicsError)


def _escape_unseen(random: int, time_limit: float) -> Any:
    """Return ``quadruped-escape`` as dm_control makes it, but for pictures.

    Its reset uploads the terrain to the rendering context, and makes one with OpenGL to find out
    whether there is one.
    """
    from dm_control.rl import control
    from dm_control.suite import common, quadruped

    class Unseen(quadruped.Physics):  # type: ignore[misc]
        contexts = None

    model = quadruped.make_model(floor_size=40, terrain=True, rangefinders=True)
    physics = Unseen.from_xml_string(model, common.ASSETS)
    return control.Environment(
        physics,
        quadruped.Escape(random=random),
        time_limit=time_limit,
        control_timestep=0.02,
    )


_UNSEEN = {"quadruped-escape": _escape_unseen}
"""Tasks that would need OpenGL also where nobody draws them."""


def _flat(observation: Mapping[str, Any]) -> Any:
    return np.concatenate([np.ravel(part) for part in observation.values()])


# Domain: tag and tasks. A star: the target is observed and differs from episode to episode; an
# exclamation mark: the reward is 0 or 1.
_SUITE = {
    "acrobot": ("control", "swingup swingup_sparse!"),
    "ball_in_cup": ("control", "catch!"),
    "cartpole": (
        "control",
        "balance balance_sparse! swingup swingup_sparse! two_poles three_poles",
    ),
    "cheetah": ("locomotion", "run"),
    "dog": ("locomotion", "stand walk trot run fetch"),
    "finger": ("manipulation", "spin! turn_easy*! turn_hard*!"),
    "fish": ("locomotion", "upright swim*"),
    "hopper": ("locomotion", "stand hop"),
    "humanoid": ("locomotion", "stand walk run run_pure_state"),
    "humanoid_CMU": ("locomotion", "stand walk run"),
    "lqr": ("control", "lqr_2_1 lqr_6_2"),
    "manipulator": ("manipulation", "bring_ball* bring_peg* insert_ball* insert_peg*"),
    "pendulum": ("control", "swingup!"),
    "point_mass": ("control", "easy hard"),
    "quadruped": ("locomotion", "walk run escape fetch"),
    "reacher": ("control", "easy*! hard*!"),
    "stacker": ("manipulation", "stack_2* stack_4*"),
    "swimmer": ("locomotion", "swimmer6* swimmer15*"),
    "walker": ("locomotion", "stand walk run"),
}
_NO_SCORE = frozenset({"lqr"})  # its reward has no lower limit


def _tasks() -> dict[str, Task]:
    return {
        f"{domain}-{marked.rstrip('*!')}": Task(
            horizon=1000,
            score_references={} if domain in _NO_SCORE else {"dm-control": (0.0, 1000.0)},
            tags=(tag, *("goal",) * ("*" in marked), *("sparse",) * ("!" in marked)),
        )
        for domain, (tag, names) in _SUITE.items()
        for marked in names.split()
    }


FAMILY = Family(
    name="dmc",
    install="trimtab[dmc]",
    packages=("mujoco", "dm-control"),
    tasks=_tasks(),
    build=_build,
    frames=mujoco_frames,
)
