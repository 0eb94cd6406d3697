"""Videos read and written by ffmpeg, which the extra ``video`` brings.

ffmpeg runs as a process of its own, with bounds on its memory and on how long it may say nothing,
and every frame that it hands over is checked against what was asked for: files are strangers'.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["Encoder", "Pipe", "Stream", "decode", "executable", "inspect"]

Picture = npt.NDArray[np.uint8]

_PATIENCE = 60.0  # seconds in which nothing is read or written, before ffmpeg is taken to hang
_MOST_MEMORY = 8 << 30  # of address space; threads reserve far more than they use
_MOST_BLOCK = 1 << 29  # in one allocation
_BLOCK = 1 << 16  # bytes that are read at once
_PACKET = re.compile(rb"0, *-?\d+, *(-?\d+),")  # of stream 0: when it is decoded, and shown
_MARGIN = 256  # pixels of a side: codecs keep whole blocks, of which the frame is a part
_QUALITY = 15  # x264's crf: 0 is lossless, 23 the usual, 18 hardly told from the original
_ADVICE = "make the dataset again or fetch a fresh copy"

_QUIET = ("-nostdin", "-hide_banner", "-v", "error", "-max_alloc", str(_MOST_BLOCK))
# Chroma is brought to full size, and rounding does not hang on the processor's kind.
_SCALE = "scale=flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"


def executable() -> str:
    """Return ffmpeg's path.

    Raises:
        TrimtabError: if it is missing.
    """
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise TrimtabError(
            "camera frames need ffmpeg: pip install 'trimtab[video]' "
            f"({str(error).splitlines()[0]})"
        ) from error


class Pipe:
    """A command whose input or output is a pipe; it is gone when its block is left.

    Args:
        command: the program and its arguments.
        where: opens the messages.
        writes: whether its input is written; otherwise its output is read.
        patience: seconds in which it may move no byte.
    """

    def __init__(
        self, command: Sequence[str], where: str, *, writes: bool = False,
        patience: float = _PATIENCE,
    ) -> None:  # fmt: skip
        self._where, self._patience = where, patience
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving the block
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if writes else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if writes else subprocess.PIPE,
            stderr=self._complaints,
        )
        stream: IO[bytes] | None = self._process.stdin if writes else self._process.stdout
        assert stream is not None
        self._stream = stream
        os.set_blocking(stream.fileno(), False)
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Stop the command, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._stream.close()
        self._complaints.close()

    def fill(self, view: memoryview) -> int:
        """Read until ``view`` is full or the output ends; return the number of bytes read."""
        count = 0
        while count < len(view):
            if not select.select([self._stream], [], [], self._patience)[0]:
                raise self._hung()
            got = os.readv(self._stream.fileno(), [view[count:]])
            if not got:
                break
            count += got
        return count

    def write(self, view: memoryview) -> None:
        """Write all of ``view``.

        Raises:
            TrimtabError: if the command has ended or takes no more.
        """
        while view:
            if not select.select([], [self._stream], [], self._patience)[1]:
                raise self._hung()
            try:
                view = view[os.write(self._stream.fileno(), view) :]
            except BrokenPipeError as error:
                self._process.wait()
                raise self._failed() from error

    def finish(self) -> None:
        """Wait for the command's end.

        Raises:
            TrimtabError: if it failed or does not end.
        """
        self._stream.close()
        try:
            code = self._process.wait(self._patience)
        except subprocess.TimeoutExpired as error:
            raise self._hung() from error
        if code:
            raise self._failed()

    def _hung(self) -> TrimtabError:
        return TrimtabError(
            f"{self._where}: ffmpeg did nothing for {self._patience:g} s and was stopped; {_ADVICE}"
        )

    def _failed(self) -> TrimtabError:
        self._complaints.seek(0)
        said = self._complaints.read(4096).decode(errors="replace").splitlines()
        plain = [re.sub(r"^(\[.*?\] ?)+", "", line).strip() for line in said]
        fault = next(filter(None, plain), f"it ended with {self._process.returncode}")
        return TrimtabError(f"{self._where}: ffmpeg failed ({fault[:200]}); {_ADVICE}")


@dataclass(frozen=True)
class Stream:
    """What a video says of itself.

    Attributes:
        width: of a frame.
        height: of a frame.
        times: seconds at which its frames are shown, from the first, in order.
    """

    width: int
    height: int
    times: npt.NDArray[np.float64]


def inspect(path: Path, most: int, where: str) -> Stream:
    """Return what the MP4 file ``path`` says of its first video; nothing is decoded.

    Args:
        path: the file.
        most: number of frames beyond which it is refused.
        where: opens the messages.

    Raises:
        TrimtabError: if it is damaged, holds no video or more than ``most`` frames.
    """
    listing = ["-map", "0:v:0", "-c", "copy", "-f", "framecrc", "pipe:1"]
    block = memoryview(bytearray(_BLOCK))
    head, rest, shown = b"", b"", list[int]()
    with Pipe([executable(), *_QUIET, "-xerror", *_source(path), *listing], where) as pipe:
        while count := pipe.fill(block):
            *lines, rest = (rest + bytes(block[:count])).split(b"\n")
            for line in lines:
                if line.startswith(b"#"):
                    head = head[:_BLOCK] + line + b"\n"
                elif packet := _PACKET.match(line):
                    shown.append(int(packet[1]))
            if len(shown) > most:
                raise TrimtabError(f"{where}: it holds more than {most} frames; {_ADVICE}")
        pipe.finish()
    text = head.decode(errors="replace")
    size = re.search(r"^#dimensions 0: (\d+)x(\d+)$", text, re.MULTILINE)
    base = re.search(r"^#tb 0: (\d+)/(\d+)$", text, re.MULTILINE)
    if size is None or base is None or not shown:
        raise TrimtabError(f"{where}: it holds no video; {_ADVICE}")
    times = np.sort(np.array(shown, np.float64)) * int(base[1]) / max(1, int(base[2]))
    return Stream(int(size[1]), int(size[2]), times - times[0])


def decode(path: Path, width: int, height: int, count: int, where: str) -> Iterator[Picture]:
    """Yield the first ``count`` frames [height, width, 3] of a video, each valid until the next.

    Args:
        path: the MP4 file.
        width: of every frame.
        height: of every frame.
        count: how many are wanted.
        where: opens the messages.

    Raises:
        TrimtabError: if it is damaged, shorter, or a frame is of another size.
    """
    # As PPM each frame comes with its size: one that changes on the way cannot shift the others.
    head = b"P6\n%d %d\n255\n" % (width, height)
    picture = bytearray(len(head) + width * height * 3)
    frame = np.frombuffer(picture, np.uint8)[len(head) :].reshape(height, width, 3)
    most = (width + _MARGIN) * (height + _MARGIN)
    strict = ("-xerror", "-err_detect", "explode", "-max_pixels", str(most))
    form = ["-map", "0:v:0", "-vf", f"{_SCALE},format=rgb24", "-fps_mode", "passthrough"]
    form += ["-frames:v", str(count), "-c:v", "ppm", "-f", "image2pipe", "pipe:1"]
    command = [executable(), *_QUIET, *strict, "-threads", "2", *_source(path), *form]
    with Pipe(command, where) as pipe:
        for number in range(count):
            got = pipe.fill(memoryview(picture))
            if got and not picture.startswith(head[:got]):
                raise TrimtabError(
                    f"{where}: frame {number} is not {width} wide and {height} high; {_ADVICE}"
                )
            if got < len(picture):
                pipe.finish()
                raise TrimtabError(f"{where}: it ends after {number} of {count} frames; {_ADVICE}")
            yield frame


def _source(path: Path) -> tuple[str, ...]:
    """Return the input's options: nothing but an MP4 file, as playlists could name other files."""
    return (
        "-protocol_whitelist", "file,pipe", "-noautorotate", "-f", "mp4",
        "-i", f"file:{path.absolute()}",
    )  # fmt: skip


