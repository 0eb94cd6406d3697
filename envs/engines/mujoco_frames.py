"""Time step, frame skip and integrator of an environment that runs on MuJoCo."""

from __future__ import annotations

from typing import Any

__all__ = ["mujoco_frames"]


def mujoco_frames(env: Any) -> tuple[float, int, str]:
    """Return (time step in seconds, frame skip, integrator's name).

    Args:
        env: an environment with ``model`` (a ``mujoco.MjModel``) and ``frame_skip``.
    """
    import mujoco

    integrator = mujoco.mjtIntegrator(env.model.opt.integrator).name
    return float(env.model.opt.timestep), int(env.frame_skip), integrator.removeprefix("mjINT_")
