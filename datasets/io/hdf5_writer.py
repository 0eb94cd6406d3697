"""Writing an HDF5 file a part at a time, so that it may be larger than memory.

HDF5 crashes the process where the disk refuses in the midst of a write. So the room is asked for
before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.io.hdf5 import H5PY_ERRORS, VERSION
from trimtab.errors import TrimtabError

__all__ = ["append", "room_for", "write_hdf5"]

_BLOCK_BYTES = 1 << 20
_BYTES_AN_ARRAY = 4096  # at most, for its description


def room_for(arrays: Iterable[npt.NDArray[Any]]) -> int:
    """Return the bytes that a file of these arrays takes at most."""
    return sum(array.nbytes + _BYTES_AN_ARRAY for array in arrays)


def append(
    file: h5py.File,
    name: str,
    parts: Iterable[npt.NDArray[Any]],
    rows: int,
    kind: tuple[npt.DTypeLike, tuple[int, ...]],
) -> None:
    """Write an array whose rows come in parts.

    Args:
        file: what it is written to.
        name: of the array.
        parts: yields consecutive rows.
        rows: how many there are.
        kind: type and shape of a row.
    """
    dtype, tail = kind
    file.create_dataset(name, shape=(rows, *tail), dtype=np.dtype(dtype))
    first = 0
    for block in _blocks(parts):
        file[name][first : first + len(block)] = block
        first += len(block)


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


def write_hdf5(path: Path, write: Callable[[h5py.File], None], room: int, **settings: Any) -> None:
    """Write a new HDF5 file; the same content gives the same bytes.

    Args:
        path: of the file, in whose place nothing is.
        write: writes the content.
        room: bytes that have to be free, see :func:`room_for`.
        settings: of ``h5py.File``.

    Raises:
        OSError: if there is no such room.
        TrimtabError: if HDF5 refuses a name or a type.
    """
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, room)
    try:
        with h5py.File(path, "w", libver=VERSION, **settings) as opened:
            write(opened)
    except H5PY_ERRORS as error:
        raise TrimtabError(
            f"the dataset does not fit into HDF5 ({type(error).__name__}: {error}); rename or "
            "convert the info that it names"
        ) from error