class Encoder:
    """Writes frames of one size as H.264 in MP4, where every second one is a whole frame.

    Readers that look a frame up by its time then decode two at most. The same frames give the same
    file.

    Args:
        path: the file, which is replaced.
        width: of the frames; even.
        height: of the frames; even.
        fps: frames a second.
        where: opens the messages.
    """

    def __init__(self, path: Path, width: int, height: int, fps: int, where: str) -> None:
        self._path, self._where, self.count = path, where, 0
        self._shape = (height, width, 3)
        command = [
            executable(), *_QUIET, "-y", "-f", "rawvideo", "-pixel_format", "rgb24",
            "-video_size", f"{width}x{height}", "-framerate", str(fps), "-i", "pipe:0",
            "-vf", _SCALE, "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", str(_QUALITY),
            "-g", "2", "-bf", "0", "-threads", "2", "-fflags", "+bitexact",
            "-flags:v", "+bitexact", "-f", "mp4", f"file:{path.absolute()}",
        ]  # fmt: skip
        self._pipe = Pipe(command, where, writes=True)

    def close(self) -> None:
        """Stop writing, whole or not."""
        self._pipe.close()

    def write(self, frames: Iterable[Picture]) -> None:
        """Add ``frames``.

        Raises:
            TrimtabError: if ffmpeg fails.
        """
        for frame in frames:
            assert frame.shape == self._shape
            self._pipe.write(memoryview(frame.tobytes()))
            self.count += 1

    def finish(self) -> None:
        """End the file.

        Raises:
            TrimtabError: if ffmpeg fails or has not written every frame.
        """
        self._pipe.finish()
        written = len(inspect(self._path, self.count, self._where).times)
        if written != self.count:
            raise TrimtabError(
                f"{self._where}: ffmpeg wrote {written} of {self.count} frames; is the disk full?"
            )
