"""The camera frames of LeRobot's folders: one video an episode, several in one, or PNG in Parquet.

They are decoded only where the hint ``frames`` asks for them, and become infos [T, height, width,
3]. What info.json and the tables say is checked against the files before room is made for it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.contents import Contents, apply_hints, assemble, chosen
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.lerobot.cameras import Camera, Picture, Wanted
from trimtab.datasets.formats.lerobot.images import read_images
from trimtab.datasets.formats.own import Own, need
from trimtab.datasets.io.parquet import read_columns
from trimtab.datasets.io.video import decode, shown_at
from trimtab.errors import TrimtabError

__all__ = ["Frames"]

_TOLERANCE = 0.25  # of the time between two frames
_ADVICE = "make the dataset again or fetch a fresh copy"


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
            TrimtabError: if the content is not valid, PyAV is missing, frames are missing,
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
            Wanted(self.numbers[place], place, len(dataset.episodes[place]))
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
                read_images(self.path, camera, wanted, frames)
            else:
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


def _check_room(cameras: Sequence[Camera], wanted: Sequence[Wanted], path: Path) -> None:
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
    wanted: Sequence[Wanted],
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
        most = 2 * info["total_frames"] + 1000
        times = shown_at(file, camera.width, camera.height, most, where)
        _check_rate(times, fps, where)
        begins: dict[int, Wanted] = {}
        free = 0
        for one, start in sorted(parts, key=lambda part: part[1]):
            begin = int(np.abs(times - start).argmin())
            _check_times(times, begin, start, one, fps, where)
            if begin < free:
                raise TrimtabError(
                    f"{where}: episode {one.number} begins before the one before ends; {_ADVICE}"
                )
            begins[begin], free = one, begin + one.steps
        if info["major"] == 2 and len(times) != free:
            raise TrimtabError(
                f"{where}: {len(times)} frames, but its episode has {free} rows; {_ADVICE}"
            )
        _deal(decode(file, camera.width, camera.height, free, where), begins, frames)


def _deal(
    pictures: Iterator[Picture], begins: Mapping[int, Wanted], frames: Mapping[int, Picture]
) -> None:
    """Put each picture into the episode that it belongs to; episodes are apart."""
    one, begin = None, 0
    for number, picture in enumerate(pictures):
        if number in begins:
            one, begin = begins[number], number
        if one is not None and number - begin < one.steps:
            frames[one.place][number - begin] = picture


def _check_rate(times: npt.NDArray[np.float64], fps: int, where: str) -> None:
    gaps = np.diff(times)
    if len(gaps) and abs(np.median(gaps) * fps - 1) > _TOLERANCE:
        rate = 1 / max(1e-9, float(np.median(gaps)))
        raise TrimtabError(
            f"{where}: it shows {rate:.6g} frames a second, but info.json says {fps}; {_ADVICE}"
        )


def _check_times(
    times: npt.NDArray[np.float64],
    begin: int,
    start: float,
    one: Wanted,
    fps: int,
    where: str,
) -> None:
    """Refuse an episode whose rows are not at the times of as many frames."""
    times = times[begin : begin + one.steps] - start
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
    path: Path, camera: Camera, wanted: Sequence[Wanted], fps: int
) -> dict[Path, list[tuple[Wanted, float]]]:
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
    found: dict[Path, list[tuple[Wanted, float]]] = {}
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
