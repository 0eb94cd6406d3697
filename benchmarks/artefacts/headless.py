"""Which way of drawing works on this machine, found by drawing: MuJoCo has several, each may fail.

MuJoCo and dm_control read the environment variable ``MUJOCO_GL`` when they are imported, and a
broken driver may end the process, so each way is tried in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.errors import TrimtabError

__all__ = ["VARIABLE", "Trial", "candidates", "choose_renderer", "try_renderers"]

VARIABLE = "MUJOCO_GL"
REMEDY = "install a driver (Debian: apt install libegl1 libgl1-mesa-dri, or libosmesa6)"

# A red ball under a lamp, whose picture is not blank. The code goes to `python -c`.
_DRAW_A_BALL = """
import sys
import mujoco

model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/>'
    '<geom type="sphere" size="0.3" rgba="1 0.2 0.2 1"/></worldbody></mujoco>'
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 64, 64) as renderer:
    renderer.update_scene(data)
    picture = renderer.render()
sys.exit(0 if picture.std() > 5 else "the picture is blank")
"""


@dataclass(frozen=True)
class Trial:
    """What came of one value of ``MUJOCO_GL``; ``reason`` is empty where it works."""

    renderer: str
    reason: str

    @property
    def works(self) -> bool:
        """Whether a picture came out."""
        return not self.reason


def candidates() -> tuple[str, ...]:
    """Return the values of ``MUJOCO_GL`` worth trying: what the user has set, or all there are.

    Windows (glfw) are among them only where there is a display.
    """
    chosen = os.environ.get(VARIABLE, "").strip().lower()
    if chosen:
        return (chosen,)
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return ("egl", "osmesa", "glfw") if display else ("egl", "osmesa")


def try_renderers(renderers: Sequence[str], *, timeout: float = 30.0) -> list[Trial]:
    """Draw a picture with each of ``renderers``, side by side, each for ``timeout`` seconds."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _DRAW_A_BALL],
            env={**os.environ, VARIABLE: renderer},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for renderer in renderers
    ]
    trials = []
    for renderer, process in zip(renderers, running, strict=True):
        try:
            _, said = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            trials.append(Trial(renderer, f"no picture within {timeout:.0f} s"))
            continue
        reason = "" if process.returncode == 0 else _reason(said, process.returncode)
        trials.append(Trial(renderer, reason))
    return trials


def _reason(said: str, code: int) -> str:
    """Return the error that ended a trial: exceptions in clean-up that follow it say less."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if ": " in line and line.split(":")[0].endswith("Error")]
    last = [*lines[-1:], *errors[:1]][-1:]
    return last[0][:120] if last else f"ended with code {code}"


def choose_renderer() -> str:
    """Set ``MUJOCO_GL`` for this process to the first way that works, and return it.

    A value that the user has set is tried and kept. Call it before a simulator is imported.

    Raises:
        TrimtabError: if none works.
    """
    failed = []
    for renderer in candidates():
        (trial,) = try_renderers([renderer])
        if trial.works:
            os.environ[VARIABLE] = renderer
            return renderer
        failed.append(f"{renderer}: {trial.reason}")
    why = "; ".join(failed)
    if os.environ.get(VARIABLE):
        raise TrimtabError(
            f"{VARIABLE} is set, and nothing can be drawn that way ({why}); unset it, or {REMEDY}"
        )
    raise TrimtabError(f"nothing can be drawn on this machine ({why}); {REMEDY}")
