"""Camera frames that lie as PNG or JPEG in a LeRobot folder's table of frames."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from trimtab.datasets.formats.lerobot.cameras import Camera, Picture, Wanted
from trimtab.datasets.formats.own import need
from trimtab.datasets.io.sandbox import Read, read_apart
from trimtab.errors import TrimtabError

__all__ = ["read_images"]

_MODES = ("RGB", "RGBA", "L", "P")
_FAULTS = (
    OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, OverflowError,
    MemoryError, struct.error, zlib.error,
)  # fmt: skip
_ADVICE = "make the dataset again or fetch a fresh copy"


def read_images(
    path: Path, camera: Camera, wanted: Sequence[Wanted], frames: Mapping[int, Picture]
) -> None:
    """Fill frames from the pictures in the table of frames.

    Args:
        path: the folder.
        camera: whose pictures.
        wanted: episodes that are filled.
        frames: ``[T, height, width, 3]`` to be filled, by the place of the episode.

    Raises:
        TrimtabError: if a picture is missing, damaged or of another size than stated.
    """
    by_number = {one.number: one for one in wanted}
    seen = {one.number: np.zeros(one.steps, np.bool_) for one in wanted}
    for file in sorted(path.glob("data/chunk-*/*.parquet")):
        where = f"dataset {file}, key '{camera.name}'"
        columns = _stored_images(file, camera.name, where)
        begin = 0
        for number, row, size in zip(
            columns["episode_index"], columns["frame_index"], columns["sizes"], strict=True
        ):
            stored = columns["bytes"][begin : begin + size]
            begin += size
            one = by_number.get(int(number))
            if one is None:
                continue
            if not 0 <= row < one.steps:
                raise TrimtabError(f"{where}: 'frame_index' {row} of {one.steps}; {_ADVICE}")
            frames[one.place][row] = _picture(stored.tobytes(), camera, where)
            seen[one.number][row] = True
    for one in wanted:
        if not seen[one.number].all():
            raise TrimtabError(
                f"dataset {path}, key '{camera.name}': {seen[one.number].sum()} images of episode "
                f"{one.number}, which has {one.steps} rows; {_ADVICE}"
            )


def _stored_images(file: Path, name: str, where: str) -> Mapping[str, npt.NDArray[Any]]:
    """Return a file's images end to end as bytes, with the size and the indices of each."""
    return read_apart(file, _images_of, str(file), name, where)[1]


@contextmanager
def _images_of(file: str, name: str, where: str) -> Iterator[Read]:
    with open(file, "rb") as raw, pq.ParquetFile(raw) as table:
        if name not in table.schema_arrow.names:
            raise TrimtabError(f"{where}: missing; {_ADVICE}")
        column = table.read([name], use_threads=False).column(0)
        indices = table.read(["episode_index", "frame_index"], use_threads=False)
    need(dict.fromkeys(indices.column_names), ("episode_index", "frame_index"), where)
    stored = [entry and entry.get("bytes") for entry in column.to_pylist()]
    if any(type(entry) is not bytes for entry in stored):
        raise TrimtabError(f"{where}: an image is not stored in the file itself; {_ADVICE}")
    arrays = {key: indices[key].to_numpy().astype(np.int64) for key in indices.column_names}
    arrays["sizes"] = np.array([len(entry) for entry in stored], np.int64)
    arrays["bytes"] = np.frombuffer(b"".join(stored), np.uint8)
    yield {}, arrays.items()


def _picture(stored: bytes, camera: Camera, where: str) -> Picture:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(stored), formats=("PNG", "JPEG")) as image:
            if image.size != (camera.width, camera.height) or image.mode not in _MODES:
                raise ValueError(
                    f"{image.mode}, {image.size[0]} wide and {image.size[1]} high, but info.json "
                    f"says {camera.width} and {camera.height} in colour"
                )
            return np.asarray(image.convert("RGB"))
    except (*_FAULTS, Image.DecompressionBombError) as error:
        fault = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrimtabError(f"{where}: an image is not readable ({fault}); {_ADVICE}") from error
