"""Arrays of a Zarr folder or zip, version 2 or 3, read by the zarr package in a process apart.

Zarr reads a chunk that is not stored as its fill value, so that a lost file would go unnoticed:
what is missing is counted here.
"""

from __future__ import annotations

import importlib.util
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trimtab.datasets.io.sandbox import Read, read_apart
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    import zarr

__all__ = ["Stored", "array_files", "describe_arrays", "read_arrays"]

_MOST_COMPRESSION = 1 << 17  # Zstandard and Blosc, of chunks that are one value
_MOST_EMPTY_BYTES = 1 << 24  # of an array of which hardly anything is stored
_DESCRIPTIONS = (".zarray", "zarr.json")
_CONSOLIDATED = ".zmetadata"
_NO_CHUNKS = (*_DESCRIPTIONS, ".zgroup", ".zattrs")
_CODECS = {
    "adler32", "blosc", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset", "gzip", "lz4",
    "lzma", "packbits", "quantize", "shuffle", "zlib", "zstd",
}  # fmt: skip
"""Those of numcodecs that numbers are stored by; ``pickle`` is one that runs what it is handed."""
_ADVICE = "make the dataset again or fetch a fresh copy"


class Stored(NamedTuple):
    """What a store says of an array.

    Attributes:
        shape: of it.
        letter: NumPy's of its type, such as ``f``; empty where the type is not known.
        chunks: number of chunks that it has.
        missing: number of chunks that are not stored: the fill value is read there.
    """

    shape: tuple[int, ...]
    letter: str
    chunks: int
    missing: int


def array_files(path: Path) -> list[str]:
    """Return the paths of all files in a folder or a zip.

    Raises:
        TrimtabError: if it is neither.
    """
    if path.is_dir():
        inside = (file for file in path.rglob("*") if not file.is_dir())
        return [file.relative_to(path).as_posix() for file in inside]
    try:
        with zipfile.ZipFile(path) as archive:
            return [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise TrimtabError(
            f"dataset {path}: neither a Zarr folder nor a zip of one ({error}); {_ADVICE}"
        ) from error


def describe_arrays(path: Path, root: str = "") -> dict[str, Stored]:
    """Return what the arrays are, by their paths below ``root``.

    Raises:
        TrimtabError: if the zarr package is not installed, a description is damaged, or one is lost
            of which chunks, or the store's consolidated metadata, are there.
    """
    values, _ = _apart(path, _described, root)
    return {name: Stored(tuple(shape), *rest) for name, (shape, *rest) in sorted(values.items())}


def read_arrays(path: Path, names: Sequence[str], root: str = "") -> Mapping[str, npt.NDArray[Any]]:
    """Return arrays of numbers by their paths below ``root``.

    Raises:
        TrimtabError: if the zarr package is not installed, or an array is missing, damaged, none of
            numbers, or larger than its files can hold.
    """
    arrays: Mapping[str, npt.NDArray[Any]] = _apart(path, _contents, root, list(names))[1]
    return arrays


def _apart(path: Path, read: Any, *arguments: Any) -> Any:
    if importlib.util.find_spec("zarr") is None:
        raise TrimtabError(f"dataset {path}: Zarr needs its package: pip install 'trimtab[zarr]'")
    for file in path.rglob("*"):
        if not file.is_file() and not file.is_dir():  # a pipe would be waited for
            raise TrimtabError(f"dataset {file}: it is no regular file; {_ADVICE}")
    return read_apart(path, read, str(path), *arguments)


@contextmanager
def _described(path: str, root: str) -> Iterator[Read]:
    place, prefix = Path(path), f"{root}/" if root else ""
    files = [name.removeprefix(prefix) for name in array_files(place) if name.startswith(prefix)]
    found: dict[str, Stored] = {}
    with _opened(place, root) as open_array:
        for file in files:
            name, _, last = file.rpartition("/")
            if name and last in _DESCRIPTIONS:
                with _guarded(path, name):
                    described = _document(place, prefix + file)
                    if described.get("node_type") != "group":
                        found[name] = _stored(open_array, name, described)
    chunks = [file for file in files if "/" in file and PurePosixPath(file).name not in _NO_CHUNKS]
    wanted = [f"{file}/" for file in chunks] + _noted(place, prefix, files)
    for name in sorted(wanted):
        if not any(name.startswith(f"{array}/") for array in found):
            lost = re.sub(r"(/c)?(/[\d.]+)?/$", "", name)
            raise TrimtabError(
                f"dataset {path}, key '{lost}': its description is missing; {_ADVICE}"
            )
    yield found, []


def _noted(path: Path, prefix: str, files: Sequence[str]) -> list[str]:
    """Return the arrays that the consolidated metadata of version 2 describe, with a slash."""
    if _CONSOLIDATED not in files:
        return []
    with _guarded(str(path), _CONSOLIDATED):
        noted = _document(path, prefix + _CONSOLIDATED)["metadata"]
    return [file.removesuffix(".zarray") for file in noted if file.endswith("/.zarray")]


def _document(path: Path, file: str) -> Any:
    if path.is_dir():
        return json.loads((path / file).read_bytes())
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(file))


