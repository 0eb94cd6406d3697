"""Where the folder of a run is kept: on this machine, or at an address such as ``s3://bucket/runs``.

A run at an address is carried out in a scratch folder of its machine. What lies at the address
comes down first, and the folder is copied there with every checkpoint and at the end. So a run that
was killed on one machine continues on another one, from what it sent last.

A copy is files that are never written over, named by their content, and a manifest with the size
and SHA-256 of each, which is replaced last. So half of an upload is never taken for a whole one.
Nothing keeps two processes from one run at an address: both do the work, and the later copy
stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.folder import CHECKPOINT, POLICIES
from trimtab.benchmarks.training.rundir import LOCK, LOCK_FILE, check_writable
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file

__all__ = [
    "MANIFEST",
    "SCRATCH",
    "Copy",
    "SendCopies",
    "Store",
    "beside",
    "child_of",
    "copied",
    "is_address",
    "is_light",
    "localised",
    "open_store",
    "visible",
]

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SCRATCH = "TRIMTAB_SCRATCH"
"""Environment variable: where runs are carried out whose folders belong to an address."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://", re.IGNORECASE)
_KNOWN = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_SUCH = "write an address as s3://bucket/runs or file:///shared/runs"
_TRACKERS = "trackers"  # written to while they would be sent
_TRIES = 3
_PAUSE = 2.0  # seconds between two of them


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


@dataclass(frozen=True)
class Entry:
    """A file of a copy: its size in bytes, and the SHA-256 of its content."""

    size: int
    sha256: str


Files = Mapping[str, Entry]
"""Files by their names in the folder, with ``/`` between parts."""


