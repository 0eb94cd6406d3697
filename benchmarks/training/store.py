"""Where the folder of a run is kept: on this machine, or at an address such as ``s3://bucket/runs``.

A run at an address is trained in a scratch folder of the local machine. Its copy is downloaded
first, and uploaded with every checkpoint and at the end, so that a run that was killed on one
machine resumes on another one from its last upload.

A copy is a set of immutable files, each with a hash of its content in its name, and a manifest of
their sizes and SHA-256. An upload replaces the manifest last, so that an incomplete upload is never
read. Addresses have no locks: two processes may train the same run, and the later upload wins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
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
from trimtab.benchmarks.training.locking import LEASE_FILE, LOCK
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file, unwritable
from trimtab.policies.serving.protocol import is_server

__all__ = [
    "MANIFEST",
    "SCRATCH",
    "RemoteRun",
    "UploadAtCheckpoints",
    "BlobStore",
    "sibling",
    "join_address",
    "download",
    "is_address",
    "is_light",
    "localise",
    "open_store",
    "local_view",
]

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SCRATCH = "TRIMTAB_SCRATCH"
"""Environment variable: the folder in which runs at an address are trained."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://", re.IGNORECASE)
_KNOWN = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_ADVICE = "write an address as s3://bucket/runs or file:///shared/runs"
_TRACKERS = "trackers"  # their files change during an upload
_TRIES = 3  # of a download that a newer upload disturbs
_PAUSE = 2.0  # seconds between two of them


def is_address(text: object) -> bool:
    """Return whether a setting is an address, not a path."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def join_address(address: str, *parts: str) -> str:
    """Return an address with more parts of a path; options after ``?`` stay last."""
    place, mark, options = address.partition("?")
    return "/".join([place.rstrip("/"), *parts]) + mark + options


def sibling(place: str, name: str) -> str:
    """Return the address or path of ``name`` in the parent of ``place``."""
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
"""Entries by the file's path in the folder, with ``/`` as separator."""


class BlobStore:
    """A store of files below an address.

    Args:
        files: a file system of pyarrow.
        root: the store's folder in it.
        label: setting and address, as errors name them.
    """

    def __init__(self, files: pa_fs.FileSystem, root: str, label: str) -> None:
        self._files, self._root, self.label = files, root.rstrip("/"), label

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        try:
            with (
                self._errors_in_a_line(allow_missing=True),
                self._files.open_input_stream(self._path(name)) as file,
            ):
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a small file atomically."""
        temporary = self._path(f"{name}.{uuid.uuid4().hex[:8]}.tmp")
        with self._errors_in_a_line():
            self._files.create_dir(temporary.rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(temporary) as file:
                file.write(data)
            self._files.move(temporary, self._path(name))

    def upload(self, path: Path, name: str) -> None:
        """Upload a local file."""
        with self._errors_in_a_line():
            self._files.create_dir(self._path(name).rpartition("/")[0], recursive=True)
            pa_fs.copy_files(
                str(path), self._path(name),
                source_filesystem=pa_fs.LocalFileSystem(), destination_filesystem=self._files,
            )  # fmt: skip

    def download(self, name: str, path: Path) -> None:
        """Download a file.

        Raises:
            FileNotFoundError: if it is not there.
        """
        with self._errors_in_a_line(allow_missing=True):
            pa_fs.copy_files(
                self._path(name), str(path),
                source_filesystem=self._files, destination_filesystem=pa_fs.LocalFileSystem(),
            )  # fmt: skip

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._errors_in_a_line(allow_missing=True):
            self._files.delete_file(self._path(name))

    def names(self, folder: str = "") -> list[str]:
        """Return the paths of all files below a folder, relative to it."""
        root = f"{self._root}/{folder}".rstrip("/")
        with self._errors_in_a_line():
            below = pa_fs.FileSelector(root, allow_not_found=True, recursive=True)
            found = self._files.get_file_info(below)
        return [info.path[len(root) :].strip("/") for info in found if info.is_file]

    def copies(self) -> list[str]:
        """Return the names of all folders that have a manifest."""
        return sorted(
            name.rpartition("/")[0] for name in self.names() if name.rpartition("/")[2] == MANIFEST
        )

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self._root, name.strip("/")) if part)

    @contextmanager
    def _errors_in_a_line(self, *, allow_missing: bool = False) -> Iterator[None]:
        """Raise errors of the file system as a TrimtabError, but for a missing file if allowed."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if allow_missing and isinstance(error, FileNotFoundError):
                raise
            line = " ".join(str(error).split())[:300]
            raise TrimtabError(
                f"{self.label}: {line}; see that it can be reached and written to from here, or "
                f"name another place with {self.label.partition('=')[0]}=…"
            ) from error


