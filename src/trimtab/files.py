"""Files that are never half written: everything is written beside its place and then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal into the one line that a user needs."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise TrimtabError(
            f"cannot write {path}: {reason}; free the disk or choose a writable folder"
        ) from error


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
    """Write ``text`` to ``path`` as UTF-8, whole or not at all."""
    atomic_write_bytes(path, text.encode())


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
            _to_disk(beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``; rename it to ``path`` if the block succeeds.

    An existing ``path`` is replaced only then. On any error nothing is left behind.

    Raises:
        TrimtabError: if the operating system refuses to write.
    """
    path = Path(path)
    beside = _beside(path)
    old = _beside(path)
    with _explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            yield beside
            for file in beside.rglob("*"):
                if file.is_file():
                    _to_disk(file)
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


def read_json(path: str | Path, what: str) -> Any:
    """Return the JSON value in ``path``; ``what`` names it in errors.

    Raises:
        TrimtabError: if the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TrimtabError(f"{what}: {path} does not exist; check the path") from error
    except (OSError, ValueError, RecursionError) as error:
        raise TrimtabError(f"{what}: {path} is not readable JSON ({error})") from error


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
