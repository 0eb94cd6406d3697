"""Files at an address, such as ``s3://bucket/runs``: by pyarrow's file systems, and no path.

An object appears there whole or not at all, and that is all that is asked of a store; nothing there
is renamed but by the one call that replaces a small file.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pa_fs

from trimtab.errors import TrimtabError

__all__ = ["Store", "beside", "child_of", "is_address", "open_store"]

_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://", re.IGNORECASE)
_KNOWN = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_OF_HADOOP = ("hdfs", "viewfs")
_OF_GOOGLE = ("gs://", "gcs://")
_CHUNK = 1 << 22
_SUCH = "write an address as s3://bucket/runs or file:///shared/runs"


def is_address(text: object) -> bool:
    """Return whether a setting names an address and no path."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def child_of(address: str, *parts: str) -> str:
    """Return the address of what lies below another one; what follows ``?`` stays at its end."""
    place, mark, options = address.partition("?")
    return "/".join([place.rstrip("/"), *parts]) + mark + options


def beside(place: str, name: str) -> str:
    """Return what lies beside a place, an address or a path, under another name."""
    if not is_address(place):
        return str(Path(place).parent / name)
    path, mark, options = place.partition("?")
    return f"{path.rstrip('/').rpartition('/')[0]}/{name}{mark}{options}"


class Store:
    """Files by name below an address.

    Args:
        files: file system of pyarrow's.
        root: folder in it.
        address: what it was asked for by.
        setting: what errors call the address by.
    """

    def __init__(self, files: pa_fs.FileSystem, root: str, address: str, setting: str) -> None:
        self._files, self._root, self.address = files, root.rstrip("/"), address
        self._told = f"{setting}={address}"
        self._made: set[str] = set()

    def read(self, name: str) -> bytes | None:
        """Return what is in a small file; None where there is none."""
        try:
            with self._read(), self._files.open_input_stream(self._path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a small file, whole or not at all."""
        beside = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        with self._written():
            self._make_folder(name)
            with self._files.open_output_stream(self._path(beside)) as file:
                file.write(data)
            self._files.move(self._path(beside), self._path(name))

    def put(self, name: str, path: Path) -> str:
        """Send a file; return the SHA-256 of what was sent."""
        digest = hashlib.sha256()
        with self._written():
            self._make_folder(name)
            with (
                path.open("rb") as file,
                self._files.open_output_stream(self._path(name)) as there,
            ):
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    there.write(chunk)
        return digest.hexdigest()

    def get(self, name: str, path: Path, most: int | None = None) -> str:
        """Fetch a file, or its first bytes; return the SHA-256 of what has come.

        Raises:
            FileNotFoundError: if it is not there.
        """
        digest = hashlib.sha256()
        with (
            self._read(),
            self._files.open_input_stream(self._path(name)) as there,
            path.open("wb") as file,
        ):
            while (most is None or most > 0) and (
                chunk := bytes(there.read(_CHUNK if most is None else min(_CHUNK, most)))
            ):
                digest.update(chunk)
                file.write(chunk)
                most = None if most is None else most - len(chunk)
        return digest.hexdigest()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._written(), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self._path(name))

    def find(self, name: str) -> list[str]:
        """Return the folders, as names below the address, that hold a file of a name; sorted."""
        paths = [path for path in self.names("") if path.rpartition("/")[2] == name]
        return sorted(path.rpartition("/")[0] for path in paths)

    def names(self, folder: str) -> list[str]:
        """Return all files in a folder and below it, as names below that folder."""
        root = f"{self._root}/{folder}".rstrip("/")
        with self._written():
            below = pa_fs.FileSelector(root, allow_not_found=True, recursive=True)
            found = self._files.get_file_info(below)
        return [info.path[len(root) :].strip("/") for info in found if info.is_file]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folder(self, name: str) -> None:
        folder = self._path(name).rpartition("/")[0]
        if folder not in self._made:
            self._files.create_dir(folder, recursive=True)
            self._made.add(folder)

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that it is; None for a store elsewhere."""
        return Path(self._root) if isinstance(self._files, pa_fs.LocalFileSystem) else None

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Turn the refusal of a file system into one line; that a file is not there stays."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise self._refusal(error) from error

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Turn the refusal of a file system into one line."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> TrimtabError:
        line = " ".join(str(error).split())[:300]
        return TrimtabError(
            f"{self._told}: {line}; see that it can be reached and written to from here, or name "
            f"another place with {self._told.partition('=')[0]}=…"
        )


def open_store(address: str, setting: str) -> Store:
    """Return the store at an address.

    Args:
        address: such as ``s3://bucket/runs`` or ``file:///shared/runs``.
        setting: what errors call it.

    Raises:
        TrimtabError: if there is no such kind of address, or it cannot be reached.
    """
    told = f"{setting}={address}"
    found = _ADDRESS.match(address)
    if found is None or found[1].lower() not in _KNOWN:
        raise TrimtabError(f"{told}: an address begins with one of {'://, '.join(_KNOWN)}://")
    try:
        files, root = pa_fs.FileSystem.from_uri(_soon_given_up(address))
    except (OSError, ValueError, pa.ArrowException) as error:
        line = " ".join(str(error).split())[:150]
        invalid = isinstance(error, ValueError)  # the address itself, and not what is there
        more = f"{_SUCH}, a space in it as %20" if invalid else _needed(found[1].lower())
        raise TrimtabError(f"{told}: {line}; {more}") from error
    if not root.strip("/"):
        raise TrimtabError(f"{told}: name a folder there; {_SUCH}")
    return Store(files, root, address, setting)


def _soon_given_up(address: str) -> str:
    """Return an address where Google's library tries for as long as others do, and not for minutes.

    The caller, such as a run that copies its state, tries again after a while.
    """
    place, _, options = address.partition("?")
    if not place.lower().startswith(_OF_GOOGLE) or "retry_limit_seconds=" in options:
        return address
    return f"{place}?{options}{'&' if options else ''}retry_limit_seconds=10"


def _needed(kind: str) -> str:
    """Return what has to be there for a kind of address, where it cannot be opened."""
    if kind in _OF_HADOOP:
        return (
            f"{kind}:// needs Java and Hadoop on this machine: install them and set JAVA_HOME and "
            "HADOOP_HOME, or name another place"
        )
    return "see that it can be reached from here, or name another place"
