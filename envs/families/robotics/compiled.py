"""A maze's model compiled once a process: nearly all the time that building a maze takes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from trimtab.turns import replaced


@contextmanager
def compiled_once(*, render: bool) -> Iterator[None]:
    """Let the point mazes built in the block share what MuJoCo compiled from the same text.

    Compiling takes a tenth of a second, most of it for a picture of the sky; an exact copy of the
    model takes a hundredth of that. Each environment has a copy of its own. The sky is all but a
    hundredth of the copy's 12 MB, so what is never drawn goes without it.

    Args:
        render: whether the mazes are going to be drawn.
    """
    from gymnasium_robotics.envs.maze import point_maze

    with replaced(point_maze, "PointEnv", _ball(render)):
        yield


@functools.cache
def _ball(render: bool) -> Any:
    import mujoco
    from gymnasium_robotics.envs.maze.point import PointEnv

    class Ball(PointEnv):  # type: ignore[misc]
        """Gymnasium-Robotics' ball, whose model comes from memory."""

        def _initialize_simulation(self) -> tuple[Any, Any]:
            model = copy.copy(_model(Path(self.fullpath).read_text(encoding="utf-8"), render))
            # A picture may be larger than the model says, as Gymnasium has it.
            size = model.vis.global_
            size.offwidth = max(size.offwidth, self.width)
            size.offheight = max(size.offheight, self.height)
            return model, mujoco.MjData(model)

    return Ball


@functools.lru_cache(maxsize=4)
def _model(text: str, sky: bool) -> Any:
    import mujoco

    return mujoco.MjModel.from_xml_string(text if sky else _without_sky(text))


def _without_sky(text: str) -> str:
    root = ElementTree.fromstring(text)
    for assets in root.iter("asset"):
        for picture in assets.findall("texture[@type='skybox']"):
            assets.remove(picture)
    return ElementTree.tostring(root, encoding="unicode")
