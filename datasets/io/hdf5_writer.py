"""Writing an HDF5 file to the disk a part at a time, so that it may be larger than memory.

HDF5 crashes the process where the disk refuses in the midst of a write. So it writes to an object
that never refuses: the first refusal is noted, what comes after it is dropped, and the writing ends
at the next pause.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.io.hdf5 import H5PY_ERRORS, REOPEN, VERSION
from trimtab.errors import TrimtabError

__all__ = ["OpenFile", "write_hdf5"]

_BLOCK_BYTES = 1 << 20


class _NeverRefuses(io.RawIOBase):
    """A new file to read and write, which notes the disk's first refusal instead of raising it.

    Attributes:
        refusal: what the disk said, or None.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.refusal: OSError | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._place = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a place and return it."""
        start = {
            os.SEEK_SET: 0, os.SEEK_CUR: self._place,
            os.SEEK_END: os.fstat(self._descriptor).st_size,
        }[whence]  # fmt: skip
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer from the place on, as far as the file goes."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view):
            block = os.pread(self._descriptor, len(view) - done, self._place + done)
            if not block:
                break
            view[done : done + len(block)] = block
            done += len(block)
        self._place += done
        return done

    def write(self, data: Any, /) -> int:
        """Write all of the data, or drop what the disk refuses."""
        view, done = memoryview(data).cast("B"), 0
        try:
            while done < len(view) and self.refusal is None:
                done += os.pwrite(self._descriptor, view[done:], self._place + done)
        except OSError as error:
            self.refusal = error
        self._place += len(view)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Make the file as long as HDF5 says that it is."""
        size = self._place if size is None else size
        try:
            if self.refusal is None:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            self.refusal = error
        return size

    def close(self) -> None:
        """Close the file; HDF5 itself only flushes it."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class OpenFile:
    """An HDF5 file that is being written.

    Attributes:
        root: the file as h5py has it; another object after each pause.

    Args:
        disk: what it is written to.
        settings: of ``h5py.File``.
    """

    def __init__(self, disk: _NeverRefuses, settings: dict[str, Any]) -> None:
        self._disk, self._pauses = disk, 0
        self.root = h5py.File(disk, "w", libver=VERSION, **settings)

    def pause(self) -> None:
        """Say that a group, or a part of an array, is written.

        Raises:
            OSError: if the disk has refused.
        """
        if self._disk.refusal is not None:
            raise self._disk.refusal
        self._pauses += 1
        if self._pauses % REOPEN == 0:  # HDF5 lets go of what it keeps of each group
            self.root.close()
            self.root = h5py.File(self._disk, "r+", libver=VERSION)

    def append(
        self,
        name: str,
        parts: Iterable[npt.NDArray[Any]],
        rows: int,
        kind: tuple[npt.DTypeLike, tuple[int, ...]],
    ) -> None:
        """Write an array whose rows come in parts.

        Args:
            name: of the array.
            parts: yields consecutive rows.
            rows: how many there are.
            kind: type and shape of a row.

        Raises:
            OSError: if the disk has refused.
        """
        dtype, tail = kind
        self.root.create_dataset(name, shape=(rows, *tail), dtype=np.dtype(dtype))
        first = 0
        for block in _blocks(parts):
            self.root[name][first : first + len(block)] = block
            first += len(block)
            self.pause()


def _blocks(parts: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """Yield parts, several small ones as one: each write costs as much as thousands of numbers."""
    waiting: list[npt.NDArray[Any]] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += part.nbytes
        if size >= _BLOCK_BYTES:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


def write_hdf5(path: Path, write: Callable[[OpenFile], None], **settings: Any) -> None:
    """Write a new HDF5 file; the same content gives the same bytes.

    Args:
        path: of the file, in whose place nothing is.
        write: writes the content, and pauses after each part that may be large.
        settings: of ``h5py.File``.

    Raises:
        OSError: if the disk refuses.
        TrimtabError: if HDF5 refuses a name or a type.
    """
    disk = _NeverRefuses(path)
    try:
        file = OpenFile(disk, settings)
        try:
            write(file)
        finally:
            file.root.close()
    except H5PY_ERRORS as error:
        if disk.refusal is None:
            raise TrimtabError(
                f"the dataset does not fit into HDF5 ({type(error).__name__}: {error}); rename or "
                "convert the info that it names"
            ) from error
    finally:
        disk.close()
    if disk.refusal is not None:
        raise disk.refusal