def open_store(address: str, setting: str) -> BlobStore:
    """Return the store at an address.

    Args:
        address: such as ``s3://bucket/runs`` or ``file:///shared/runs``.
        setting: its name in errors.

    Raises:
        TrimtabError: if the kind of address is unknown, or it cannot be reached.
    """
    label = f"{setting}={address}"
    found = _ADDRESS.match(address)
    if found is None or found[1].lower() not in _KNOWN:
        raise TrimtabError(f"{label}: an address begins with one of {'://, '.join(_KNOWN)}://")
    try:
        files, root = pa_fs.FileSystem.from_uri(address)
    except (OSError, ValueError, pa.ArrowException) as error:
        line = " ".join(str(error).split())[:150]
        invalid = isinstance(error, ValueError)  # the address itself, and not what is there
        more = f"{_ADVICE}, a space in it as %20" if invalid else "see that it can be reached"
        raise TrimtabError(f"{label}: {line}; {more}") from error
    if not root.strip("/"):
        raise TrimtabError(f"{label}: name a folder there; {_ADVICE}")
    return BlobStore(files, root, label)


class RemoteRun:
    """A run's folder in a store, as a copy of a local folder.

    Args:
        store: the store.
        name: the folder's name in the store.
        folder: the local folder.
    """

    def __init__(self, store: BlobStore, name: str, folder: Path) -> None:
        self._store, self._name, self._folder = store, name, folder
        # By a file's name: its inode, time and size, and the entry that was computed of them.
        self._hashed: dict[str, tuple[tuple[int, int, int], Entry]] = {}

    def files(self) -> Files | None:
        """Return the entries of the manifest, or None if there is no copy."""
        text = self._store.read(f"{self._name}/{MANIFEST}")
        return None if text is None else _parse_manifest(text, f"{self._store.label}, {self._name}")

    def download(self, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """Download the copy into the folder; return whether there is a copy.

        Local files that the copy lacks are removed: work that was not uploaded is discarded.

        Args:
            wanted: which files to download, by name.

        Raises:
            TrimtabError: if the copy cannot be read, or a file does not match the manifest.
        """
        for attempt in range(1, _TRIES + 1):
            files = self.files()
            self._remove_unlisted(files or {})
            if files is None:
                return False
            try:
                for name in filter(wanted, files):
                    self._download(name, files[name])
                return True
            except FileNotFoundError as error:  # a newer upload may have replaced it
                if attempt == _TRIES:
                    raise TrimtabError(
                        f"{self._store.label}, {self._name}: lacks files that its {MANIFEST} "
                        "names; try again, or remove this folder there and train the run again"
                    ) from error
                time.sleep(_PAUSE)
        return False

    def upload(self) -> None:
        """Upload new files, then the manifest, then remove what it no longer names.

        Raises:
            TrimtabError: if it cannot be written; pyarrow has tried again where that may help.
        """
        old = {_stored_name(name, entry) for name, entry in (self.files() or {}).items()}
        new = {name: self._entry(name) for name in _files_to_upload(self._folder)}
        objects = {_stored_name(name, entry): name for name, entry in new.items()}
        for stored in objects.keys() - old:
            self._store.upload(self._folder / objects[stored], f"{self._name}/{stored}")
        document = {"version": 1, "files": {name: asdict(entry) for name, entry in new.items()}}
        text = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
        self._store.write(f"{self._name}/{MANIFEST}", text)
        for stored in sorted(old - objects.keys()):
            self._store.remove(f"{self._name}/{stored}")

    def _remove_unlisted(self, files: Files) -> None:
        for name in _files_to_upload(self._folder):
            if name not in files:
                (self._folder / name).unlink()
        for folder, _, _ in os.walk(self._folder, topdown=False):
            if folder != str(self._folder) and not os.listdir(folder):
                os.rmdir(folder)

    def _download(self, name: str, entry: Entry) -> None:
        path = self._folder / name
        if path.is_file() and self._entry(name) == entry:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may download the same file.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            self._store.download(f"{self._name}/{_stored_name(name, entry)}", temporary)
            if Entry(temporary.stat().st_size, sha256_file(temporary)) != entry:
                raise TrimtabError(
                    f"{self._store.label}, {self._name}/{name}: the downloaded file does not match "
                    f"its {MANIFEST}; run the same command again, or remove the run there"
                )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _entry(self, name: str) -> Entry:
        """Return the size and SHA-256 of a file, hashed again only if it has changed."""
        status = (self._folder / name).stat()
        mark = status.st_ino, status.st_mtime_ns, status.st_size
        if name not in self._hashed or self._hashed[name][0] != mark:
            digest = sha256_file(self._folder / name)
            self._hashed[name] = mark, Entry(status.st_size, digest)
        return self._hashed[name][1]


class UploadAtCheckpoints(Callback):
    """Uploads a run's folder at every checkpoint."""

    def __init__(self, copy: RemoteRun) -> None:
        self._copy = copy

    def on_checkpoint(self, now: RunProgress) -> None:
        """Upload the folder; after a failure the next checkpoint tries again."""
        try:
            self._copy.upload()
        except TrimtabError as error:
            logger.warning("%s; the next checkpoint uploads it again", error)


def localise(config: RunConfig) -> tuple[RunConfig, BlobStore | None]:
    """Return the settings with local paths in place of addresses, and the store of ``out``.

    The store is None if ``out`` is a path. A base and oracles at addresses are downloaded, unless a
    server has them.

    Raises:
        TrimtabError: if an address is wrong, or nothing is there.
    """
    store = None
    changes: dict[str, Any] = {}
    if is_address(config["out"]):
        store = open_store(config["out"], "out")
        changes["out"] = str(scratch_of(config["out"]))
    if _is_stored(config["base"]):
        changes["base"] = str(download(config["base"], "base"))
    if any(map(_is_stored, oracles := config.settings.get("oracles") or ())):
        changes["oracles"] = [
            str(download(oracle, "oracles")) if _is_stored(oracle) else oracle for oracle in oracles
        ]
    # Settings may be localised twice: what was asked for first stays.
    asked = {key: config[key] for key in changes}
    settings = {**config.settings, **changes}
    return dataclasses.replace(config, settings=settings, asked={**asked, **config.asked}), store


def _is_stored(text: Any) -> bool:
    """Return whether a policy's files are at an address; a policy server sends none."""
    return is_address(text) and not is_server(text)


def scratch_of(address: str) -> Path:
    """Return the local folder for the files of an address.

    Raises:
        TrimtabError: if it cannot be written, or belongs to another user.
    """
    chosen = os.environ.get(SCRATCH)
    root = Path(chosen or Path(tempfile.gettempdir()) / f"trimtab-{os.getuid()}")
    if chosen:
        if reason := unwritable(root):
            raise TrimtabError(
                f"{SCRATCH}: {root} cannot be written: {reason}; set {SCRATCH} to a writable folder"
            )
    else:
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            belongs_to_another = root.is_symlink() or root.stat().st_uid != os.getuid()
        except OSError as error:
            raise TrimtabError(
                f"cannot make {root}: {error.strerror}; name a folder with {SCRATCH}=…"
            ) from error
        if belongs_to_another:
            raise TrimtabError(f"{root} is another user's; name a folder with {SCRATCH}=…")
    return root / hashlib.sha256(address.encode()).hexdigest()[:16]


def download(address: str, setting: str) -> Path:
    """Download a finished run or a bundle, without its checkpoints; return its folder.

    Args:
        address: the address of its folder.
        setting: its name in errors.

    Raises:
        TrimtabError: if nothing is there.
    """
    place, mark, options = address.partition("?")
    above, _, name = place.rstrip("/").rpartition("/")
    store = open_store(above + mark + options, setting)
    folder = scratch_of(address) / name
    folder.mkdir(parents=True, exist_ok=True)
    if not RemoteRun(store, name, folder).download(is_light):
        shutil.rmtree(folder, ignore_errors=True)
        raise TrimtabError(
            f"{setting}={address}: there is no run that out=<address> uploaded; see trimtab runs "
            f"{above}, or give a path on this machine"
        )
    return folder


@contextmanager
def local_view(place: str, setting: str) -> Iterator[Path]:
    """Yield a local folder with the runs of a place: the place itself, or a download.

    A download has no checkpoints and no saved policies of evaluations, and is deleted afterwards.

    Raises:
        TrimtabError: if it is an address that cannot be reached, or no run is there.
    """
    if not is_address(place):
        yield Path(place)
        return
    store = open_store(place, setting)
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        found, downloaded = store.copies(), 0
        for name in found:
            folder = Path(scratch) / name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                RemoteRun(store, name, folder).download(
                    lambda file: is_light(file) and not file.startswith(f"{POLICIES}/")
                )
            except TrimtabError as error:
                if not downloaded and name == found[-1]:
                    raise
                logger.warning("left out: %s", error)
                shutil.rmtree(folder)
                continue
            downloaded += 1
        if not found:
            raise TrimtabError(
                f"{setting}={place}: there is no run that out=<address> uploaded; give a path if "
                "it is a folder of this machine"
            )
        yield Path(scratch)


def is_light(name: str) -> bool:
    """Return whether a file of a run is outside its checkpoints."""
    return not name.startswith(f"{CHECKPOINT}/")


def _stored_name(name: str, entry: Entry) -> str:
    """Return the name of a file in the store: its own and a part of its hash."""
    return f"{name}.{entry.sha256[:16]}"


def _files_to_upload(folder: Path) -> list[str]:
    """Return a folder's files to upload: no locks, tracker files or half-written files."""
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        half_written = any(part.startswith(".") and part.endswith(".tmp") for part in parts)
        local_only = parts[0] in (_TRACKERS, LOCK, LEASE_FILE)
        if path.is_file() and not half_written and not local_only:
            found.append("/".join(parts))
    return found


def _parse_manifest(text: bytes, where: str) -> Files:
    """Return the entries of a manifest.

    Raises:
        TrimtabError: if it is malformed, or names a file outside its folder.
    """
    try:
        document: Any = json.loads(text)
        files = {
            str(name): Entry(int(entry["size"]), str(entry["sha256"]))
            for name, entry in document["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TrimtabError(
            f"{where}/{MANIFEST} is not a run's manifest ({type(error).__name__}); remove the run"
            " there, or choose another out="
        ) from error
    for name, entry in files.items():
        outside = {"", ".", ".."} & {*name.split("/")} or set(name) & {"\\", "\0"}
        if outside or entry.size < 0 or not re.fullmatch("[0-9a-f]{64}", entry.sha256):
            raise TrimtabError(f"{where}/{MANIFEST} has an invalid entry {name[:80]!r}")
    return files
