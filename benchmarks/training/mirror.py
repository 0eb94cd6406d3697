"""Copies of folders at an address, whole or as they were before.

A copy is files that are never written over, named by their content, and a manifest with the size
and SHA-256 of each, which is replaced last. So half of an upload is never taken for a whole one,
and a reader sees what was there before a writer began. What lies here is made to be what the
manifest says; each file is checked when it comes down.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from trimtab.benchmarks.training.rundir import LOCK, LOCK_FILE
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file

__all__ = ["MANIFEST", "Copy", "Entry", "Files", "Known", "BlobStore", "entries_of", "is_light"]

MANIFEST = "manifest.json"
_CHECKPOINT = "checkpoint/"
_HEAVY = ".safetensors"
_TRACKERS = "trackers"
_TRIES = 5
_BETWEEN = 0.2
"""Seconds longer that each try waits than the one before."""


@dataclass(frozen=True)
class Entry:
    """A file of a copy: its size in bytes, and the SHA-256 of its content."""

    size: int
    sha256: str


Files = Mapping[str, Entry]
"""Files by their names in the folder, with ``/`` between parts."""


Known = dict[str, tuple[tuple[int, int, int], Entry]]
"""What was found in files, and when and as what they were written that it was found in."""


class BlobStore(Protocol):
    """Where copies lie."""

    def files(self, where: str) -> Files | None:
        """Return what the copy called ``where`` holds; None where there is none."""

    def bring(self, where: str, name: str, entry: Entry, path: Path, most: int | None) -> None:
        """Write a file of a copy, or its first bytes, to ``path``.

        Raises:
            FileNotFoundError: if it is not there (any more).
        """

    def take(self, where: str, folder: Path, old: Files, new: Files) -> None:
        """Make a copy what the files of a folder are: ``new`` in place of ``old``."""


class Copy:
    """The copy of one folder.

    Args:
        shelf: where it lies.
        where: its name there.
        folder: the folder, here.
    """

    def __init__(self, shelf: BlobStore, where: str, folder: Path) -> None:
        self._shelf, self._where, self._folder = shelf, where, folder
        self._known: Known = {}

    def files(self) -> Files | None:
        """Return what the copy holds; None where there is none."""
        return self._shelf.files(self._where)

    def fetch(self, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """Make the folder what the copy is; return whether there is a copy.

        A file here that the copy lacks goes: what was not sent did not happen.

        Args:
            wanted: which files, by their names; of the others, arrays of checkpoints come without
                their content, so that the folder can be looked at, and the rest does not come.

        Raises:
            TrimtabError: if the copy cannot be read, or does not have the content that it should.
        """
        before: Files | None = None
        for attempt in range(_TRIES):
            time.sleep(attempt * _BETWEEN)
            files = self._shelf.files(self._where)
            if files is None:
                self._clear({})
                return False
            try:
                self._clear(files)
                for name, entry in files.items():
                    self._bring(name, entry, whole=wanted(name))
            except FileNotFoundError:
                if files == before:  # twice the same: no newer one has taken its place
                    break
                before = files
                continue
            return True
        else:
            raise TrimtabError(
                f"{self._where}: its copy was replaced by a newer one each time that it was read; "
                "try again, or wait for the run to end"
            )
        raise TrimtabError(
            f"{self._where}: its copy lacks files that its {MANIFEST} names, and cannot be mended: "
            "remove this folder there, and carry the run out again"
        )

    def send(self) -> None:
        """Make the copy what the folder is.

        Raises:
            TrimtabError: if it cannot be written.
        """
        files = entries_of(self._folder, self._known)
        self._shelf.take(self._where, self._folder, self._shelf.files(self._where) or {}, files)

    def _clear(self, files: Files) -> None:
        for name in _names(self._folder):
            if name not in files:
                (self._folder / name).unlink(missing_ok=True)
        for folder, _, _ in os.walk(self._folder, topdown=False):
            if folder != str(self._folder) and not os.listdir(folder):
                os.rmdir(folder)

    def _bring(self, name: str, entry: Entry, *, whole: bool) -> None:
        path = self._folder / name
        if whole and path.is_file() and _entry_of(name, path, self._known) == entry:
            return
        if not whole and not name.startswith(_CHECKPOINT):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.tmp")
        if whole:
            self._shelf.bring(self._where, name, entry, beside, None)
            found = Entry(beside.stat().st_size, sha256_file(beside))
            if found != entry:
                raise TrimtabError(
                    f"{self._where}/{name}: what came has {found.size} bytes and SHA-256 "
                    f"{found.sha256[:12]}, and not {entry.size} and {entry.sha256[:12]}; run the "
                    "same command again, or remove the run there"
                )
        else:
            self._outline(name, entry, beside)
        beside.replace(path)

    def _outline(self, name: str, entry: Entry, path: Path) -> None:
        """Write a file of that size with nothing in it but what says which arrays there are."""
        path.write_bytes(b"")
        if name.endswith(_HEAVY):
            self._shelf.bring(self._where, name, entry, path, 8)
            length = int.from_bytes(path.read_bytes(), "little")
            self._shelf.bring(self._where, name, entry, path, 8 + min(length, entry.size))
        os.truncate(path, entry.size)


def is_light(name: str) -> bool:
    """Return whether a file of a run is one that tables, lists and films are made of."""
    return not name.startswith(_CHECKPOINT) or name.endswith(".json")


def entries_of(folder: Path, known: Known | None = None) -> dict[str, Entry]:
    """Return the files of a folder.

    Args:
        folder: without what belongs to this machine: locks, what is half written, live curves.
        known: what was found earlier.
    """
    cache: Known = {} if known is None else known
    return {name: _entry_of(name, folder / name, cache) for name in _names(folder)}


def _entry_of(name: str, path: Path, known: Known) -> Entry:
    """Return the size and SHA-256 of a file, which is read only if it was written since."""
    status = path.stat()
    mark = status.st_ino, status.st_mtime_ns, status.st_size
    if name not in known or known[name][0] != mark:
        known[name] = mark, Entry(status.st_size, sha256_file(path))
    return known[name][1]


def _names(folder: Path) -> list[str]:
    found = []
    for at, folders, files in os.walk(folder):
        own = {_TRACKERS} if Path(at) == folder else set()  # written to while they are sent
        folders[:] = sorted(one for one in folders if not _is_passing(one) and one not in own)
        found += [
            Path(at, file).relative_to(folder).as_posix()
            for file in sorted(files)
            if not _is_passing(file) and file not in (LOCK, LOCK_FILE)
        ]
    return found


def _is_passing(file: str) -> bool:
    """Return whether a file or folder is half written, under a name that it will not keep."""
    return file.startswith(".") and file.endswith(".tmp")


def text_of_files(files: Files) -> bytes:
    """Return a manifest as it is written."""
    document = {"version": 1, "files": {name: asdict(entry) for name, entry in files.items()}}
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def files_of_text(text: bytes, where: str) -> Files:
    """Return what a manifest says.

    Raises:
        TrimtabError: if it is none, or names a file outside of its folder.
    """
    try:
        document: Any = json.loads(text)
        files = {
            str(name): Entry(int(entry["size"]), str(entry["sha256"]))
            for name, entry in document["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TrimtabError(
            f"{where}/{MANIFEST} is no manifest of a run ({type(error).__name__}); remove the run"
            " there, or choose another out="
        ) from error
    for name, entry in files.items():
        inside = not {"", ".", ".."} & {*name.split("/")} and not set(name) & {"\\", "\0"}
        if not inside or entry.size < 0 or not _is_sha(entry):
            raise TrimtabError(f"{where}/{MANIFEST} names the file {name[:80]!r}, which is none")
    return files


def _is_sha(entry: Entry) -> bool:
    return len(entry.sha256) == 64 and set(entry.sha256) <= set("0123456789abcdef")
