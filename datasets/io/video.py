"""Videos read and written by PyAV, which the extra ``video`` brings.

Files are strangers', so that each frame is checked against what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["Encoder", "decode", "library", "shown_at"]

Picture = npt.NDArray[np.uint8]

_QUALITY = 15  # x264's crf: 0 is lossless, 23 the usual, 18 hardly told from the original
_ADVICE = "make the dataset again or fetch a fresh copy"


def library() -> Any:
    """Return PyAV.

    Raises:
        TrimtabError: if it is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise TrimtabError(
            f"camera frames need PyAV: pip install 'trimtab[video]' ({error})"
        ) from error
    return av


@contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    """Open an MP4 file, and nothing else: a playlist could name other files."""
    av = library()
    try:
        with open(path, "rb") as file, av.open(file, format="mp4") as container:
            if not container.streams.video:
                raise TrimtabError(f"{where}: it holds no video; {_ADVICE}")
            yield container
    except (av.FFmpegError, OSError, ValueError, MemoryError, AttributeError) as error:
        fault = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrimtabError(f"{where}: not a readable video ({fault}); {_ADVICE}") from error


def shown_at(path: Path, width: int, height: int, most: int, where: str) -> npt.NDArray[np.float64]:
    """Return the seconds at which the frames of a video are shown, from the first, in order.

    Nothing is decoded.

    Args:
        path: the MP4 file.
        width: of its frames.
        height: of its frames.
        most: number of frames beyond which it is refused.
        where: opens the messages.

    Raises:
        TrimtabError: if PyAV is not installed, or it is damaged, of another size, or longer.
    """
    times: list[float] = []
    with _opened(path, where) as container:
        stream = container.streams.video[0]
        if (stream.width, stream.height) != (width, height):
            raise TrimtabError(
                f"{where}: its frames are {stream.width} wide and {stream.height} high, but "
                f"info.json says {width} and {height}; {_ADVICE}"
            )
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise ValueError(f"packet {len(times)} is cut short")
            if packet.pts is not None:
                times.append(float(packet.pts * packet.time_base))
            if len(times) > most:
                raise TrimtabError(f"{where}: it holds more than {most} frames; {_ADVICE}")
    if not times:
        raise TrimtabError(f"{where}: it holds no video; {_ADVICE}")
    return np.sort(np.array(times)) - min(times)


def decode(path: Path, width: int, height: int, count: int, where: str) -> Iterator[Picture]:
    """Yield the first ``count`` frames ``[height, width, 3]`` of a video.

    Args:
        path: the MP4 file.
        width: of every frame.
        height: of every frame.
        count: how many are wanted.
        where: opens the messages.

    Raises:
        TrimtabError: if PyAV is not installed, or it is damaged, shorter, or of another size.
    """
    number = 0
    with _opened(path, where) as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"err_detect": "explode"}
        for frame in container.decode(stream):
            if (frame.width, frame.height) != (width, height):
                raise TrimtabError(
                    f"{where}: frame {number} is not {width} wide and {height} high; {_ADVICE}"
                )
            if frame.is_corrupt:
                raise ValueError(f"frame {number} is damaged")
            yield frame.to_ndarray(format="rgb24")
            number += 1
            if number == count:
                return
    raise TrimtabError(f"{where}: it ends after {number} of {count} frames; {_ADVICE}")


class Encoder:
    """Writes frames of one size as H.264 in MP4, where every second one is a whole frame.

    Readers that look a frame up by its time then decode two at most. The same frames give the same
    file.

    Attributes:
        count: number of frames so far.

    Args:
        path: the file, which is replaced.
        width: of the frames; even.
        height: of the frames; even.
        fps: frames a second.

    Raises:
        TrimtabError: if PyAV is not installed.
        OSError: if the disk refuses, here and below.
    """

    def __init__(self, path: Path, width: int, height: int, fps: int) -> None:
        av = library()
        self.count = 0
        self._av = av
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._container = av.open(self._file, "w", format="mp4", options={"fflags": "+bitexact"})
        self._stream = self._container.add_stream(
            "libx264", rate=fps, options={"crf": str(_QUALITY), "flags": "+bitexact"}
        )
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.gop_size = 2
        self._stream.codec_context.max_b_frames = 0
        self._stream.codec_context.thread_count = 2

    def write(self, frames: Iterable[Picture]) -> None:
        """Add ``frames``."""
        for picture in frames:
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            self._container.mux(self._stream.encode(frame))
            self.count += 1

    def finish(self) -> None:
        """End the file."""
        self._container.mux(self._stream.encode())
        self.close()

    def close(self) -> None:
        """Stop writing, whole or not."""
        self._container.close()
        self._file.close()
