"""What ``render()`` of any environment returns, as a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError

__all__ = ["as_picture"]


def as_picture(found: Any) -> NDArray[np.uint8]:
    """Return what ``render()`` gave as a picture [H, W, 3] of bytes.

    It may be colours, with an alpha channel (over black) or without; or greys [H, W] or [H, W, 1].
    Numbers with a point are shares of full brightness. Of a list of pictures, which Gym's
    environments return, the last one is the present.

    Raises:
        TrimtabError: if it is something else; the line says what.
    """
    if isinstance(found, (list, tuple)) and found:
        found = found[-1]
    try:
        picture = np.asarray(found)
    except ValueError:  # rows of several lengths
        picture = np.asarray(None)
    if picture.ndim == 2:
        picture = picture[..., None]
    if picture.ndim != 3 or picture.shape[-1] not in (1, 3, 4) or 0 in picture.shape:
        what = f"an array {list(np.shape(picture))}" if picture.ndim else type(found).__name__
        raise TrimtabError(
            f"render() returned {what}; return a picture [height, width, 3] of bytes"
        )
    full = 255 if picture.dtype.kind in "iu" else 1
    if picture.dtype.kind not in "iufb" or not ((picture >= 0) & (picture <= full)).all():
        raise TrimtabError(
            f"render() returned {picture.dtype} outside 0 to {full}; return bytes from 0 to 255, "
            "or floats from 0 to 1"
        )
    if full == 1:
        picture = np.rint(picture * 255.0)
    if picture.shape[-1] == 4:
        picture = np.rint(picture[..., :3] * (picture[..., 3:] / 255.0))
    return np.broadcast_to(picture, (*picture.shape[:2], 3)).astype(np.uint8)
