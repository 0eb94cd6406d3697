"""Robosuite's manipulation tasks as robomimic's data sets have them: low-dimensional, at 20 Hz.

Zhu et al., 2020, "robosuite: A Modular Simulation Framework and Benchmark for Robot Learning";
Mandlekar et al., 2021, "What Matters in Learning from Offline Human Demonstrations for Robot
Manipulation" (robomimic). Panda arms take changes of the hand's pose in the world's frame through
an operational-space controller, and a gripper command: seven numbers in [-1, 1] an arm. The
observation is the pose of each hand and its fingers' joints, then robosuite's object state. The
reward is 1.0 where the task is solved and 0.0 elsewhere, and episodes do not end there.

The plain names have robomimic's horizons for demonstrations of one proficient operator (``Door``
has robosuite's own 500 steps). ``-DPPO`` and ``-DSRL`` have those of the two papers (Ren et al.,
2024; Wagenmaker et al., 2025), and ``-DSRL`` has its reward, too, which is 1.0 less at every step.

Robosuite is imported with settings of our own in place of a user's ``macros_private``: its time
step is 2 ms, it neither logs nor sets how MuJoCo draws, and it compiles its arithmetic (about ten
seconds at the first step of a process) without leaving files in its package. Where Numba's own
variable ``NUMBA_CACHE_DIR`` names a folder, what it has compiled is kept there, and read again.
"""

from __future__ import annotations

import os
import sys
import types
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames

__all__ = ["FAMILY"]

_CONTROL_RATE = 20  # Hz
_TIME_STEP = 0.002  # s
_PICTURE = 480  # pixels a side
_CAMERA = "agentview"
_HAND = ("eef_pos", "eef_quat", "gripper_qpos")  # of each arm, in the observation

_MACROS = {
    "SIMULATION_TIMESTEP": _TIME_STEP,
    "CONSOLE_LOGGING_LEVEL": "ERROR",
    "FILE_LOGGING_LEVEL": None,
    "CACHE_NUMBA": bool(os.environ.get("NUMBA_CACHE_DIR")),  # never in the package's own folder
    "MUJOCO_GPU_RENDERING": False,
}

# As robomimic's data sets for robosuite 1.5 have it; the limits of kp have no effect then.
_ARM = {
    "type": "OSC_POSE",
    "input_max": 1,
    "input_min": -1,
    "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
    "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
    "kp": 150,
    "damping_ratio": 1,
    "impedance_mode": "fixed",
    "kp_limits": [0, 300],
    "damping_ratio_limits": [0, 10],
    "position_limits": None,
    "orientation_limits": None,
    "uncouple_pos_ori": True,
    "input_type": "delta",
    "input_ref_frame": "world",
    "interpolation": None,
    "ramp_ratio": 0.2,
    "gripper": {"type": "GRIP"},
}


@dataclass(frozen=True)
class _Scene:
    """One of robosuite's environments.

    Attributes:
        horizons: steps of an episode by the ending of the task's name.
        arms: how many robots there are.
        new_model: whether a size in the model is drawn for every episode.
    """

    horizons: dict[str, int]
    arms: int = 1
    new_model: bool = False


_SCENES = {
    "Lift": _Scene({"": 400, "-DPPO": 300, "-DSRL": 300}, new_model=True),
    "PickPlaceCan": _Scene({"": 400, "-DPPO": 300, "-DSRL": 300}),
    "NutAssemblySquare": _Scene({"": 400, "-DPPO": 400, "-DSRL": 400}),
    "TwoArmTransport": _Scene({"": 700, "-DPPO": 800, "-DSRL": 800}, 2, new_model=True),
    "ToolHang": _Scene({"": 700}),
    "Door": _Scene({"": 500}),
}
_REWARD_OFFSETS = {"-DSRL": -1.0}


