"""Which process may write in a folder, and what a killed process leaves there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLease, Timeout

from trimtab.errors import TrimtabError

LOCK = "run.lock"
LEASE_FILE = "run.lock.held"
"""The lease: it exists while a process holds the folder by a lease."""
LOCKS_VARIABLE = "TRIMTAB_LOCKS"
"""Environment variable: ``lease`` for a file system whose locks other machines do not see."""
_LEASE = "lease"
RENEWED_EVERY = 5.0
"""Seconds between two renewals of a lease."""
STALE_AFTER = 60.0
"""Seconds without a renewal after which another process takes a lease over."""
_RECENT = 120.0  # seconds; clocks of two machines may differ
_LOOK = 0.15  # seconds
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


def remedy(folder: Path) -> str:
    """Return what a message about a damaged run says last."""
    return f"move {shlex.quote(str(folder))} away and run it again, or restore it from a copy"


def in_use(folder: Path) -> bool:
    """Return whether a process holds ``folder``; nothing is written.

    A lease counts as held for as long as it was renewed lately.
    """
    renewed = _renewed_at(folder / LEASE_FILE)
    if renewed is not None and time.time() - renewed < _RECENT:
        return True
    if os.environ.get(LOCKS_VARIABLE) == _LEASE:
        return False
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[Callable[[], None]]:
    """Hold ``folder`` for this process alone while the block runs.

    A block that fails before it has written a file leaves no folder behind where there was none.

    Args:
        folder: made if it is not there.
        wait: wait for another process that holds it, instead of giving up.

    Yields:
        A function that raises ``TrimtabError`` if another process has taken the folder: with leases
        this happens to a process that was suspended. Call it before writing.

    Raises:
        TrimtabError: if another process holds it, or it cannot be written.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    lock = _lock(folder, wait=wait)
    try:
        yield functools.partial(_check_held, lock, folder)
    except BaseException:
        if made:
            _remove_empty(folder, made)
        raise
    finally:
        lock.release()


def _lock(folder: Path, *, wait: bool) -> BaseFileLock:
    """Lock a folder; see :func:`locked`."""
    asked = os.environ.get(LOCKS_VARIABLE, "")
    if asked not in ("", _LEASE):
        raise TrimtabError(f"{LOCKS_VARIABLE}={asked}: must be {_LEASE}, or not be set")
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LOCK).touch()
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            return _lease(folder, wait=wait) if asked else _system_lock(folder, wait=wait)
        except Timeout as error:
            raise TrimtabError(
                f"{folder} is in use by another process; wait for it or choose another out="
            ) from error
        except FileNotFoundError:  # its last holder has removed the folder; make it again
            continue
        except OSError as error:
            raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> TrimtabError:
    return TrimtabError(
        f"cannot write {folder}: {error.strerror}; choose a writable folder with out=…"
    )


def _system_lock(folder: Path, *, wait: bool) -> BaseFileLock:
    """Lock a folder by ``flock``, or by a lease where the file system has no locks."""
    lock = FileLock(folder / LOCK, thread_local=False, fallback_to_soft=False)
    try:
        # in_use() holds the lock for a moment; wait for it.
        lock.acquire(timeout=-1 if wait else _LOOK)
    except (Timeout, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return _lease(folder, wait=wait)
        raise TrimtabError(
            f"cannot lock {folder}: {error.strerror}; choose a local folder with out=…"
        ) from error
    return lock


def _lease(folder: Path, *, wait: bool) -> SoftFileLease:
    """Lock a folder by a file that its holder renews.

    A process that does not wait gives up as soon as it sees the file renewed.
    """
    path = folder / LEASE_FILE
    lease = SoftFileLease(
        path, lease_duration=STALE_AFTER, heartbeat_interval=RENEWED_EVERY, thread_local=False
    )
    first = _renewed_at(path)
    lease.acquire(
        -1 if wait else 2 * STALE_AFTER,
        cancel_check=lambda: not wait and _renewed_at(path) not in (None, first),
    )
    return lease


def _check_held(lock: BaseFileLock, folder: Path) -> None:
    """Check that a lease is still this process's; a lock of the system's cannot be lost.

    Raises:
        TrimtabError: if it is not.
    """
    if not isinstance(lock, SoftFileLease):
        return
    for _ in range(2):  # another process that checks the file moves it aside for a moment
        with contextlib.suppress(OSError):
            if lock.token and lock.token in (folder / LEASE_FILE).read_text():
                return
        time.sleep(_LOOK)
    raise TrimtabError(
        f"{folder}: another process has taken it over, because this one was not seen for "
        f"{STALE_AFTER:g} seconds; this one has stopped, and writes no more there"
    )


def _renewed_at(lease: Path) -> float | None:
    """Return when a lease was renewed, by its file system's clock; None where there is none."""
    try:
        return lease.stat().st_mtime
    except FileNotFoundError:
        return None


def _remove_empty(folder: Path, made: Sequence[Path]) -> None:
    """Remove a folder that this process made and holds, unless a file was written in it.

    Args:
        folder: it goes with its lock.
        made: the folders that were made with it, itself first; those above go where empty.
    """
    if any(path.name not in (LOCK, LEASE_FILE) for path in folder.rglob("*") if not path.is_dir()):
        return
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another's in the meantime
        for above in made[1:]:
            above.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had half written in ``folder``, which the caller has locked."""
    for beside in sorted(folder.rglob(".*.tmp")):
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            beside.unlink(missing_ok=True)
