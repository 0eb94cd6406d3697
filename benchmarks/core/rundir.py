"""The folder of a run: who may write in it, and its log of metrics."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.types import TrimtabError

LOCK = "run.lock"


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold ``folder`` for this process alone while the block runs.

    A block that fails before it has written a file leaves no folder behind where there was none.

    Args:
        folder: made if it is not there.
        wait: wait for another process that holds it, instead of giving up.

    Raises:
        TrimtabError: if another process holds it, or it cannot be written.
    """
    missing = not folder.exists()
    top = _first_missing(folder)
    lock = _lock(folder, wait=wait)
    try:
        yield
    except BaseException:
        if missing:
            _remove_empty(folder, top)
        raise
    finally:
        os.close(lock)


def _lock(folder: Path, *, wait: bool) -> int:
    """Return the descriptor of the folder's lock, which is held."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise TrimtabError(
                f"cannot write {folder}: {error.strerror}; choose a writable folder with out=…"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            os.close(lock)
            raise TrimtabError(
                f"{folder} is in use by another process; wait for it or choose another out="
            ) from error
        except OSError as error:
            os.close(lock)
            raise TrimtabError(
                f"cannot lock {folder}: {error.strerror}; choose a local folder with out=…"
            ) from error
        except BaseException:  # interrupted while it waits
            os.close(lock)
            raise
        if _is_still(folder / LOCK, lock):
            return lock
        os.close(lock)  # who held it has removed the folder; make it again


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _first_missing(folder: Path) -> Path:
    """Return the highest folder of ``folder`` and those above it that is not there."""
    top = folder
    while not top.parent.exists():
        top = top.parent
    return top


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove what a refused command has made and the caller holds, if it wrote no file in it.

    Args:
        folder: goes with its lock and the empty folders in it.
        top: the highest folder above it that was made with it; those between go where empty.
    """
    if any(path.name != LOCK for path in folder.rglob("*") if not path.is_dir()):
        return
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another's in the meantime
        while folder != top:
            folder = folder.parent
            folder.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had half written in ``folder``, which the caller has locked."""
    for beside in sorted(folder.rglob(".*.tmp")):
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            beside.unlink(missing_ok=True)