class Store:
    """Files by name below an address.

    Args:
        files: file system of pyarrow's.
        root: folder in it.
        told: the address, as errors call it.
    """

    def __init__(self, files: pa_fs.FileSystem, root: str, told: str) -> None:
        self._files, self._root, self.told = files, root.rstrip("/"), told

    def read(self, name: str) -> bytes | None:
        """Return what is in a small file; None where there is none."""
        try:
            with (
                self._one_line(reading=True),
                self._files.open_input_stream(self._path(name)) as file,
            ):
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a small file, whole or not at all."""
        beside = self._path(f"{name}.{uuid.uuid4().hex[:8]}.tmp")
        with self._one_line():
            self._files.create_dir(beside.rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(beside) as file:
                file.write(data)
            self._files.move(beside, self._path(name))

    def send(self, path: Path, name: str) -> None:
        """Copy a file of this machine to the store."""
        with self._one_line():
            self._files.create_dir(self._path(name).rpartition("/")[0], recursive=True)
            pa_fs.copy_files(
                str(path), self._path(name),
                source_filesystem=pa_fs.LocalFileSystem(), destination_filesystem=self._files,
            )  # fmt: skip

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file of the store to this machine.

        Raises:
            FileNotFoundError: if it is not there.
        """
        with self._one_line(reading=True):
            pa_fs.copy_files(
                self._path(name), str(path),
                source_filesystem=self._files, destination_filesystem=pa_fs.LocalFileSystem(),
            )  # fmt: skip

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._one_line(reading=True):
            self._files.delete_file(self._path(name))

    def names(self, folder: str = "") -> list[str]:
        """Return all files in a folder and below it, as names below that folder."""
        root = f"{self._root}/{folder}".rstrip("/")
        with self._one_line():
            below = pa_fs.FileSelector(root, allow_not_found=True, recursive=True)
            found = self._files.get_file_info(below)
        return [info.path[len(root) :].strip("/") for info in found if info.is_file]

    def copies(self) -> list[str]:
        """Return the names of all folders of which there is a copy."""
        return sorted(
            name.rpartition("/")[0] for name in self.names() if name.rpartition("/")[2] == MANIFEST
        )

    def not_a_copy(self, name: str) -> str:
        """Return what to do with the files of an ordinary folder; empty where there are none."""
        if not self.names(name):
            return ""
        why = "files are there that were not written to it as to an address (by out=)"
        if isinstance(self._files, pa_fs.LocalFileSystem):
            return f"{why}; give the plain path: {shlex.quote(str(Path(self._root, name)))}"
        return f"{why}; copy the folder to this machine and give its path"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _one_line(self, *, reading: bool = False) -> Iterator[None]:
        """Say the refusal of a file system in one line; for a reader, a missing file stays one."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if reading and isinstance(error, FileNotFoundError):
                raise
            line = " ".join(str(error).split())[:300]
            raise TrimtabError(
                f"{self.told}: {line}; see that it can be reached and written to from here, or "
                f"name another place with {self.told.partition('=')[0]}=…"
            ) from error


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
        files, root = pa_fs.FileSystem.from_uri(address)
    except (OSError, ValueError, pa.ArrowException) as error:
        line = " ".join(str(error).split())[:150]
        invalid = isinstance(error, ValueError)  # the address itself, and not what is there
        more = f"{_SUCH}, a space in it as %20" if invalid else "see that it can be reached"
        raise TrimtabError(f"{told}: {line}; {more}") from error
    if not root.strip("/"):
        raise TrimtabError(f"{told}: name a folder there; {_SUCH}")
    return Store(files, root, told)


class Copy:
    """The copy of one folder in a store.

    Args:
        store: where it lies.
        where: its name there.
        folder: the folder, here.
    """

    def __init__(self, store: Store, where: str, folder: Path) -> None:
        self._store, self._where, self._folder = store, where, folder
        self._known: dict[str, tuple[tuple[int, int, int], Entry]] = {}

    def files(self) -> Files | None:
        """Return what the copy holds; None where there is none."""
        text = self._store.read(f"{self._where}/{MANIFEST}")
        return None if text is None else _files_of(text, f"{self._store.told}, {self._where}")

    def fetch(self, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """Make the folder what the copy is; return whether there is a copy.

        A file here that the copy lacks goes: what was not sent did not happen.

        Args:
            wanted: which files come, by their names.

        Raises:
            TrimtabError: if the copy cannot be read, or does not have the content that it should.
        """
        for left in reversed(range(_TRIES)):
            files = self.files()
            self._remove_others(files or {})
            if files is None:
                return False
            try:
                for name in filter(wanted, files):
                    self._bring(name, files[name])
                return True
            except FileNotFoundError as error:  # a newer copy may have taken its place
                if not left:
                    raise TrimtabError(
                        f"{self._store.told}, {self._where}: lacks files that its {MANIFEST} "
                        "names; try again, or remove this folder there and carry the run out again"
                    ) from error
                time.sleep(_PAUSE)
        return False

    def send(self, tries: int = 1) -> None:
        """Make the copy what the folder is.

        Args:
            tries: how often it is tried, with a pause between.

        Raises:
            TrimtabError: if it cannot be written.
        """
        for left in reversed(range(tries)):
            try:
                self._send()
                return
            except TrimtabError as error:
                if not left:
                    raise
                logger.warning("%s; it is tried again", error)
                time.sleep(_PAUSE)

    def _send(self) -> None:
        old = {_object(name, entry) for name, entry in (self.files() or {}).items()}
        new = {name: self._entry(name) for name in _names(self._folder)}
        objects = {_object(name, entry): name for name, entry in new.items()}
        for stored in objects.keys() - old:
            self._store.send(self._folder / objects[stored], f"{self._where}/{stored}")
        document = {"version": 1, "files": {name: asdict(entry) for name, entry in new.items()}}
        text = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
        self._store.write(f"{self._where}/{MANIFEST}", text)
        for stored in sorted(old - objects.keys()):
            self._store.remove(f"{self._where}/{stored}")

    def _remove_others(self, files: Files) -> None:
        for name in _names(self._folder):
            if name not in files:
                (self._folder / name).unlink()
        for folder, _, _ in os.walk(self._folder, topdown=False):
            if folder != str(self._folder) and not os.listdir(folder):
                os.rmdir(folder)

    def _bring(self, name: str, entry: Entry) -> None:
        path = self._folder / name
        if path.is_file() and self._entry(name) == entry:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.tmp")
        self._store.fetch(f"{self._where}/{_object(name, entry)}", beside)
        if Entry(beside.stat().st_size, sha256_file(beside)) != entry:
            raise TrimtabError(
                f"{self._store.told}, {self._where}/{name}: what came is not what its {MANIFEST} "
                "says; run the same command again, or remove the run there"
            )
        beside.replace(path)

    def _entry(self, name: str) -> Entry:
        """Return the size and SHA-256 of a file, which is read only if it was written since."""
        status = (self._folder / name).stat()
        mark = status.st_ino, status.st_mtime_ns, status.st_size
        if name not in self._known or self._known[name][0] != mark:
            digest = sha256_file(self._folder / name)
            self._known[name] = mark, Entry(status.st_size, digest)
        return self._known[name][1]


class SendCopies(Callback):
    """Sends a run's folder to its address with every checkpoint."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def on_checkpoint(self, now: RunProgress) -> None:
        """Send it; where that fails, the run continues, and the next checkpoint is sent with it."""
        try:
            self._copy.send()
        except TrimtabError as error:
            logger.warning("%s; it is sent again with the next checkpoint", error)


