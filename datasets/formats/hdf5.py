"""Guarded reading of arrays from an HDF5 file that may be damaged or hostile.

HDF5 believes what a file says of itself: a damaged header can ask for terabytes, and a link can
point into another file. Everything is checked against the file's own size before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["child", "children", "opened", "read_array"]

_MOST_COMPRESSION = 1100  # deflate cannot reach more than about 1032 to 1
_ADVICE = "make the dataset again or fetch a fresh copy"
_H5PY_ERRORS = (
    OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, AttributeError,
    IndexError, OverflowError,
)  # fmt: skip


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; whatever h5py raises in the block becomes one line.

    Raises:
        TrimtabError: if the file is missing, truncated, damaged or not HDF5.
    """
    try:
        with h5py.File(path, "r") as file:
            yield file
    except TrimtabError:
        raise
    except FileNotFoundError as error:
        raise TrimtabError(f"dataset {path}: the file is missing; {_ADVICE}") from error
    except _H5PY_ERRORS as error:
        raise TrimtabError(
            f"dataset {path}: not a whole HDF5 file ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error


def child(group: h5py.Group, name: str, place: str) -> h5py.Group | h5py.Dataset:
    """Return the member ``name`` that lies in the same file.

    Raises:
        TrimtabError: if it is missing or a link that leads elsewhere.
    """
    link = group.get(name, getlink=True)
    if link is None:
        raise TrimtabError(f"{place}, key '{name}': missing; {_ADVICE}")
    if not isinstance(link, h5py.HardLink):
        raise TrimtabError(f"{place}, key '{name}': a link that leads elsewhere; {_ADVICE}")
    member = group[name]
    if not isinstance(member, h5py.Group | h5py.Dataset):
        raise TrimtabError(f"{place}, key '{name}': neither a group nor an array; {_ADVICE}")
    return member


def children(
    group: h5py.Group, place: str, prefix: str = "", depth: int = 4
) -> dict[str, h5py.Dataset]:
    """Return every array below ``group`` by its path, for example ``pose/left``.

    ``depth`` bounds the nesting, because a damaged file can hold a group that contains itself.
    """
    found: dict[str, h5py.Dataset] = {}
    for name in group:
        member = child(group, name, place)
        if isinstance(member, h5py.Dataset):
            found[prefix + name] = member
        elif depth == 0:
            raise TrimtabError(f"{place}, key '{prefix}{name}': nested too deeply; {_ADVICE}")
        else:
            found.update(children(member, place, f"{prefix}{name}/", depth - 1))
    return found


def read_array(member: h5py.Group | h5py.Dataset, place: str) -> npt.NDArray[Any]:
    """Read a whole array of numbers or booleans.

    Raises:
        TrimtabError: if it is no array of numbers, lies outside the file, or claims more values
            than the file can hold.
    """
    if not isinstance(member, h5py.Dataset) or member.shape is None:
        raise TrimtabError(f"{place}: not an array; {_ADVICE}")
    shape, dtype, storage = member.shape, member.dtype, member.id.get_create_plist()
    if dtype.kind not in "biuf":
        raise TrimtabError(f"{place}: type {dtype} is not a number; {_ADVICE}")
    if storage.get_layout() == h5py.h5d.VIRTUAL or storage.get_external_count():
        raise TrimtabError(f"{place}: its values lie in another file; {_ADVICE}")
    file_bytes = int(h5py.h5i.get_file_id(member.id).get_filesize())
    stored = min(int(member.id.get_storage_size()), file_bytes)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > stored * (_MOST_COMPRESSION if storage.get_nfilters() else 1):
        raise TrimtabError(
            f"{place}: shape {shape} needs {claimed} bytes, {stored} are stored; {_ADVICE}"
        )
    return np.asarray(member[()])
