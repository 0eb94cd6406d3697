"""Guarded reading of arrays from a Zarr v2 folder or zip, without the zarr package.

The layout: the Zarr storage specification, version 2: ``<array>/.zarray`` (JSON) and one file a
chunk, named by its place in the grid.
"""

from __future__ import annotations

import functools
import json
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.io.chunk_codecs import (
    IN_NUMCODECS,
    STANDARD,
    Decoder,
    numcodecs_decoder,
)
from trimtab.datasets.io.sandbox import Read, read_apart
from trimtab.errors import TrimtabError

__all__ = ["Missing", "Store", "opened_store"]

_MOST_COMPRESSION = 1100  # of deflate; chunks that are nothing but the fill value need more
_MOST_EMPTY_BYTES = 1 << 24  # of an array of which hardly anything is stored
_FAULTS = (
    OSError, ValueError, KeyError, EOFError, TypeError, OverflowError, MemoryError, zlib.error,
    lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError, RecursionError,
    IndexError, AttributeError, struct.error,
)  # fmt: skip
_CONSOLIDATED = ".zmetadata"
_CHUNK = re.compile(r"\d+(\.\d+)*", re.ASCII)
_NUMBERS = re.compile(r"(/\d+)+$", re.ASCII)
_ADVICE = "make the dataset again or fetch a fresh copy"


@dataclass(frozen=True)
class Missing:
    """The chunks of an array that are not stored; its fill value stands for their numbers.

    Attributes:
        count: how many they are.
        whole: how many chunks the array has.
        rows: first and last row of the first one.
    """

    count: int
    whole: int
    rows: tuple[int, int]


