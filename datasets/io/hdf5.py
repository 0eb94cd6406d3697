"""Guarded reading of arrays from an HDF5 file that may be damaged or hostile.

HDF5 believes what a file says of itself: a damaged header can ask for terabytes, and a link can
point into another file. Everything is checked against the file's own size before it is read.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.child import reference, resolve
from trimtab.datasets.io.fetched import check_fetched
from trimtab.datasets.io.sandbox import Blocks, Read, Received, read_apart
from trimtab.errors import TrimtabError

__all__ = [
    "FORBIDDEN", "H5PY_ERRORS", "REOPEN", "VERSION", "check_opens", "child", "children",
    "has", "in_blocks", "noted_number", "opened", "read_array", "read_file", "root_names",
]  # fmt: skip

VERSION = "v110"
"""Oldest HDF5 that reads what is written (2016); its metadata is small and checksummed."""
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SIGNATURE_PLACES = (0, 512, 1024, 2048)  # a user block may come before it

REOPEN = 100
"""Groups to read before a file is opened anew: HDF5 keeps 40 kB of each until it is closed."""
_BLOCK_BYTES = 1 << 24
_MOST_EMPTY_BYTES = 1 << 24  # of an array of which hardly anything is stored
_MOST_COMPRESSION = 1100  # deflate cannot reach more than about 1032 to 1
_MOST_OF_PLUGINS = 1 << 17  # Zstandard and Blosc, of chunks that are one value
_ADVICE = "make the dataset again or fetch a fresh copy"
H5PY_ERRORS = (
    OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, AttributeError,
    IndexError, OverflowError,
)  # fmt: skip
"""What h5py raises of a file that is damaged, or of a name or type that HDF5 has not."""
_FILTERS = {32001: "Blosc", 32004: "LZ4", 32013: "ZFP", 32015: "Zstandard", 32026: "Blosc2"}
"""Filters that hdf5plugin brings; a file need not name the one that it uses."""
FORBIDDEN = "you may not read it; run chmod u+rX on it, or ask its owner"
_REASONS = {
    "unable to lock file": (
        "another program has it open for writing; close it there, or wait until it is written"
    ),
    "already open for write": (
        "the program that wrote it has not closed it; let it finish or, if it was killed, run "
        "h5clear -s on a copy and check what is in it"
    ),
    "truncated file": (
        "it is cut short; let the program that writes or copies it finish, or fetch a fresh copy"
    ),
    "Permission denied": FORBIDDEN,
}
"""What HDF5 says of a file that is not damaged, or only cut, and what to do."""


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
    except H5PY_ERRORS as error:
        for said, reason in _REASONS.items():
            if said in str(error):
                raise TrimtabError(f"dataset {path}: {reason}") from error
        raise TrimtabError(
            f"dataset {path}: not a whole HDF5 file ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error


def read_file(path: Path, read: Callable[..., Read], *arguments: Any) -> Received:
    """Return what ``read`` makes of the open file, in a separate process: damage can crash HDF5.

    Args:
        path: the file.
        read: a module's function of the open file and of ``arguments``.
        arguments: JSON values, so that a tuple arrives as a list.

    Raises:
        TrimtabError: as :func:`opened`, what ``read`` raises, or that HDF5 crashed or hung.
    """
    if not path.is_file():
        raise TrimtabError(f"dataset {path}: the file is missing; {_ADVICE}")
    check_fetched(path)
    return read_apart(path, _inside, str(path), reference(read), arguments)


@contextmanager
def _inside(path: str, read: str, arguments: Sequence[Any]) -> Iterator[Read]:
    with opened(Path(path)) as file:
        yield resolve(read)(file, *arguments)


def root_names(path: Path) -> frozenset[str]:
    """Return the names at the root and ``<group>/<name>`` one below; none if it is not HDF5."""
    try:
        values, _ = read_file(path, _names_below) if _is_hdf5(path) else ({"names": []}, {})
    except (OSError, TrimtabError):
        return frozenset()
    return frozenset(values["names"])


def check_opens(path: Path) -> None:
    """Say why an HDF5 file cannot be opened; any other file is passed over.

    Raises:
        TrimtabError: as :func:`opened`.
    """
    if _is_hdf5(path):
        read_file(path, _names_below)


def _is_hdf5(path: Path) -> bool:
    with open(path, "rb") as raw:
        start = raw.read(max(_SIGNATURE_PLACES) + len(_SIGNATURE))
    return any(start[place:].startswith(_SIGNATURE) for place in _SIGNATURE_PLACES)


def _names_below(file: h5py.File) -> Read:
    names = list(file)
    for name in names[:100]:
        member = child(file, name, f"dataset {file.filename}")
        if isinstance(member, h5py.Group):
            names += [f"{name}/{below}" for below, _ in zip(member, range(100), strict=False)]
    return {"names": names}, []


def has(group: h5py.Group, name: str) -> bool:
    """Return whether there is such a member, or a link of its name that leads nowhere."""
    return group.get(name, getlink=True) is not None


def child(group: h5py.Group, name: str, place: str) -> h5py.Group | h5py.Dataset:
    """Return the member ``name`` that lies in the same file.

    Args:
        group: has the member, or a soft link to one in the same file.
        name: of the member.
        place: opens the message.

    Raises:
        TrimtabError: if it is missing or a link that leads nowhere or into another file.
    """
    link = group.get(name, getlink=True)
    if link is None:
        raise TrimtabError(f"{place}, key '{name}': missing; {_ADVICE}")
    member = None if isinstance(link, h5py.ExternalLink) else group.get(name)
    if member is None or member.file.filename != group.file.filename:
        raise TrimtabError(
            f"{place}, key '{name}': a link that leads nowhere or into another file, which is not "
            "followed; copy what it leads to into this one"
        )
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
    return np.asarray(_checked(member, place)[()])


def noted_number(owner: h5py.Group, name: str, place: str) -> float | None:
    """Return an attribute that is one number, or None where there is no such attribute.

    Raises:
        TrimtabError: if it is anything else.
    """
    if name not in owner.attrs:
        return None
    value = np.asarray(owner.attrs[name])
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise TrimtabError(f"{place}, attribute '{name}': not one number; {_ADVICE}")
    return float(value.item())


def in_blocks(member: h5py.Group | h5py.Dataset, place: str) -> Blocks:
    """Return an array that is read some rows at a time.

    Raises:
        TrimtabError: as :func:`read_array`, before anything is read.
    """
    array = _checked(member, place)

    def read() -> Iterator[npt.NDArray[Any]]:
        if not array.shape:
            yield np.asarray(array[()])
            return
        row = math.prod(array.shape[1:]) * array.dtype.itemsize
        rows = max(1, _BLOCK_BYTES // max(row, 1))
        for first in range(0, array.shape[0], rows):
            yield np.asarray(array[first : first + rows])

    return Blocks(array.dtype, array.shape, read)


def _checked(member: h5py.Group | h5py.Dataset, place: str) -> h5py.Dataset:
    """Return what is safe to be read."""
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
    chunked = storage.get_layout() == h5py.h5d.CHUNKED  # chunks never written are not stored
    filters = [storage.get_filter(number) for number in range(storage.get_nfilters())]
    for code, _, _, name in filters:
        _check_filter(code, name.decode(errors="replace").partition(";")[0], place)
    plugins = any(code >= h5py.h5z.FILTER_RESERVED for code, *_ in filters)
    most = stored * (_MOST_OF_PLUGINS if plugins else _MOST_COMPRESSION if filters else 1)
    if claimed > most + (_MOST_EMPTY_BYTES if chunked else 0):
        raise TrimtabError(
            f"{place}: shape {shape} needs {claimed} bytes, {stored} are stored; {_ADVICE}"
        )
    return member


def _check_filter(code: int, name: str, place: str) -> None:
    """Check that a filter that an array went through can be undone here.

    Raises:
        TrimtabError: if it is neither one of HDF5's own nor installed.
    """
    if h5py.h5z.filter_avail(code):
        return
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")  # it registers what it brings
    if not h5py.h5z.filter_avail(code):
        called = f"{name} (HDF5 filter {code})" if name else f"HDF5 filter {code}"
        raise TrimtabError(
            f"{place}: compressed with {_FILTERS.get(code, called)}, which is not installed here; "
            "run pip install hdf5plugin, or save it again with gzip"
        )
