"""Columns of numbers on disk that are larger than memory: written once in order, then mapped.

A folder of flat files, one a column, and ``index.json`` with their types, shapes and SHA-256. The
operating system keeps in memory what is read often, and gives it up when memory is short.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, atomic_write_json, read_json, sha256_json

__all__ = ["ColumnWriter", "open_columns", "sha256_with_progress", "write_columns"]

_INDEX = "index.json"
_VERSION = 2  # of the layout; another one is written anew
_BLOCK = 1 << 24

Progress = Callable[[float], None]


class ColumnWriter:
    """Appends rows to the columns of a folder that is being written.

    Attributes:
        about: further JSON values that are kept with the columns.

    Args:
        folder: where the files are made.
        files: closes them.
    """

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self.about: dict[str, Any] = {}
        self._folder, self._stack = folder, files
        self._files: dict[str, BinaryIO] = {}
        self._digests: dict[str, Any] = {}
        self._columns: dict[str, dict[str, Any]] = {}

    def append(self, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append ``[n, ...]`` rows to each column; n may differ from column to column.

        Raises:
            TrimtabError: if names, types or shapes are not those of the rows before.
        """
        if not self._columns:
            for number, (name, array) in enumerate(rows.items()):
                file = f"{number}.bin"
                opened = open(self._folder / file, "wb")  # noqa: SIM115 - the stack closes it
                self._files[name] = self._stack.enter_context(opened)
                self._digests[name] = hashlib.sha256()
                self._columns[name] = {**_kind(array), "file": file, "rows": 0}
        if set(rows) != set(self._columns):
            raise TrimtabError(f"it has {sorted(rows)}, those before have {sorted(self._columns)}")
        for name, array in rows.items():
            column, kind = self._columns[name], _kind(array)
            if any(column[key] != value for key, value in kind.items()):
                raise TrimtabError(f"'{name}' is {kind}, before it was {_kind_of(column)}")
            data = np.ascontiguousarray(array, dtype=kind["dtype"]).tobytes()
            self._files[name].write(data)
            self._digests[name].update(data)
            column["rows"] += len(array)

    def finish(self) -> None:
        """Write what says that the columns are whole."""
        for name, digest in self._digests.items():
            self._columns[name]["sha256"] = digest.hexdigest()
        index = {"version": _VERSION, "columns": self._columns, "about": self.about}
        atomic_write_json(self._folder / _INDEX, {**index, "sha256": sha256_json(index)})


def _kind(array: npt.NDArray[Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.newbyteorder("<").str, "shape": list(array.shape[1:])}


def _kind_of(column: Mapping[str, Any]) -> dict[str, Any]:
    return {key: column[key] for key in ("dtype", "shape")}


@contextmanager
def write_columns(folder: Path) -> Iterator[ColumnWriter]:
    """Yield what writes columns; they are ``folder``, whole, if the block succeeds.

    Raises:
        TrimtabError: if the disk refuses.
    """
    with atomic_directory(folder) as beside:
        with ExitStack() as files:
            writer = ColumnWriter(beside, files)
            yield writer
        writer.finish()


def open_columns(
    folder: Path, progress: Progress = lambda share: None
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]] | None:
    """Return the mapped columns ``[rows, ...]``, read-only, and what was kept with them.

    Every byte is read and compared with its hash, which also warms the page cache.

    Returns:
        Columns by name and ``about``; None where there are none, or they are not as written.
    """
    try:
        index = read_json(folder / _INDEX, "columns")
        stored = index.pop("sha256")
        if stored != sha256_json(index) or index["version"] != _VERSION:
            return None
        total = sum(_bytes(column) for column in index["columns"].values())
        done, found = 0, {}
        for name, column in index["columns"].items():
            path, size = folder / column["file"], _bytes(column)
            if path.stat().st_size != size:
                return None
            part, before = size / max(total, 1), done / max(total, 1)

            def tell(share: float, part: float = part, before: float = before) -> None:
                progress(before + part * share)

            if sha256_with_progress(path, tell) != column["sha256"]:
                return None
            shape = (column["rows"], *column["shape"])
            dtype = np.dtype(column["dtype"])
            mapped = np.memmap(path, dtype, "r", shape=shape) if size else np.empty(shape, dtype)
            found[name] = np.asarray(mapped)  # a plain array is indexed faster than a memmap
            done += size
        return found, index["about"]
    except (OSError, KeyError, TypeError, ValueError, AttributeError, TrimtabError):
        return None


def _bytes(column: Mapping[str, Any]) -> int:
    shape = [column["rows"], *column["shape"]]
    return math.prod(int(size) for size in shape) * int(np.dtype(column["dtype"]).itemsize)


def sha256_with_progress(path: Path, progress: Progress = lambda share: None) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal.

    Args:
        path: the file.
        progress: called with the share that is done.
    """
    digest, total, done = hashlib.sha256(), max(path.stat().st_size, 1), 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress(done / total)
    return digest.hexdigest()