def localised(config: RunConfig) -> tuple[RunConfig, Store | None]:
    """Return the settings with paths of this machine in place of addresses, and the run's store.

    A base at an address comes down.

    Raises:
        TrimtabError: if an address is wrong, or nothing is there.
    """
    store, changes = None, {}
    if is_address(config["out"]):
        store = open_store(config["out"], "out")
        changes["out"] = str(scratch_of(config["out"]))
    if is_address(config["base"]):
        changes["base"] = str(copied(config["base"], "base"))
    asked = {key: config[key] for key in changes}
    settings = {**config.settings, **changes}
    return dataclasses.replace(config, settings=settings, asked={**asked, **config.asked}), store


def scratch_of(address: str) -> Path:
    """Return the folder of this machine for what belongs at an address.

    Raises:
        TrimtabError: if it cannot be written, or another user has made the one for this user.
    """
    chosen = os.environ.get(SCRATCH)
    root = Path(chosen or Path(tempfile.gettempdir()) / f"trimtab-{os.getuid()}")
    if chosen:
        check_writable(root, SCRATCH)
    else:
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            others = root.is_symlink() or root.stat().st_uid != os.getuid()
        except OSError as error:
            raise TrimtabError(
                f"cannot make {root}: {error.strerror}; name a folder with {SCRATCH}=…"
            ) from error
        if others:
            raise TrimtabError(f"{root} is another user's; name a folder with {SCRATCH}=…")
    return root / hashlib.sha256(address.encode()).hexdigest()[:16]


def copied(address: str, setting: str) -> Path:
    """Bring a finished run or a bundle at an address down, without its checkpoints.

    Args:
        address: of its folder.
        setting: what errors call it.

    Returns:
        Its folder on this machine.

    Raises:
        TrimtabError: if nothing is there.
    """
    place, mark, options = address.partition("?")
    above, _, name = place.rstrip("/").rpartition("/")
    store = open_store(above + mark + options, setting)
    folder = scratch_of(address) / name
    folder.mkdir(parents=True, exist_ok=True)
    if not Copy(store, name, folder).fetch(is_light):
        shutil.rmtree(folder, ignore_errors=True)
        hint = store.not_a_copy(name) or f"there is no run; see trimtab runs {above}"
        raise TrimtabError(f"{setting}={address}: {hint}")
    return folder


@contextmanager
def visible(place: str, setting: str) -> Iterator[Path]:
    """Yield a folder that looks as the one at a place: the place itself, or what is there of small.

    The copy of an address comes without checkpoints, and is gone afterwards.

    Raises:
        TrimtabError: if it is an address that cannot be reached, or no run is there.
    """
    if not is_address(place):
        yield Path(place)
        return
    store = open_store(place, setting)
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        found = store.copies()
        for where in found:
            folder = Path(scratch) / where
            folder.mkdir(parents=True, exist_ok=True)
            try:
                Copy(store, where, folder).fetch(
                    lambda file: is_light(file) and not file.startswith(f"{POLICIES}/")
                )
            except TrimtabError as error:
                if len(found) == 1:
                    raise
                logger.warning("left out: %s", error)
                shutil.rmtree(folder)
        if not found:
            hint = store.not_a_copy("") or "there is no run"
            raise TrimtabError(f"{setting}={place}: {hint}")
        yield Path(scratch)


def is_light(name: str) -> bool:
    """Return whether a file of a run is one that tables, lists and films are made of."""
    return not name.startswith(f"{CHECKPOINT}/")


def _object(name: str, entry: Entry) -> str:
    return f"{name}.{entry.sha256[:16]}"


def _names(folder: Path) -> list[str]:
    """Return the files of a folder but for what belongs to this machine: locks, live curves."""
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        half_written = any(part.startswith(".") and part.endswith(".tmp") for part in parts)
        own = parts[0] in (_TRACKERS, LOCK, LOCK_FILE)
        if path.is_file() and not half_written and not own:
            found.append("/".join(parts))
    return found


def _files_of(text: bytes, where: str) -> Files:
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
        outside = {"", ".", ".."} & {*name.split("/")} or set(name) & {"\\", "\0"}
        if outside or entry.size < 0 or not re.fullmatch("[0-9a-f]{64}", entry.sha256):
            raise TrimtabError(f"{where}/{MANIFEST} names the file {name[:80]!r}, which is none")
    return files
