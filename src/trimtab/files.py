"""Files that are never half written: everything is written beside its place and then renamed."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError

_ENDS = 4096

MOST_JSON = 1 << 28
"""Bytes that a JSON file may have: more are read for minutes, and are no file of this package."""
MOST_BYTES = (1 << 31) - 1
"""Bytes that a file which is read whole may have; an ONNX graph cannot have more either."""


def _beside(path: Path, *, folder: bool = False) -> Path:
    """Return a name beside ``path``, to be renamed to it.

    Raises:
        TrimtabError: if something else is there: a rename would replace even a device.
    """
    if not path.name:
        raise TrimtabError(f"cannot write {path}: it is a folder; name a file or folder in it")
    if path.exists() and not (path.is_dir() if folder else path.is_file()):
        kind = "folder" if folder else "file"
        raise TrimtabError(f"cannot write {path}: what is there is no {kind}; name another place")
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


_LIMITS = {
    errno.EMFILE: ("NOFILE", "-n", "{} open files"),
    errno.EFBIG: ("FSIZE", "-f", "files of {} bytes"),
    errno.EAGAIN: ("NPROC", "-u", "{} processes and threads"),
    errno.ENOMEM: ("AS", "-v", "{} bytes of memory"),
}
"""What a limit of the shell refuses: its name, the word of ``ulimit``, and what it allows."""
_REFUSED = {
    "can't start new thread": errno.EAGAIN,
    "failed to map segment from shared object": errno.ENOMEM,
}
"""How libraries say it that raise no ``OSError``."""
_FORKS = ("_execute_child", "_launch", "spawnv_passfds")
"""Functions of the standard library that start processes."""


def limit_reached(error: BaseException) -> str | None:
    """Return which limit of the shell has ended something, and what to do; None if none has.

    Args:
        error: what was raised; what it came of is looked at, too.
    """
    if sys.platform == "win32":
        return None
    import resource

    cause: BaseException | None = error
    while cause is not None:
        refused = next((number for text, number in _REFUSED.items() if text in str(cause)), None)
        if isinstance(cause, OSError) and (cause.errno != errno.EAGAIN or _in_a_fork(cause)):
            refused = cause.errno
        known = _LIMITS.get(refused or 0)
        if isinstance(cause, MemoryError):
            known = _LIMITS[errno.ENOMEM]
        if known is not None:
            name, word, allows = known
            most = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
            if most != resource.RLIM_INFINITY:
                return (
                    f"the shell allows {allows.format(f'{most:,}')}; raise that with ulimit {word}"
                )
        cause = cause.__cause__
    return None


def _in_a_fork(error: OSError) -> bool:
    """Return whether a process was being started; a lock that is held is "unavailable" as well."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_name in _FORKS:
            return True
        at = at.tb_next
    return False


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal into the one line that a user needs."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = limit_reached(error) or "free the disk or choose a writable folder"
        raise TrimtabError(f"cannot write {path}: {reason}; {remedy}") from error


