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

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.legacy_random import legacy_generator
from trimtab.envs.core.private_files import private_temporary_files
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames
from trimtab.envs.engines.mujoco_kept import StandIn, is_kept, models_kept
from trimtab.turns import as_global_generator, replaced

__all__ = ["FAMILY"]

logger = logging.getLogger(__name__)


class _SeededOgbench(gymnasium.Env[Any, Any]):
    """OGBench's environment with all that it draws from decided by ``reset(seed=...)``.

    It draws from its own generator, its action space and numpy's global generator, which it is
    lent one of its own for: nobody else's draws move an episode, nor the other way round.

    Args:
        env: the bare environment, with an action space of its own.
        with_goal: whether the goal is laid after the observation.
    """

    def __init__(self, env: Any, *, with_goal: bool) -> None:
        observed = env.observation_space.shape[0]
        size = 2 * observed if with_goal else observed
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = env.action_space
        self.model, self.data = env.model, env.data
        self.scene = env  # a recipe's controller reads there what is not observed
        self.frame_skip = getattr(env, "_n_steps", None) or env.frame_skip
        here = tuple(range(observed))
        self.obs_parts = {"observation": here}
        if with_goal:
            goal = tuple(range(observed, size))
            self.obs_parts |= {"achieved_goal": here, "desired_goal": goal}
        self._with_goal = with_goal
        self._goal = np.zeros(0)
        self._generator = legacy_generator(None)
        self._draws_in_step = getattr(env, "_teleport_info", None) is not None

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
        from ogbench.locomaze import maze

        spec = gymnasium.spec(task)
        assert isinstance(spec.entry_point, str)
        with (
            private_temporary_files(maze),
            _compiling_once(),
            as_global_generator(legacy_generator(None)),
        ):
            with _reading_the_arm_once():
                env: Any = load_env_creator(spec.entry_point)(**spec.kwargs, **_PICTURE)
            scene = {k: v for k, v in spec.kwargs.items() if k not in _OF_A_TASK}
            with _describing_once(env, f"{spec.entry_point} {scene}"):
                env.reset()  # a manipulation scene is made at its first reset
        space = gymnasium.spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)
    # Random actions settle the scene at a reset. Manipulation has no fixed space to seed for them.
    env.__class__ = type(type(env).__name__, (type(env),), {"action_space": space})
    vars(env).pop("action_space", None)
    return _SeededOgbench(env, with_goal=spec.kwargs.get("reward_task_id") is None)


_PICTURE = {"width": 480, "height": 480}
_OF_A_TASK = {"reward_task_id", "permute_blocks", "success_timing"}  # the scene is the same


@contextmanager
def _compiling_once() -> Iterator[None]:
    """Keep the compiled models of manipulation scenes, which take most of the time to make one."""
    from ogbench.manipspace.envs import env, manipspace_env, scene_env

    # It announces that an unstable simulation was put right; a library should not print.
    scene_env.print = lambda text, **_: logger.warning("ogbench: %s", text)
    with (
        models_kept(env, named_by_content=True),
        models_kept(manipspace_env, named_by_content=True, only_read=True),  # the arm alone
        replaced(env, "mjcf_utils", _Texts),
    ):
        yield


@contextmanager
def _reading_the_arm_once() -> Iterator[None]:
    """Let the constructors of manipulation scenes find the text of the arm's description.

    Each of them has a model of the arm alone, for inverse kinematics. To read its description and
    digest the meshes' files takes as long as all else that makes a scene once it is compiled.
    """
    from dm_control import mjcf
    from ogbench.manipspace import mjcf_utils
    from ogbench.manipspace.envs import manipspace_env

    texts = StandIn(mjcf_utils, to_string=_text_of, get_assets=_files_of)
    with (
        replaced(manipspace_env, "mjcf", StandIn(mjcf, from_path=_File)),
        replaced(manipspace_env, "mjcf_utils", texts),
    ):
        yield


class _File:
    """A description in a file of the library's, which is read when that is needed.

    A description holds the files of its meshes, some 30 MB. So only its text is kept, and as long
    as nobody has asked for more than that, it is not read again.
    """

    def __init__(self, path: Any, **options: Any) -> None:
        self._key = (str(path), tuple(sorted(options.items())))
        self._options = options
        self._may_differ = False

    @functools.cached_property
    def _root(self) -> Any:
        from dm_control import mjcf

        return mjcf.from_path(self._key[0], **self._options)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._may_differ = True  # a user of a part of it may change it
        return getattr(self._root, attribute)


def _text_of(description: Any, **options: Any) -> str:
    """Return the XML of a description."""
    from ogbench.manipspace import mjcf_utils

    if not isinstance(description, _File):
        return mjcf_utils.to_string(description, **options)  # type: ignore[no-any-return]
    if description._may_differ or options:
        return mjcf_utils.to_string(description._root, **options)  # type: ignore[no-any-return]
    if description._key not in _texts:
        _texts[description._key] = mjcf_utils.to_string(description._root)
    return _texts[description._key]


def _files_of(description: Any) -> dict[str, bytes]:
    """Return the files that the XML names, or none if a model is compiled from it already."""
    from ogbench.manipspace import mjcf_utils

    if is_kept(_text_of(description)):
        return {}
    root = description._root if isinstance(description, _File) else description
    return mjcf_utils.get_assets(root)  # type: ignore[no-any-return]


_texts: dict[tuple[object, ...], str] = {}


@contextmanager
def _describing_once(env: Any, scene: str) -> Iterator[None]:
    """Give a manipulation scene the description that the one before it has written.

    Once a model is compiled, that is what takes most of the time: half a second for a puzzle. All
    tasks of a scene share one. It is read, and the picture's size is written into it, the same for
    all; what is compiled from it is each environment's own. The last scene's alone is kept, as it
    holds the meshes' files, some 30 MB.

    Args:
        env: before its first reset.
        scene: all that the description follows from.
    """
    if scene in _described:
        env._mjcf_model, parts = _described[scene]
        vars(env).update(parts)
    elif hasattr(env, "build_mjcf_model"):
        build = env.build_mjcf_model

        def described() -> Any:
            before = dict(vars(env))
            model = build()
            parts = {k: v for k, v in vars(env).items() if k not in before or before[k] is not v}
            _described.clear()
            _described[scene] = model, parts
            return model

        env.build_mjcf_model = described
    try:
        yield
    finally:
        vars(env).pop("build_mjcf_model", None)


_described: dict[str, tuple[Any, dict[str, Any]]] = {}


class _Texts:
    """Stands for ``mjcf_utils`` where a scene is compiled; a description is written out once."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def to_string(root: Any) -> str:
        """Return the XML of a description."""
        from ogbench.manipspace import mjcf_utils

        text: str = mjcf_utils.to_string(root)
        return text

    @staticmethod
    def get_assets(root: Any) -> dict[str, bytes]:
        """Return the files that the XML names, or none if a model is compiled from it already."""
        from ogbench.manipspace import mjcf_utils

        if is_kept(_Texts.to_string(root)):
            return {}
        files: dict[str, bytes] = mjcf_utils.get_assets(root)
        return files


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
