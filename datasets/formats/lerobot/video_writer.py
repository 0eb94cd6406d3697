"""Writing camera frames as LeRobot's videos: MP4 files, each episode's times, and statistics."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.lerobot.cameras import PREFIX
from trimtab.datasets.formats.own import common_infos
from trimtab.datasets.io.video import Encoder, library

__all__ = ["VIDEO_PATH", "Videos", "camera_infos", "without", "write_videos"]

Picture = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
"""How often each value of a pixel occurs, [3 channels, 256]."""

VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_OBSERVED = "observation.image"


def camera_infos(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Return each info that is camera frames, bytes [T, height, width, 3], for Trimtab's note.

    An entry has the ``feature`` that it becomes and the ``shape`` of a frame.
    """
    found: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for name, (dtype, tail) in common_infos(dataset)[0].items():
        if np.dtype(dtype) == np.uint8 and len(tail) == 3 and tail[2] == 3 and min(tail) > 0:
            found[name] = {"feature": _feature(name, taken), "shape": list(tail)}
            taken.add(found[name]["feature"])
    return found


def without(dataset: Dataset, names: Iterable[str]) -> Dataset:
    """Return ``dataset`` without the infos ``names``."""
    left_out = set(names)
    if not left_out:
        return dataset
    episodes = [
        dataclasses.replace(e, infos={n: a for n, a in e.infos.items() if n not in left_out})
        for e in dataset.episodes
    ]
    return dataclasses.replace(dataset, episodes=tuple(episodes))


@dataclasses.dataclass
class Videos:
    """What a folder's tables and texts say of its videos.

    Attributes:
        features: for info.json.
        columns: for the table of episodes.
        statistics: over all frames, for stats.json.
    """

    features: dict[str, Any] = dataclasses.field(default_factory=dict)
    columns: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)


def write_videos(
    folder: Path,
    dataset: Dataset,
    cameras: Mapping[str, Mapping[str, Any]],
    fps: int,
    quantiles: Mapping[str, float],
    *,
    most_bytes: int,
    chunk_files: int,
) -> Videos:
    """Write the infos ``cameras`` of ``dataset`` as videos below ``folder``, episodes end to end.

    Odd heights and widths, which the pixel format has not, are made even by repeating the last row
    or column.

    Args:
        folder: of the dataset.
        dataset: what holds the frames.
        cameras: what :func:`camera_infos` found.
        fps: frames a second.
        quantiles: statistics by name.
        most_bytes: of a video, beyond which no further episode goes into it.
        chunk_files: videos in one folder.

    Raises:
        TrimtabError: if PyAV is not installed.
    """
    videos = Videos()
    if cameras:
        library()
    for name, camera in cameras.items():
        feature = camera["feature"]
        height, width, _ = camera["shape"]
        even = height + height % 2, width + width % 2
        files = _Files(folder, feature, even, fps, most_bytes, chunk_files)
        total = np.zeros((3, 256), np.int64)
        rows: list[dict[str, Any]] = []
        try:
            for episode in dataset.episodes:
                frames = episode.infos[name]
                counts = _counts(frames)
                total += counts
                place = files.write(frames)
                rows.append(
                    {
                        **{f"videos/{feature}/{key}": value for key, value in place.items()},
                        **{
                            f"stats/{feature}/{key}": value
                            for key, value in _statistics(counts, len(frames), quantiles).items()
                        },
                    }
                )
            files.finish()
        finally:
            files.close()
        videos.features[feature] = _described(even, fps)
        videos.columns.update({key: [row[key] for row in rows] for key in rows[0]})
        videos.statistics[feature] = _statistics(total, dataset.num_steps, quantiles)
    return videos


def _feature(name: str, taken: Iterable[str]) -> str:
    """Return the feature of an info: LeRobot's policies look for images below one prefix."""
    plain = re.sub(r"[^-.\w]+", ".", name)
    feature = plain if plain.startswith(_OBSERVED) else PREFIX + plain
    while feature in taken:
        feature += "_"
    return feature


def _described(size: tuple[int, int], fps: int) -> dict[str, Any]:
    height, width = size
    return {
        "dtype": "video",
        "shape": [height, width, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": height,
            "video.width": width,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
        },
    }


class _Files:
    """The videos of one feature, begun anew when one is large."""

    def __init__(
        self, folder: Path, feature: str, size: tuple[int, int], fps: int, most: int, chunk: int
    ) -> None:
        self._folder, self._feature, self._size, self._fps = folder, feature, size, fps
        self._most, self._chunk = most, chunk
        self._number = -1
        self._path = folder
        self._encoder: Encoder | None = None

    def write(self, frames: Picture) -> dict[str, Any]:
        """Add an episode; return its video, and when it begins and ends there."""
        if self._encoder is not None and self._path.stat().st_size >= self._most:
            self.finish()
        if self._encoder is None:
            self._begin()
        assert self._encoder is not None
        height, width = self._size
        more = ((0, height - frames.shape[1]), (0, width - frames.shape[2]), (0, 0))
        begin = self._encoder.count
        self._encoder.write(
            np.pad(frame, more, mode="edge") if frame.shape[:2] != self._size else frame
            for frame in frames
        )
        chunk, file = divmod(self._number, self._chunk)
        return {
            "chunk_index": chunk,
            "file_index": file,
            "from_timestamp": begin / self._fps,
            "to_timestamp": self._encoder.count / self._fps,
        }

    def _begin(self) -> None:
        self._number += 1
        chunk, file = divmod(self._number, self._chunk)
        place = VIDEO_PATH.format(video_key=self._feature, chunk_index=chunk, file_index=file)
        self._path = self._folder / place
        self._path.parent.mkdir(parents=True, exist_ok=True)
        height, width = self._size
        self._encoder = Encoder(self._path, width, height, self._fps)

    def finish(self) -> None:
        """End the video that is being written."""
        if self._encoder is not None:
            self._encoder.finish()
            self.close()

    def close(self) -> None:
        """Stop writing, whole or not."""
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None


def _counts(frames: Picture) -> Counts:
    counts = np.zeros((3, 256), np.int64)
    for frame in frames:
        for channel in range(3):
            counts[channel] += np.bincount(frame[..., channel].reshape(-1), minlength=256)
    return counts


def _statistics(counts: Counts, frames: int, quantiles: Mapping[str, float]) -> dict[str, Any]:
    """Return what LeRobot has of images: of each channel, in [0, 1], of shape (3, 1, 1)."""
    values = np.arange(256) / 255
    number = int(counts[0].sum())
    mean = counts @ values / number
    spread = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(1) / number)
    below = counts.cumsum(1)

    def ranked(rank: int) -> npt.NDArray[np.float64]:
        """Return the value of each channel that ``rank`` others come before."""
        found: npt.NDArray[np.float64] = values[(below <= rank).sum(1)]
        return found

    def quantile(share: float) -> npt.NDArray[np.float64]:
        position = share * (number - 1)
        lower = int(position)
        low, high = ranked(lower), ranked(min(lower + 1, number - 1))
        mixed: npt.NDArray[np.float64] = low + (position - lower) * (high - low)
        return mixed

    basic = {"min": ranked(0), "max": ranked(number - 1), "mean": mean, "std": spread}
    return {
        **{name: array.reshape(3, 1, 1).tolist() for name, array in basic.items()},
        "count": [frames],
        **{n: quantile(share).reshape(3, 1, 1).tolist() for n, share in quantiles.items()},
    }
