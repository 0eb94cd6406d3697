"""What environments return from ``render()``: the picture that it means, or one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.envs.core.pictures import as_picture
from trimtab.errors import TrimtabError

COLOURS = np.array([[[0, 128, 255], [10, 20, 30]]], np.uint8)  # [1, 2, 3]
GREYS = np.array([[0, 51], [255, 102], [204, 153]], np.uint8)  # [3, 2]
ALPHA = np.array([[[255], [51]]], np.uint8)


@pytest.mark.parametrize(
    ("found", "picture"),
    [
        (COLOURS, COLOURS),
        (COLOURS.tolist(), None),
        ([COLOURS, 255 - COLOURS], 255 - COLOURS),
        (COLOURS.astype(np.int64), COLOURS),
        (COLOURS / 255.0, COLOURS),
        ((COLOURS / 255.0).astype(np.float16), COLOURS),
        (np.concatenate([COLOURS, ALPHA], -1), COLOURS * [[[1.0], [0.2]]]),
        (GREYS, np.stack([GREYS] * 3, -1)),
        (GREYS[..., None] / 255.0, np.stack([GREYS] * 3, -1)),
        (GREYS > 100, np.stack([GREYS > 100] * 3, -1) * 255),
    ],
)
def test_pictures_of_all_kinds(found: Any, picture: Any) -> None:
    if picture is None:  # the last of a list of rows [2, 3] is a grey picture
        picture = np.stack([COLOURS[-1]] * 3, -1)
    read = as_picture(found)
    assert read.dtype == np.uint8 and read.shape[-1] == 3
    assert np.abs(read.astype(float) - picture).max() <= 0.5


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "returned NoneType"),
        ([], r"returned an array \[0\]"),
        ("picture", "returned str"),
        (np.zeros((3, 64, 64), np.uint8), r"returned an array \[3, 64, 64\]"),
        (np.zeros((0, 4, 3), np.uint8), r"returned an array \[0, 4, 3\]"),
        (np.full((4, 4, 3), 300), "int64 outside 0 to 255"),
        (np.full((4, 4, 3), 2.0), "float64 outside 0 to 1"),
        (np.full((4, 4, 3), np.nan), "float64 outside 0 to 1"),
        ([[[1, 2, 3]], [[1, 2, 3], [4, 5, 6]], [1]], "returned an array"),
        (np.zeros((4, 4, 3), np.complex64), "complex64 outside"),
    ],
)
def test_what_is_no_picture_is_refused(found: Any, told: str) -> None:
    with pytest.raises(TrimtabError, match=rf"render\(\) .*{told}"):
        as_picture(found)
