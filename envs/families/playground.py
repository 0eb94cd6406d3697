"""MuJoCo Playground's 25 dm_control tasks, simulated by MJX: JAX on a processor or a GPU.

They are DeepMind's control tasks with models tuned for MJX (fewer solver iterations, other time
steps), so returns are close to those of dm_control but not the same numbers. An episode has 1,000
steps, rewards lie in [0, 1], and no task ends early: one terminates only where the simulation is no
longer finite. Playground's own training wrapper starts every episode of a row in that row's first
state; here each episode has a seed and a start of its own.

Three things are Playground's own, and kept: ``BallInCup`` and the humanoids always start in the
same state, in ``FishSwim`` the first observation does not show yet where the target is, and the
models limit how many contacts MJX keeps, so that a hopper folded into itself moves otherwise than
in C MuJoCo.

Source: Zakka et al., MuJoCo Playground, 2025.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.spec import Family, OwnVector, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames

__all__ = ["FAMILY", "PhysicsProbe"]


class PhysicsProbe(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """The same model in C MuJoCo's float64, for what has to be equal on every processor.

    Six digits of a float32 trajectory depend on the processor; these do not. The observation is
    ``[qpos, qvel]``, and an episode starts with seeded velocities in the model's own pose.

    Args:
        env: the bare environment, with ``model``, ``frame_skip`` and ``action_space``.
    """

    def __init__(self, env: RawEnv) -> None:
        import mujoco

        bare = cast(Any, env)
        self._model, self._frame_skip = bare.model, bare.frame_skip
        self._data = mujoco.MjData(self._model)
        self._advance: Callable[..., Any] = mujoco.mj_step
        self._start: Callable[..., Any] = mujoco.mj_resetData
        self.action_space = env.action_space

    def _observe(self) -> NDArray[np.float64]:
        return np.concatenate([self._data.qpos, self._data.qvel])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start an episode. Returns [nq + nv] and an empty dictionary."""
        super().reset(seed=seed)
        self._start(self._model, self._data)
        self._data.qvel[:] = self.np_random.uniform(-0.1, 0.1, self._model.nv)
        return self._observe(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A] for one control step; rewards are zero."""
        self._data.ctrl[:] = action
        self._advance(self._model, self._data, self._frame_skip)
        return self._observe(), 0.0, False, False, {}


def _build(task: str, *, render: bool) -> RawEnv:
    from trimtab.envs.engines.mjx_vector import MjxEnv

    return MjxEnv(task, render=render)


def _vector(id: str, num_envs: int, *, device: str = "cpu", **arguments: Any) -> Any:
    from trimtab.envs.engines.mjx_vector import MjxVectorEnv
    from trimtab.envs.engines.torch_vector import TorchVectorEnv

    envs = MjxVectorEnv(id, num_envs, device=device, **arguments)
    return envs if device == "cpu" else TorchVectorEnv(envs, device)


def _has_device(device: str) -> bool:
    from trimtab.envs.engines.mjx_programs import has_device

    return has_device(device)


_CONTROL, _LOCOMOTION, _MANIPULATION = "control", "locomotion", "manipulation"
_TAGS: dict[str, tuple[str, ...]] = {
    "AcrobotSwingup": (_CONTROL,),
    "AcrobotSwingupSparse": (_CONTROL, "sparse"),
    "BallInCup": (_MANIPULATION, "sparse", "one-start"),
    "CartpoleBalance": (_CONTROL,),
    "CartpoleBalanceSparse": (_CONTROL, "sparse"),
    "CartpoleSwingup": (_CONTROL,),
    "CartpoleSwingupSparse": (_CONTROL, "sparse"),
    "CheetahRun": (_LOCOMOTION,),
    "FingerSpin": (_MANIPULATION, "sparse"),
    "FingerTurnEasy": (_MANIPULATION, "sparse"),
    "FingerTurnHard": (_MANIPULATION, "sparse"),
    "FishSwim": (_LOCOMOTION,),
    "HopperHop": (_LOCOMOTION,),
    "HopperStand": (_LOCOMOTION,),
    "HumanoidRun": (_LOCOMOTION, "one-start"),
    "HumanoidStand": (_LOCOMOTION, "one-start"),
    "HumanoidWalk": (_LOCOMOTION, "one-start"),
    "PendulumSwingup": (_CONTROL, "sparse"),
    "PointMass": (_CONTROL,),
    "ReacherEasy": (_CONTROL,),
    "ReacherHard": (_CONTROL,),
    "SwimmerSwimmer6": (_LOCOMOTION,),
    "WalkerRun": (_LOCOMOTION,),
    "WalkerStand": (_LOCOMOTION,),
    "WalkerWalk": (_LOCOMOTION,),
}

FAMILY = Family(
    name="playground",
    install="trimtab[playground]",
    packages=("mujoco", "mujoco-mjx", "playground", "jax"),
    tasks={name: Task(horizon=1000, tags=(*tags, "mjx")) for name, tags in _TAGS.items()},
    build=_build,
    frames=mujoco_frames,
    vector=OwnVector(
        tasks=frozenset(_TAGS),
        options=frozenset({"horizon"}),
        make=_vector,
        devices=("cpu", "cuda"),
        has_device=_has_device,
    ),
    probe=PhysicsProbe,
)
