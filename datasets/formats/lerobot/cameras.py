"""The cameras of a LeRobot folder: features of colour frames, and which of them are wanted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["PREFIX", "Camera", "Picture", "Wanted", "advice", "chosen_cameras"]

Picture = npt.NDArray[np.uint8]

PREFIX = "observation.images."
_NONE, _ALL = ("", "false", "none"), ("all", "true")
_LARGEST = 1 << 14  # pixels of a side
_PLAIN = re.compile(r"(?!\.)[^/\x00-\x1f]+")  # names of features, which are folders' names too


@dataclasses.dataclass(frozen=True)
class Camera:
    """A feature of colour frames.

    Attributes:
        name: of the feature.
        embedded: whether they lie as images in the table of frames; otherwise in videos.
        height: of a frame.
        width: of a frame.
    """

    name: str
    embedded: bool
    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Wanted:
    """An episode whose frames are wanted.

    Attributes:
        number: its ``episode_index`` in the folder.
        place: its place in the dataset.
        steps: how many there are.
    """

    number: int
    place: int
    steps: int


def advice(info: Mapping[str, Any], left_out: Sequence[str]) -> str:
    """Return how frames that are left out can be had, or nothing where there are none."""
    names = [name for name in left_out if name in _cameras(info)]
    return f" (frames=all, or frames={names[0]}, decodes camera frames into infos)" if names else ""


def _cameras(info: Mapping[str, Any]) -> dict[str, Camera]:
    """Return the features of colour frames by name, of whatever order their axes are."""
    cameras = {}
    for name, feature in info["features"].items():
        if not isinstance(feature, dict) or feature.get("dtype") not in ("video", "image"):
            continue
        shape, axes = feature.get("shape"), feature.get("names")
        if (
            not isinstance(shape, list)
            or len(shape) != 3
            or any(type(size) is not int or not 0 < size <= _LARGEST for size in shape)
            or not _PLAIN.fullmatch(name)
        ):
            continue
        # The names of the axes decide; without them it is three channels, last or first.
        first = isinstance(axes, list) and bool(axes) and str(axes[0]).startswith("channel")
        if first or shape[2] != 3:
            shape = [*shape[1:], shape[0]]
        if shape[2] == 3:
            cameras[name] = Camera(name, feature["dtype"] == "image", shape[0], shape[1])
    return cameras


def chosen_cameras(info: Mapping[str, Any], frames: str, where: str) -> list[Camera]:
    """Return the cameras that the hint ``frames`` names.

    Args:
        info: what info.json says.
        frames: names after commas, with or without ``observation.images.``; ``all`` or ``true``
            for all; ``none``, ``false`` or nothing for none.
        where: opens the messages.

    Raises:
        TrimtabError: if there is no such camera.
    """
    if frames in _NONE:
        return []
    cameras = _cameras(info)
    if not cameras:
        raise TrimtabError(f"{where}: frames={frames}: there are no colour frames in it")
    if frames in _ALL:
        return list(cameras.values())
    found = {}
    for name in filter(None, map(str.strip, frames.split(","))):
        full = name if name in cameras else PREFIX + name
        if full not in cameras:
            raise TrimtabError(
                f"{where}: frames={frames}: there are no colour frames '{name}' in it; there are "
                f"{', '.join(cameras)}"
            )
        found[full] = cameras[full]
    return list(found.values())
