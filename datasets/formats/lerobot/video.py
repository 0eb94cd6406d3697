"""The camera frames of LeRobot's folders: one video an episode, several in one, or PNG in Parquet.

They are decoded only where the hint ``frames`` asks for them, and become infos [T, height, width,
3]. What info.json and the tables say is checked against the files before room is made for it.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.contents import Contents, apply_hints, assemble, chosen
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.own import Own, need
from trimtab.datasets.io.ffmpeg import Stream, decode, executable, inspect
from trimtab.datasets.io.parquet import PANDAS, read_columns
from trimtab.datasets.io.sandbox import Read, read_apart
from trimtab.errors import TrimtabError

__all__ = ["Camera", "Frames", "advice", "chosen_cameras"]

Picture = npt.NDArray[np.uint8]

PREFIX = "observation.images."
_NONE, _ALL = ("", "false", "none"), ("all", "true")
_LARGEST = 1 << 14  # pixels of a side
_PLAIN = re.compile(r"(?!\.)[^/\x00-\x1f]+")  # names of features, which are folders' names too
_TOLERANCE = 0.25  # of the time between two frames
_MODES = ("RGB", "RGBA", "L", "P")
_FAULTS = (
    OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, OverflowError,
    MemoryError, struct.error, zlib.error,
)  # fmt: skip
_ADVICE = "make the dataset again or fetch a fresh copy"


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
class _Wanted:
    """An episode whose frames are wanted: its number in the folder, and its place and length."""

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


@dataclasses.dataclass(frozen=True)
class Frames:
    """The camera frames of a folder that were asked for.

    Attributes:
        path: the folder.
        info: what info.json says, checked, with the layout's ``major`` version.
        cameras: what is decoded.
        numbers: ``episode_index`` of each episode.
        own: what Trimtab noted, which names the infos and their true size.
    """

    path: Path
    info: Mapping[str, Any]
    cameras: Sequence[Camera]
    numbers: Sequence[int]
    own: Own | None

    def assemble(self, contents: Contents, hints: Hints) -> Dataset:
        """Return the checked dataset of the folder's tables and these frames.

        Raises:
            TrimtabError: if the content is not valid, ffmpeg is missing, frames are missing,
                damaged or of another size, number or rate than stated, or memory does not hold
                them.
        """
        if not self.cameras:
            return assemble(contents, hints)
        where = f"dataset {self.path}"
        # What Trimtab noted is the content hash without frames, of all episodes.
        plain = assemble(contents, {})
        places, _ = chosen(plain.recipe, len(plain), hints, where)
        infos = self._decoded(plain, places)

        def seen(place: int, episode: Episode) -> Episode:
            more = infos.get(place, {})
            if taken := sorted(more.keys() & episode.infos.keys()):
                raise TrimtabError(f"{where}, key '{taken[0]}': it is there twice; {_ADVICE}")
            return dataclasses.replace(episode, infos={**episode.infos, **more})

        episodes = tuple(seen(place, episode) for place, episode in enumerate(plain.episodes))
        return apply_hints(dataclasses.replace(plain, episodes=episodes), hints, where)

    def _decoded(
        self, dataset: Dataset, places: Sequence[int] | None
    ) -> dict[int, dict[str, Picture]]:
        """Return the frames by name at the ``places`` of episodes, None for all."""
        wanted = [
            _Wanted(self.numbers[place], place, len(dataset.episodes[place]))
            for place in (range(len(dataset)) if places is None else sorted(set(places)))
        ]
        noted = _noted(self.own, f"dataset {self.path}")
        infos: dict[int, dict[str, Picture]] = {one.place: {} for one in wanted}
        _check_room(self.cameras, wanted, self.path)
        for camera in self.cameras:
            frames = {
                one.place: np.empty((one.steps, camera.height, camera.width, 3), np.uint8)
                for one in wanted
            }
            if camera.embedded:
                _read_images(self.path, camera, wanted, frames)
            else:
                executable()
                _read_videos(self.path, self.info, camera, wanted, frames)
            whole = camera.name, camera.height, camera.width
            name, height, width = noted.get(camera.name, whole)
            for place, array in frames.items():
                infos[place][name] = array[:, :height, :width]
        return infos


def _noted(own: Own | None, where: str) -> dict[str, tuple[str, int, int]]:
    """Return name, height and width of the info by its feature: a video's size was made even."""
    try:
        return {
            entry["feature"]: (name, *(int(size) for size in entry["shape"][:2]))
            for name, entry in (own or {}).get("videos", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TrimtabError(f"{where}: what Trimtab noted of videos is wrong; {_ADVICE}") from error


def _check_room(cameras: Sequence[Camera], wanted: Sequence[_Wanted], path: Path) -> None:
    steps = sum(one.steps for one in wanted)
    need_bytes = sum(camera.height * camera.width * 3 * steps for camera in cameras)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need_bytes > there:
        raise TrimtabError(
            f"dataset {path}: frames of {need_bytes / 2**30:.1f} GiB, more than this machine's "
            f"{there / 2**30:.1f} GiB of memory; name fewer cameras in frames="
        )


def _read_videos(
    path: Path,
    info: Mapping[str, Any],
    camera: Camera,
    wanted: Sequence[_Wanted],
    frames: Mapping[int, Picture],
) -> None:
    """Fill ``frames`` of each place from the camera's videos."""
    fps: int = info["fps"]
    if info["major"] == 2:
        found = {_video_of_one(path, info, camera, one.number): [(one, 0.0)] for one in wanted}
    else:
        found = _videos_of_several(path, camera, wanted, fps)
    for file, parts in found.items():
        where = f"dataset {file}, key '{camera.name}'"
        if not file.is_file():
            raise TrimtabError(f"{where}: there is no such video; {_ADVICE}")
        stream = inspect(file, 2 * info["total_frames"] + 1000, where)
        if (stream.width, stream.height) != (camera.width, camera.height):
            raise TrimtabError(
                f"{where}: its frames are {stream.width} wide and {stream.height} high, but "
                f"info.json says {camera.width} and {camera.height}; {_ADVICE}"
            )
        _check_rate(stream, fps, where)
        begins: dict[int, _Wanted] = {}
        free = 0
        for one, start in sorted(parts, key=lambda part: part[1]):
            begin = int(np.abs(stream.times - start).argmin())
            _check_times(stream, begin, start, one, fps, where)
            if begin < free:
                raise TrimtabError(
                    f"{where}: episode {one.number} begins before the one before ends; {_ADVICE}"
                )
            begins[begin], free = one, begin + one.steps
        if info["major"] == 2 and len(stream.times) != free:
            raise TrimtabError(
                f"{where}: {len(stream.times)} frames, but its episode has {free} rows; {_ADVICE}"
            )
        _deal(decode(file, camera.width, camera.height, free, where), begins, frames)


def _deal(
    pictures: Iterator[Picture], begins: Mapping[int, _Wanted], frames: Mapping[int, Picture]
) -> None:
    """Put each picture into the episode that it belongs to; episodes are apart."""
    one, begin = None, 0
    for number, picture in enumerate(pictures):
        if number in begins:
            one, begin = begins[number], number
        if one is not None and number - begin < one.steps:
            frames[one.place][number - begin] = picture


def _check_rate(stream: Stream, fps: int, where: str) -> None:
    gaps = np.diff(stream.times)
    if len(gaps) and abs(np.median(gaps) * fps - 1) > _TOLERANCE:
        rate = 1 / max(1e-9, float(np.median(gaps)))
        raise TrimtabError(
            f"{where}: it shows {rate:.6g} frames a second, but info.json says {fps}; {_ADVICE}"
        )


def _check_times(
    stream: Stream, begin: int, start: float, one: _Wanted, fps: int, where: str
) -> None:
    """Refuse an episode whose rows are not at the times of as many frames."""
    times = stream.times[begin : begin + one.steps] - start
    late = np.abs(times * fps - np.arange(len(times))) > _TOLERANCE
    if late.any():
        raise TrimtabError(
            f"{where}: no frame at the time of row {int(late.argmax())} of episode {one.number}; "
            f"{_ADVICE}"
        )
    if len(times) < one.steps:
        raise TrimtabError(
            f"{where}: {len(times)} frames of episode {one.number}, which has {one.steps} rows; "
            f"{_ADVICE}"
        )


def _video_of_one(path: Path, info: Mapping[str, Any], camera: Camera, number: int) -> Path:
    """Return where v2.1 has the video of an episode."""
    size = info.get("chunks_size", 1000)
    if type(size) is not int or size < 1:
        raise TrimtabError(f"dataset {path}: 'chunks_size' is not a number of files; {_ADVICE}")
    return path / f"videos/chunk-{number // size:03d}/{camera.name}/episode_{number:06d}.mp4"


def _videos_of_several(
    path: Path, camera: Camera, wanted: Sequence[_Wanted], fps: int
) -> dict[Path, list[tuple[_Wanted, float]]]:
    """Return v3.0's videos with the episodes in each, and when each begins."""
    tables = sorted(path.glob("meta/episodes/chunk-*/file-*.parquet"))
    where = f"dataset {path / 'meta/episodes'}"
    if not tables:
        raise TrimtabError(f"{where}: there is no table of episodes; {_ADVICE}")
    names = {
        part: f"videos/{camera.name}/{part}"
        for part in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    }
    columns = read_columns(tables, dict.fromkeys(("episode_index", *names.values()), 1), path)
    need(columns, ("episode_index", *names.values()), where)
    rows = {int(number): row for row, number in enumerate(columns["episode_index"])}
    found: dict[Path, list[tuple[_Wanted, float]]] = {}
    for one in wanted:
        if one.number not in rows:
            raise TrimtabError(f"{where}: episode {one.number} is not in it; {_ADVICE}")
        chunk, file, start, end = (columns[name][rows[one.number]] for name in names.values())
        if not (0 <= start <= end < 1e9 and abs((end - start) * fps - one.steps) < 0.5):
            raise TrimtabError(
                f"{where}, key 'videos/{camera.name}': episode {one.number} is from {start:g} s to "
                f"{end:g} s, which is not {one.steps} frames at {fps} a second; {_ADVICE}"
            )
        place = f"videos/{camera.name}/chunk-{int(chunk):03d}/file-{int(file):03d}.mp4"
        found.setdefault(path / place, []).append((one, float(start)))
    return found


def _read_images(
    path: Path, camera: Camera, wanted: Sequence[_Wanted], frames: Mapping[int, Picture]
) -> None:
    """Fill ``frames`` of each place from the pictures in the table of frames."""
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
    return read_apart(file, _images_of, str(file), name, where, imports=PANDAS)[1]


@contextmanager
def _images_of(file: str, name: str, where: str) -> Iterator[Read]:
    with pq.ParquetFile(file) as table:
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
