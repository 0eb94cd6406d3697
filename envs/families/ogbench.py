"""OGBench's mazes and manipulation tasks, to be reached by goal or solved one task at a time.

Park et al., 2024, "OGBench: Benchmarking Offline Goal-Conditioned RL". Names are OGBench's own.

With goals (``cube-double-v0``), an episode is one of the scene's five tasks, drawn from its seed;
the observation is OGBench's with the goal after it: what is observed where the task is solved.
The reward is 1.0 where it is solved and 0.0 elsewhere.

A single task (``cube-double-singletask-task3-v0``; without ``-task3`` the one that OGBench made the
default) has no goal in its observation. Its reward is -1.0 for each part of the task that is not
solved yet (0.0 or -1.0 in a maze), and OGBench looks at the state before the action, so that an
episode ends one step after the task is solved.

Left out: pictures as observations, and ``humanoidmaze-teleport``, whose model lacks a material in
OGBench 1.2.2, so that it cannot be made.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.legacy_random import as_global_generator, legacy_generator
from trimtab.envs.core.private_files import private_temporary_files
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames

__all__ = ["FAMILY"]


class _SeededOgbench(gymnasium.Env[Any, Any]):
    """OGBench's environment with all that it draws from decided by ``reset(seed=...)``.

    It draws from its own generator, its action space and numpy's global generator, which it is
    lent one of its own for: nobody else's draws move an episode, nor the other way round.

    Args:
        env: the bare environment, with an action space of its own.
        with_goal: whether the goal is laid after the observation.
        frame_skip: steps of physics for each action.
        draws_in_step: whether it draws from numpy's global generator during an episode, too.
    """

    def __init__(self, env: Any, *, with_goal: bool, frame_skip: int, draws_in_step: bool) -> None:
        observed = env.observation_space.shape[0]
        size = 2 * observed if with_goal else observed
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = env.action_space
        self.model, self.data = env.model, env.data
        self.scene = env  # a recipe's controller reads there what is not observed
        self.frame_skip = frame_skip
        here = tuple(range(observed))
        self.obs_parts = {"observation": here}
        if with_goal:
            goal = tuple(range(observed, size))
            self.obs_parts |= {"achieved_goal": here, "desired_goal": goal}
        self._with_goal = with_goal
        self._goal = np.zeros(0)
        self._generator = legacy_generator(None)
        self._draws_in_step = draws_in_step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and an empty dictionary."""
        if seed is not None:
            self._generator = legacy_generator(seed)
            self.action_space.seed(seed)
        with as_global_generator(self._generator):
            obs, info = self.scene.reset(seed=seed)
        if self._with_goal:
            self._goal = info["goal"]
        return np.concatenate((obs, self._goal)), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        if self._draws_in_step:
            with as_global_generator(self._generator):
                obs, reward, terminated, truncated, info = self.scene.step(action)
        else:
            obs, reward, terminated, truncated, info = self.scene.step(action)
        flat = np.concatenate((obs, self._goal))
        return flat, reward, terminated, truncated, {"success": info["success"]}

    def render(self) -> Any:
        """Return a picture [480, 480, 3]."""
        return self.scene.render()

    def close(self) -> None:
        """Close the simulator."""
        self.scene.close()


def _build(task: str, *, render: bool) -> RawEnv:
    with quiet():
        import ogbench  # noqa: F401  (registers the tasks)
        from gymnasium.envs.registration import load_env_creator

        spec = gymnasium.spec(task)
        assert isinstance(spec.entry_point, str)
        maker: Any = load_env_creator(spec.entry_point)
        scene = inspect.isclass(maker)  # of manipulation; a function makes the mazes
        if scene:
            # Random actions settle a scene at its reset. Its own space is a new one at each use,
            # which nobody can seed.
            space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)
            maker = type(maker.__name__, (maker,), {"action_space": space})
        with private_temporary_files(), as_global_generator(legacy_generator(None)):
            env = maker(**spec.kwargs, **_PICTURE)
            env.reset()  # a scene is made at its first reset
    return _SeededOgbench(
        env,
        with_goal=spec.kwargs.get("reward_task_id") is None,
        frame_skip=_SCENE_FRAMES if scene else env.frame_skip,
        draws_in_step=spec.kwargs.get("maze_type") == "teleport",
    )


_PICTURE = {"width": 480, "height": 480}
_SCENE_FRAMES = 25  # steps of physics (2 ms) for each action in manipulation (20 Hz)

# Scenes with the episodes' lengths that OGBench registers.
_MAZES = {
    "pointmaze-medium": 1000,
    "pointmaze-large": 1000,
    "pointmaze-giant": 1000,
    "pointmaze-teleport": 1000,
    "antmaze-medium": 1000,
    "antmaze-large": 1000,
    "antmaze-giant": 1000,
    "antmaze-teleport": 1000,
    "humanoidmaze-medium": 2000,
    "humanoidmaze-large": 2000,
    "humanoidmaze-giant": 4000,
    "antsoccer-arena": 1000,
    "antsoccer-medium": 1000,
}
_MANIPULATION = {
    "cube-single": 200,
    "cube-double": 500,
    "cube-triple": 1000,
    "cube-quadruple": 1000,
    "cube-octuple": 1500,
    "scene": 750,
    "puzzle-3x3": 500,
    "puzzle-4x4": 500,
    "puzzle-4x5": 1000,
    "puzzle-4x6": 1000,
}
_SINGLE = ("", *(f"-task{number}" for number in range(1, 6)))


_WALKERS = ("ant", "humanoid")  # beginnings of the scenes' names


def _tasks(scenes: dict[str, int], tag: str, single_tags: tuple[str, ...]) -> dict[str, Task]:
    tasks = {}
    for scene, steps in scenes.items():
        tags = (tag, *("locomotion",) * scene.startswith(_WALKERS))
        tasks[f"{scene}-v0"] = Task(steps, "success", tags=(*tags, "goal", "sparse"))
        for number in _SINGLE:
            single = Task(steps, "success", tags=(*tags, *single_tags))
            tasks[f"{scene}-singletask{number}-v0"] = single
    return tasks


FAMILY = Family(
    name="ogbench",
    install="trimtab[ogbench]",
    packages=("mujoco", "dm-control", "gymnasium", "ogbench"),
    tasks={
        **_tasks(_MAZES, "navigation", ("sparse",)),
        **_tasks(_MANIPULATION, "manipulation", ()),
    },
    build=_build,
    frames=mujoco_frames,
)