def atomic_write_bytes(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` whole or not at all.

    Raises:
        TrimtabError: if the file cannot be written (full disk, read-only folder).
    """
    path = Path(path)
    beside = _beside(path)
    with _explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, whole or not at all.

    Bytes of a file's name that are no UTF-8 stand in it as Python's escapes of them.
    """
    atomic_write_bytes(path, text.encode("utf-8", "backslashreplace"))


def atomic_write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, whole or not at all."""
    atomic_write_text(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write a file to; rename it to ``path`` if the block succeeds.

    Raises:
        TrimtabError: if the operating system refuses to write.
    """
    path = Path(path)
    beside = _beside(path)
    with _explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield beside
            to_disk(beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: if it is not there, or its file system does not do that.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchanged(one: Path, other: Path) -> bool:
    """Give two folders each other's name in one step, where the operating system can.

    Between two renames there would be a moment in which a killed process leaves no folder at all.
    """
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if exchange is None:
        return False
    here, both = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return int(exchange(here, os.fsencode(one), here, os.fsencode(other), both)) == 0


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``; rename it to ``path`` if the block succeeds.

    An existing ``path`` is replaced only then. On any error nothing is left behind.

    Raises:
        TrimtabError: if the operating system refuses to write.
    """
    path = Path(path)
    beside = _beside(path, folder=True)
    old = _beside(path, folder=True)
    with _explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            yield beside
            for file in beside.rglob("*"):
                if file.is_file():
                    to_disk(file)
            if path.exists() and not path.is_symlink() and _exchanged(beside, path):
                return
            if path.exists():
                os.replace(path, old)
            try:
                os.replace(beside, path)
            except OSError:
                if old.exists():  # nothing is lost: the old folder goes back to its place
                    os.replace(old, path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def check_own(path: Path, mark: str | None, setting: str) -> None:
    """Check that a file written to ``path`` would replace none but an earlier one of its kind.

    Args:
        path: where it is going to be written.
        mark: text that files of the kind have in their first or last 4 kB; None where there can
            be no earlier one.
        setting: what errors call the path.

    Raises:
        TrimtabError: if another file, or something that is no file, is there.
    """
    if not os.path.lexists(path):
        return
    if mark is not None and path.is_file():
        with path.open("rb") as file:
            start = file.read(_ENDS)
            file.seek(max(0, path.stat().st_size - _ENDS))
            if mark.encode() in start or mark.encode() in file.read(_ENDS):
                return
    raise TrimtabError(
        f"{setting}={path}: something is there that this command has not made; name another file, "
        "or remove it"
    )


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return all bytes of a file: what reads a user's file whole reads it by this.

    A named pipe is refused, because it would be waited for, and so is a file that is too large,
    before any of it is read.

    Args:
        path: of the file.
        most: the largest size in bytes that such a file has.

    Returns:
        Its bytes.

    Raises:
        TrimtabError: if it is no regular file, or larger than ``most``.
        OSError: if it is missing or cannot be read.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise TrimtabError(
                f"{path}: has {size / 1e6:,.0f} MB, and at most {most / 1e6:,.0f} MB are "
                "read; fetch or make it again"
            )
        return file.read()


def read_whole(path: str | Path, where: str = "") -> bytes:
    """Return all bytes of a file, as :func:`read_bytes`; ``where`` names it in the error.

    Raises:
        TrimtabError: if it is missing or cannot be read.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        reason = error.strerror or error
        raise TrimtabError(f"{where or path}: cannot be read ({reason}); check the path") from error


@contextmanager
def reading(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a file to read its bytes; a named pipe is refused and not waited for.

    Raises:
        TrimtabError: if it is no regular file.
        OSError: if it is missing or cannot be read.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise TrimtabError(f"{path}: is no regular file; name a file on disk")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe too is opened at once, and not when somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def decoded(data: bytes) -> str:
    """Return the text of a file of settings: in UTF-8, or as its byte order mark says.

    Raises:
        UnicodeDecodeError: if it is no such text.
    """
    return data.decode(json.detect_encoding(data))


def read_json(path: str | Path, what: str) -> Any:
    """Return the JSON value in ``path``; ``what`` names it in errors.

    Raises:
        TrimtabError: if the file is missing, unreadable, too large or not JSON.
    """
    try:
        return json.loads(decoded(read_bytes(path, MOST_JSON)))
    except TrimtabError as error:
        raise TrimtabError(f"{what}: {error}") from error
    except FileNotFoundError as error:
        raise TrimtabError(f"{what}: {path} does not exist; check the path") from error
    except (OSError, ValueError, RecursionError) as error:
        raise TrimtabError(f"{what}: {path} is not readable JSON ({error})") from error


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal.

    Raises:
        TrimtabError: if it is no regular file.
    """
    with reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def resolved(path: str | Path) -> Path:
    """Return a path from the root, without symbolic links.

    Raises:
        TrimtabError: if the links lead in a circle.
    """
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise TrimtabError(f"{path}: its symbolic links lead in a circle; name another") from error


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def unwritable(folder: Path) -> str | None:
    """Return why no file can be made in a folder, or in the nearest one above it; None if it can.

    A small file is made there and removed.
    """
    probe = existing(folder) / f".trimtab-{uuid.uuid4().hex[:8]}"
    try:
        probe.write_bytes(b"trimtab")
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None