def _import_robosuite() -> Any:
    """Import robosuite with :data:`_MACROS` as the private settings that it looks for."""
    if "robosuite" not in sys.modules:
        name = "robosuite.macros_private"
        private = types.ModuleType(name)
        vars(private).update(_MACROS)
        sys.modules[name] = private
        try:
            import robosuite
        finally:
            del sys.modules[name]
    import robosuite

    return robosuite


class _SeededRobosuite(gymnasium.Env[Any, Any]):
    """Robosuite, whose one generator is set to ``reset``'s seed as its constructor would.

    Without a new model, robosuite only sets the simulation back. The episode is the same as
    with one, as long as the model has nothing random in it: the tests hold every scene to it.

    Args:
        env: robosuite's environment.
        arms: how many robots there are.
        reward_offset: what is added to every reward.
    """

    def __init__(self, env: Any, *, arms: int, reward_offset: float) -> None:
        self._env, self._reward_offset = env, reward_offset
        hands = (f"robot{arm}_{part}" for arm in range(arms) for part in _HAND)
        self._keys = (*hands, "object-state")
        observed = env.observation_spec().items()
        size = sum(np.size(part) for name, part in observed if name in self._keys)
        low, high = env.action_spec
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        self.frame_skip = round(1 / (_CONTROL_RATE * _TIME_STEP))
        self._renderer: Any = None
        self._drawn: Any = None

    @property
    def model(self) -> Any:
        """The episode's ``mujoco.MjModel``."""
        return self._env.sim.model._model

    @property
    def data(self) -> Any:
        """The episode's ``mujoco.MjData``."""
        return self._env.sim.data._data

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and an empty dictionary."""
        if seed is not None:
            fresh = np.random.default_rng(seed)
            self._env.rng.bit_generator.state = fresh.bit_generator.state
        return self._flat(self._env.reset()), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        obs, reward, _, _ = self._env.step(np.asarray(action, np.float64))
        success = bool(reward > 0)  # it is not shaped
        return self._flat(obs), reward + self._reward_offset, False, False, {"success": success}

    def _flat(self, obs: Any) -> Any:
        return np.concatenate([obs[name] for name in self._keys])

    def render(self) -> Any:
        """Return a picture [480, 480, 3]."""
        import mujoco

        if self._drawn is not self.model:
            self.close()
            self._renderer = mujoco.Renderer(self.model, _PICTURE, _PICTURE)
            self._drawn = self.model
        looks = mujoco.MjvOption()
        looks.geomgroup[0] = 0  # the shapes that collide; those to look at are in group 1
        self._renderer.update_scene(self.data, _CAMERA, looks)
        return self._renderer.render()

    def close(self) -> None:
        """Close what draws."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = self._drawn = None


def _build(task: str, *, render: bool) -> RawEnv:
    scene_name, dash, ending = task.partition("-")
    scene = _SCENES[scene_name]
    controller = {"type": "BASIC", "body_parts": {"right": _ARM}}
    with quiet():
        robosuite = _import_robosuite()
        env = robosuite.make(
            scene_name,
            robots=["Panda"] * scene.arms,
            controller_configs=[controller] * scene.arms,
            control_freq=_CONTROL_RATE,
            lite_physics=False,  # as in robomimic's data, which older versions made
            hard_reset=scene.new_model,
            ignore_done=True,
            reward_shaping=False,
            use_object_obs=True,
            use_camera_obs=False,
            has_renderer=False,
            has_offscreen_renderer=False,
            renderer="mujoco",
        )
        offset = _REWARD_OFFSETS.get(dash + ending, 0.0)
        return _SeededRobosuite(env, arms=scene.arms, reward_offset=offset)


FAMILY = Family(
    name="robosuite",
    install="trimtab[robosuite]",
    packages=("mujoco", "robosuite"),
    tasks={
        name + ending: Task(horizon, "success", tags=("manipulation", "sparse"))
        for name, scene in _SCENES.items()
        for ending, horizon in scene.horizons.items()
    },
    build=_build,
    frames=mujoco_frames,
)
