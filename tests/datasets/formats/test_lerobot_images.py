"""Images that LeRobot's folders hold inside Parquet: decoded where asked for, and damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from trimtab.datasets.formats.registry import get_format
from trimtab.types import TrimtabError

Picture = npt.NDArray[np.uint8]

TOP = "observation.images.top"
HEIGHT, WIDTH = 32, 48
FRAMES: Picture = np.random.default_rng(0).integers(256, size=(5, HEIGHT, WIDTH, 3)).astype("u1")

load = get_format("lerobot").load


def png(frame: Picture) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "PNG")
    return file.getvalue()


def with_images(foreign: Any, folder: Path, change: Callable[[bytes], Any] = lambda x: x) -> Path:
    """Write FRAMES as PNG, changed by ``change``, beside the numbers of the two episodes."""
    foreign.lerobot(folder)
    place = folder / "meta/info.json"
    info = json.loads(place.read_text())
    info["features"][TOP].update(dtype="image", shape=[HEIGHT, WIDTH, 3])
    place.write_text(json.dumps(info))
    for index, file in enumerate(sorted(folder.rglob("data/*/*.parquet"))):
        table = pq.read_table(file)
        rows = range(3) if index == 0 else range(3, 5)
        stored = [{"bytes": change(png(FRAMES[row])), "path": f"frame-{row}.png"} for row in rows]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = table.append_column(TOP, pa.array(stored, kind))
        # The rows of an episode need not be in order.
        pq.write_table(table.take(list(range(table.num_rows))[::-1]), file)
    return folder


def test_images_in_parquet(foreign: Any, tmp_path: Path) -> None:
    path = with_images(foreign, tmp_path / "x")
    first, second = load(path, frames="top").episodes
    np.testing.assert_array_equal(first.infos[TOP], FRAMES[:3])
    np.testing.assert_array_equal(second.infos[TOP], FRAMES[3:])
    assert set(load(path).episodes[0].infos) == {"success"}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda stored: stored[:-40], "an image is not readable"),
        (lambda _: b"GIF89a", "an image is not readable"),
        (lambda _: None, "an image is not stored in the file itself"),
        (
            lambda _: png(np.zeros((24, 40, 3), np.uint8)),
            "RGB, 40 wide and 24 high, but info.json says 48 and 32",
        ),
    ],
)
def test_damaged_images(
    change: Callable[[bytes], Any], message: str, foreign: Any, tmp_path: Path
) -> None:
    path = with_images(foreign, tmp_path / "x", change)
    with pytest.raises(TrimtabError, match=message) as raised:
        load(path, frames="all")
    assert len(str(raised.value).splitlines()) == 1
    assert f"file-000.parquet, key '{TOP}'" in str(raised.value)