def _stored(
    open_array: Callable[[str], zarr.Array[Any]], name: str, described: Mapping[str, Any]
) -> Stored:
    kind = str(described.get("dtype") or described.get("data_type"))
    if not re.match(r"[<>|][biuf]\d|bool|u?int|float", kind):  # a text, say, which may be unknown
        return Stored((), "", 0, 0)
    array = open_array(name)
    stored = array.nbytes_stored()
    if array.nbytes > _MOST_COMPRESSION * stored + _MOST_EMPTY_BYTES:
        raise ValueError(f"shape {array.shape} needs {array.nbytes} bytes, {stored} are stored")
    chunks = array.nchunks
    return Stored(array.shape, array.dtype.kind, chunks, chunks - array.nchunks_initialized)


@contextmanager
def _contents(path: str, root: str, names: Sequence[str]) -> Iterator[Read]:
    def arrays(
        open_array: Callable[[str], zarr.Array[Any]],
    ) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for name in names:
            with _guarded(path, name):
                array = open_array(name)
                if array.dtype.kind not in "biuf":
                    raise ValueError(f"type {array.dtype} is not a number")
                codecs = {
                    getattr(c, "codec_id", "zlib") for c in (*array.filters, *array.compressors)
                }
                if other := codecs - _CODECS:
                    raise ValueError(
                        f"compressed with {other.pop()!r:.40}, which is not undone here"
                    )
                read = np.asarray(array[...])
            yield name, read

    with _opened(Path(path), root) as open_array:
        yield {}, arrays(open_array)


@contextmanager
def _opened(path: Path, root: str) -> Iterator[Callable[[str], zarr.Array[Any]]]:
    """Yield what opens an array by its path below ``root``."""
    import zarr
    import zarr.storage

    store: zarr.storage.LocalStore | zarr.storage.ZipStore
    with _guarded(str(path)):
        if path.is_dir():
            store = zarr.storage.LocalStore(path, read_only=True)
        else:
            store = zarr.storage.ZipStore(path, mode="r")
    try:
        yield lambda name: zarr.open_array(store, path=f"{root}/{name}".lstrip("/"), mode="r")
    finally:
        with suppress(AttributeError):  # a zip that could not be opened has nothing to close
            store.close()


@contextmanager
def _guarded(path: str, name: str = "") -> Iterator[None]:
    """Turn what the package raises of a damaged store into one line."""
    try:
        yield
    except TrimtabError:
        raise
    except Exception as error:
        fault = f"{type(error).__name__}: {error}".splitlines()[0]
        key = f", key '{name}'" if name else ""
        raise TrimtabError(f"dataset {path}{key}: not readable ({fault}); {_ADVICE}") from error
