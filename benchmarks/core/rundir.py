"""The folder of a run: who may write in it, and what a killed process leaves there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trimtab.benchmarks.core.lockfile import hold, is_held
from trimtab.errors import TrimtabError

LOCK = "run.lock"
LOCK_FILE = "run.lock.held"
"""There while a folder is locked whose file system knows no locks."""
LOCKS = "TRIMTAB_LOCKS"
"""Environment variable: ``lease`` for a file system whose locks other machines do not see."""
_LEASE = ("lease", "files")  # the second is the earlier word
_SET_ASIDE = "broken-"
_LOOKS = 3
_LOOK = 0.05  # seconds
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


class InUseError(TrimtabError):
    """Another process holds the folder."""


def remedy(folder: Path) -> str:
    """Return what a message about a damaged run says last: the one command that mends it."""
    return f"mend it with: trimtab runs repair {shlex.quote(str(folder))}"


def set_aside_folder(folder: Path) -> Path:
    """Return the next free name in ``folder`` for what is set aside of it, such as ``broken-1``."""
    taken = [int(path.name.removeprefix(_SET_ASIDE)) for path in set_aside(folder)]
    return folder / f"{_SET_ASIDE}{max(taken, default=0) + 1}"


def set_aside(folder: Path) -> list[Path]:
    """Return the folders in ``folder`` that hold what was set aside of it."""
    return sorted(path for path in folder.glob(_SET_ASIDE + "*") if is_set_aside(path.name))


def is_set_aside(name: str) -> bool:
    """Return whether a folder of this name holds what was set aside, which counts for nothing."""
    return re.fullmatch(_SET_ASIDE + r"\d{1,9}", name) is not None


def in_use(folder: Path) -> bool:
    """Return whether a process holds ``folder``; nothing is written.

    A lock of another machine counts as held for as long as it is there.
    """
    if is_held(folder / LOCK_FILE):
        return True
    if os.environ.get(LOCKS) in _LEASE:
        return False
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[Callable[[], None]]:
    """Hold ``folder`` for this process alone while the block runs.

    A block that fails before it has written a file leaves no folder behind where there was none.

    Args:
        folder: made if it is not there.
        wait: wait for another process that holds it, instead of giving up.

    Yields:
        What raises a ``TrimtabError`` once another process has taken the folder over, as may happen
        to one that was suspended where there are no locks but leases. Call it before writing.

    Raises:
        TrimtabError: if another process holds it, or it cannot be written.
    """
    missing = not folder.exists()
    top = _first_missing(folder)
    hold = _lock(folder, wait=wait)
    try:
        yield hold.check
    except BaseException:
        if missing:
            _remove_empty(folder, top)
        raise
    finally:
        hold.end()


@dataclass(frozen=True)
class _Hold:
    """What lets go of a folder, and what tells that another process has taken it over."""

    end: Callable[[], None]
    check: Callable[[], None]


def _lock(folder: Path, *, wait: bool) -> _Hold:
    """Lock a folder."""
    asked = os.environ.get(LOCKS, "")
    if asked and asked not in _LEASE:
        raise TrimtabError(f"{LOCKS}={asked}: must be lease, or not be set")
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            if asked:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            _flock(lock, wait=wait)
        except BlockingIOError as error:
            os.close(lock)
            raise _in_use(folder) from error
        except OSError as error:
            os.close(lock)
            if error.errno not in _NO_LOCKS:
                raise TrimtabError(
                    f"cannot lock {folder}: {error.strerror}; choose a local folder with out=…"
                ) from error
            if (hold := _lock_by_file(folder, wait=wait)) is not None:
                return hold
            continue
        except BaseException:  # interrupted while it waits
            os.close(lock)
            raise
        if _is_still(folder / LOCK, lock):
            return _Hold(functools.partial(os.close, lock), lambda: None)
        os.close(lock)  # who held it has removed the folder; make it again


def _flock(lock: int, *, wait: bool) -> None:
    """Take a lock.

    Raises:
        BlockingIOError: if another process has it, and this one is not to wait.
    """
    for _ in range(0 if wait else _LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK)  # who only looks whether it is held has it for a moment
    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _lock_by_file(folder: Path, *, wait: bool) -> _Hold | None:
    """Lock a folder whose file system knows no locks; None if it is gone in the meantime."""
    try:
        held = hold(folder / LOCK_FILE, wait=wait)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unwritable(folder, error) from error
    if held is None:
        raise _in_use(folder)
    return _Hold(held.end, held.check)


def _in_use(folder: Path) -> InUseError:
    return InUseError(f"{folder} is in use by another process; wait for it or choose another out=")


def _unwritable(folder: Path, error: OSError) -> TrimtabError:
    return TrimtabError(
        f"cannot write {folder}: {error.strerror}; choose a writable folder with out=…"
    )


def check_writable(folder: Path, variable: str, needed_by: str = "") -> None:
    """Make the folder that an environment variable names, and check that it can be written.

    Args:
        folder: the folder.
        variable: name of the variable.
        needed_by: the word that makes it needed, if one does.

    Raises:
        TrimtabError: if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        told = f"{needed_by}: {variable}" if needed_by else variable
        raise TrimtabError(
            f"{told}: {folder} cannot be written: {why}; set {variable} to a writable folder"
        ) from error


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
    if any(path.name not in (LOCK, LOCK_FILE) for path in folder.rglob("*") if not path.is_dir()):
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
