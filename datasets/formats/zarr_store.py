"""Guarded reading of arrays from a Zarr v2 folder or zip, with the standard library alone.

The layout: the Zarr storage specification, version 2: ``<array>/.zarray`` (JSON) and one file a
chunk, named by its place in the grid.
"""

from __future__ import annotations

import bz2
import functools
import json
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["Store", "opened_store"]

_MOST_COMPRESSION = 1100  # of deflate; chunks that are nothing but the fill value need more
_MOST_EMPTY_BYTES = 1 << 24  # of an array of which hardly anything is stored
_LZMA_BYTES = 1 << 30  # of memory that a damaged header may ask for
_FAULTS = (
    OSError, ValueError, KeyError, EOFError, TypeError, OverflowError, MemoryError, zlib.error,
    lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError, RecursionError,
    IndexError, AttributeError, struct.error,
)  # fmt: skip
_ADVICE = "make the dataset again or fetch a fresh copy"


def _inflate(bits: int) -> Callable[[bytes, int], bytes]:
    return lambda data, size: zlib.decompressobj(wbits=bits).decompress(data, size)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "zlib": _inflate(zlib.MAX_WBITS),
    "gzip": _inflate(16 + zlib.MAX_WBITS),
    "bz2": lambda data, size: bz2.BZ2Decompressor().decompress(data, size),
    "lzma": lambda data, size: lzma.LZMADecompressor(memlimit=_LZMA_BYTES).decompress(data, size),
}
"""By the name of the compressor: at most ``size`` bytes of what was compressed."""


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

    def arrays(self, group: str) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the arrays directly below ``group``.

        Raises:
            TrimtabError: if a description is damaged.
        """
        prefix, end = f"{group}/", "/.zarray"
        shapes = {}
        for file in sorted(self._names):
            below = file.removeprefix(prefix).removesuffix(end)
            if file == prefix + below + end and "/" not in below:
                describe = functools.partial(self._describe, prefix + below)
                shapes[below] = self._guarded(prefix + below, describe)[0]
        return shapes

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the array ``name``; chunks that are not stored have its fill value.

        Raises:
            TrimtabError: if it is missing, damaged, no array of numbers, or compressed in a way
                that the standard library cannot undo.
        """
        if name not in self:
            raise TrimtabError(f"dataset {self.path}, key '{name}': missing; {_ADVICE}")
        array: npt.NDArray[Any] = self._guarded(name, lambda: self._assemble(name))
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
        shape, chunks = (tuple(values[key]) for key in ("shape", "chunks"))
        if values["zarr_format"] != 2 or len(shape) != len(chunks):
            raise ValueError("not an array of Zarr's version 2")
        if any(type(x) is not int or x < 0 for x in shape + chunks) or 0 in chunks:
            raise ValueError(f"shape {shape} in chunks of {chunks}")
        return shape, chunks, values

    def _assemble(self, name: str) -> npt.NDArray[Any]:
        shape, chunks, values = self._describe(name)
        dtype = np.dtype(str(values["dtype"]))
        if dtype.kind not in "biuf" or not shape:
            raise ValueError(f"shape {shape} and type {dtype} are not rows of numbers")
        if values.get("filters"):
            raise ValueError("filters are not undone here; save it without")
        decode = self._decoder(name, values.get("compressor"))
        column_major = {"C": False, "F": True}[values.get("order", "C")]
        separator = values.get("dimension_separator", ".")
        claimed = math.prod(shape) * dtype.itemsize
        stored = {n: self._read(n) for n in self._names if n.startswith(f"{name}/")}
        if claimed > _MOST_COMPRESSION * sum(map(len, stored.values())) + _MOST_EMPTY_BYTES:
            raise ValueError(f"shape {shape} needs {claimed} bytes, which the files cannot hold")
        fill = values.get("fill_value")
        array = np.full(shape, 0 if fill is None else _number(fill), dtype)
        size = math.prod(chunks) * dtype.itemsize
        for file, data in stored.items():
            parts = file.removeprefix(f"{name}/").split(separator)
            place = tuple(int(part) for part in parts if part.isdecimal())
            begins = tuple(i * c for i, c in zip(place, chunks, strict=False))
            outside = any(b >= s for b, s in zip(begins, shape, strict=False))
            if len(place) != len(shape) or len(parts) != len(shape) or outside:
                continue  # such as .zarray
            raw = decode(data, size + 1)
            if len(raw) != size:
                raise ValueError(f"chunk {place} has {len(raw)} bytes, expected {size}")
            chunk = np.frombuffer(raw, dtype).reshape(chunks, order="F" if column_major else "C")
            target = tuple(slice(b, b + c) for b, c in zip(begins, chunks, strict=True))
            inside = tuple(slice(0, s - b) for s, b in zip(shape, begins, strict=True))
            array[target] = chunk[inside]
        return array

    def _decoder(self, name: str, compressor: Any) -> Callable[[bytes, int], bytes]:
        if compressor is None:
            return lambda data, size: data
        codec = compressor["id"]
        if codec not in _DECODERS:
            raise TrimtabError(
                f"dataset {self.path}, key '{name}': compressed with {codec}, which needs the "
                f"zarr package; save it again with one of none, {', '.join(_DECODERS)}"
            )
        return _DECODERS[codec]


def _number(fill: Any) -> float:
    """Return a fill value; infinities and NaN are written as text."""
    return float(fill) if isinstance(fill, str) else fill


@contextmanager
def opened_store(path: Path) -> Iterator[Store]:
    """Open a folder or a zip of Zarr's version 2.

    Raises:
        TrimtabError: if it is neither, or not readable.
    """
    if path.is_dir():
        names = (p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        yield Store(path, frozenset(names), lambda name: (path / name).read_bytes())
        return
    try:
        with zipfile.ZipFile(path) as archive:
            size = path.stat().st_size

            def read(name: str) -> bytes:
                if archive.getinfo(name).file_size > size * _MOST_COMPRESSION:
                    raise ValueError("it claims more bytes than the file can hold")
                return archive.read(name)

            yield Store(path, frozenset(archive.namelist()), read)
    except TrimtabError:
        raise
    except _FAULTS as error:
        raise TrimtabError(
            f"dataset {path}: neither a Zarr folder nor a zip of one "
            f"({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