class Store:
    """Arrays by their path, such as ``data/action``.

    Args:
        path: the folder or zip, named in errors.
        names: paths of all files in it.
        read: returns a file's bytes.
    """

    def __init__(self, path: Path, names: frozenset[str], read: Callable[[str], bytes]) -> None:
        self.path = path
        self._names = names
        self._read = read

    def __contains__(self, name: str) -> bool:
        return f"{name}/.zarray" in self._names

    @property
    def version_3(self) -> bool:
        """Whether a part of it is described as version 3 of Zarr does, which is not read."""
        return any(name.rpartition("/")[2] == "zarr.json" for name in self._names)

    def arrays(self, group: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shapes of the arrays below ``group``, and the kinds of their types.

        A kind is NumPy's letter, such as ``f``; that of texts and objects is none of ``biuf``.

        Raises:
            TrimtabError: if a description is damaged.
        """
        prefix, end = f"{group}/", "/.zarray"
        found = {}
        described = self._guarded(group, self._consolidated).keys() - self._names
        lost = sorted(name for name in described if name.startswith(prefix) and name.endswith(end))
        if lost:
            raise TrimtabError(
                f"dataset {self.path}, key '{lost[0]}': missing, but {_CONSOLIDATED} describes it; "
                f"{_ADVICE}"
            )
        for file in sorted(self._names):
            name, _, chunk = file.rpartition("/")
            if file.startswith(prefix) and _CHUNK.fullmatch(chunk) and name not in self:
                # With "/" between the numbers, the description is in a folder above.
                above = _NUMBERS.sub("", name)
                if above not in self:
                    raise TrimtabError(
                        f"dataset {self.path}, key '{above}': its {end[1:]} is missing, and chunks "
                        f"of it are there; {_ADVICE}"
                    )
            below = file.removeprefix(prefix).removesuffix(end)
            if file == prefix + below + end:
                describe = functools.partial(self._describe, prefix + below)
                shape, _, values = self._guarded(prefix + below, describe)
                found[below] = shape, str(values.get("dtype"))[1:2]
        return found

    def missing(self, name: str) -> Missing:
        """Return how many chunks of an array are not stored, and which is the first.

        Raises:
            TrimtabError: if the array's description is damaged.
        """

        def counted() -> Missing:
            shape, chunks, values = self._describe(name)
            grid = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
            places = {_place(name, file, shape, chunks, values) for file in self._names}
            stored = places - {None}
            first = next((place for place in np.ndindex(*grid) if place not in stored), ())
            begin = first[0] * chunks[0] if first else 0
            last = min(begin + chunks[0], shape[0]) - 1
            return Missing(math.prod(grid) - len(stored), math.prod(grid), (begin, last))

        missing: Missing = self._guarded(name, counted)
        return missing

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the array ``name``; chunks that are not stored have its fill value.

        Raises:
            TrimtabError: if it is missing, damaged, no array of numbers, or compressed in a way
                that neither the standard library nor numcodecs can undo.
        """
        if name not in self:
            raise TrimtabError(f"dataset {self.path}, key '{name}': missing; {_ADVICE}")
        array: npt.NDArray[Any] = self._guarded(name, lambda: self._decoded(name))
        return array

    def _decoded(self, name: str) -> npt.NDArray[Any]:
        values = self._describe(name)[2]
        compressor = values.get("compressor")
        codec = None if compressor is None else compressor["id"]
        place = f"dataset {self.path}, key '{name}'"
        if codec not in (None, *STANDARD, *IN_NUMCODECS):
            raise TrimtabError(
                f"{place}: compressed with {codec!r:.40}; save it again with one of none, "
                f"{', '.join([*STANDARD, *IN_NUMCODECS])}"
            )
        if codec not in IN_NUMCODECS:
            return self.decode(name, STANDARD[codec] if codec else _as_stored)
        numcodecs_decoder(codec, place)  # that there is one
        task = (str(self.path), name, codec, place)
        return read_apart(self.path, _decompressed, *task)[1][name]

    def decode(self, name: str, decode: Decoder) -> npt.NDArray[Any]:
        """Return the array ``name``, whose chunks ``decode`` decompresses, in this process.

        Raises:
            TrimtabError: if it is damaged or no array of numbers.
        """

        def assembled() -> npt.NDArray[Any]:
            shape, chunks, values = self._describe(name)
            stored = {n: self._read(n) for n in self._names if n.startswith(f"{name}/")}
            return _assemble(name, shape, chunks, values, stored, decode)

        array: npt.NDArray[Any] = self._guarded(name, assembled)
        return array

    def _guarded(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except TrimtabError:
            raise
        except _FAULTS as error:
            raise TrimtabError(
                f"dataset {self.path}, key '{name}': not readable "
                f"({type(error).__name__}: {error}); {_ADVICE}"
            ) from error

    def _describe(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
        values = json.loads(self._read(f"{name}/.zarray"))
        if self._consolidated().get(f"{name}/.zarray", values) != values:
            raise ValueError(f"{_CONSOLIDATED} describes it otherwise")
        shape, chunks = (tuple(values[key]) for key in ("shape", "chunks"))
        if values["zarr_format"] != 2 or len(shape) != len(chunks):
            raise ValueError("not an array of Zarr's version 2")
        if any(type(x) is not int or x < 0 for x in shape + chunks) or 0 in chunks:
            raise ValueError(f"shape {shape} in chunks of {chunks}")
        return shape, chunks, values

    def _consolidated(self) -> dict[str, Any]:
        """Return the descriptions that stand in one file at the root once more."""
        if _CONSOLIDATED not in self._names:
            return {}
        return dict(json.loads(self._read(_CONSOLIDATED))["metadata"])


def _place(
    name: str,
    file: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    values: Mapping[str, Any],
) -> tuple[int, ...] | None:
    """Return the place of a file in an array's grid of chunks; None where it is no chunk of it."""
    parts = file.removeprefix(f"{name}/").split(values.get("dimension_separator", "."))
    if not file.startswith(f"{name}/") or not all(part.isdecimal() for part in parts):
        return None  # such as .zarray
    place = tuple(map(int, parts))
    if len(place) != len(shape) or any(
        i * c >= s for i, c, s in zip(place, chunks, shape, strict=True)
    ):
        raise ValueError(f"the chunk {'.'.join(parts)} lies outside of the shape {shape}")
    return place


@contextmanager
def _decompressed(path: str, name: str, codec: str, place: str) -> Iterator[Read]:
    with opened_store(Path(path)) as store:
        yield {}, [(name, store.decode(name, numcodecs_decoder(codec, place)))]


def _assemble(
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    values: Mapping[str, Any],
    stored: Mapping[str, bytes],
    decode: Decoder,
) -> npt.NDArray[Any]:
    """Return the array of a description and of its files' bytes."""
    dtype = np.dtype(str(values["dtype"]))
    if dtype.kind not in "biuf":
        raise ValueError(f"type {dtype} is not a number")
    if not shape:
        raise ValueError(f"shape {shape} is not that of rows")
    if values.get("filters"):
        raise ValueError("filters are not undone here; save it without")
    column_major = {"C": False, "F": True}[values.get("order", "C")]
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > _MOST_COMPRESSION * sum(map(len, stored.values())) + _MOST_EMPTY_BYTES:
        raise ValueError(f"shape {shape} needs {claimed} bytes, which the files cannot hold")
    fill = values.get("fill_value")
    array = np.full(shape, 0 if fill is None else _number(fill), dtype)
    size = math.prod(chunks) * dtype.itemsize
    for file, data in stored.items():
        place = _place(name, file, shape, chunks, values)
        if place is None:
            continue
        begins = tuple(i * c for i, c in zip(place, chunks, strict=True))
        raw = decode(data, size)
        if len(raw) != size:
            raise ValueError(f"chunk {place} has {len(raw)} bytes, expected {size}")
        chunk = np.frombuffer(raw, dtype).reshape(chunks, order="F" if column_major else "C")
        target = tuple(slice(b, b + c) for b, c in zip(begins, chunks, strict=True))
        inside = tuple(slice(0, s - b) for s, b in zip(shape, begins, strict=True))
        array[target] = chunk[inside]
    return array


def _as_stored(data: bytes, size: int) -> bytes:
    """Stand for the decoder of what is not compressed."""
    return data


def _number(fill: Any) -> float:
    """Return a fill value; infinities and NaN are written as text."""
    return float(fill) if isinstance(fill, str) else fill


def _top(names: Sequence[str]) -> str:
    """Return the folder in an archive in which the store lies, where the folder was packed."""
    tops = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == ".zgroup"}
    top = min(tops, key=len, default="")
    return f"{top}/" if top and all(one.startswith(f"{top}/") for one in tops - {top}) else ""


@contextmanager
def opened_store(path: Path) -> Iterator[Store]:
    """Open a folder or a zip of Zarr's version 2.

    Raises:
        TrimtabError: if it is neither, or not readable.
    """
    if path.is_dir():
        inside = [p for p in path.rglob("*") if not p.is_dir()]
        for other in inside:
            if not other.is_file():  # left out, it would count for a chunk of fill values
                raise TrimtabError(f"dataset {other}: is no regular file; fetch a fresh copy")
        names = (p.relative_to(path).as_posix() for p in inside)
        yield Store(path, frozenset(names), lambda name: (path / name).read_bytes())
        return
    try:
        with zipfile.ZipFile(path) as archive:
            size = path.stat().st_size

            def read(name: str) -> bytes:
                if archive.getinfo(name).file_size > size * _MOST_COMPRESSION:
                    raise ValueError("it claims more bytes than the file can hold")
                return archive.read(name)

            held = archive.namelist()
            top = _top(held)
            below = frozenset(n.removeprefix(top) for n in held if n.startswith(top))
            yield Store(path, below, lambda name: read(top + name))
    except TrimtabError:
        raise
    except _FAULTS as error:
        raise TrimtabError(
            f"dataset {path}: neither a Zarr folder nor a zip of one "
            f"({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
