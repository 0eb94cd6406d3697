"""A lock where the file system has none: a file that only one process can make.

It says who made it, and its maker renews it. On the machine of its maker it counts for as long as
that process lives; anywhere else for as long as it is seen to be renewed, so that no two clocks are
compared. What is left of a process that is gone is taken over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError

__all__ = ["hold", "is_held"]

logger = logging.getLogger(__name__)

RENEWED_EVERY = 10.0
"""Seconds between two renewals."""
STALE_AFTER = 60.0
"""Seconds without a renewal after which a lock of another machine is taken to be left over."""
PAUSE = 0.2
"""Seconds between two looks at a lock that another process holds."""


def hold(path: Path, *, wait: bool) -> Callable[[], None] | None:
    """Make the file ``path``; return what lets go of it, or None where another process has it.

    Args:
        path: in a folder that is there.
        wait: wait for another process that has it, instead of giving up.

    Raises:
        OSError: if the file cannot be written; FileNotFoundError if its folder is gone.
        TrimtabError: if what is left of a crash has to be removed by hand.
    """
    seen, since = None, time.monotonic()
    while True:
        note = _note()
        if _made(path, _text(note)):
            return _Renewal(path, note).end
        found = _content(path)
        if found is None:  # gone in the meantime
            continue
        renewed = seen is not None and found != seen
        if found != seen:
            seen, since = found, time.monotonic()
        alive = _alive(found)
        if alive is None and renewed:
            alive = True
        if alive is None and time.monotonic() - since > STALE_AFTER:
            alive = False
        if alive is False:
            _remove_left_over(path, found)
            continue
        if alive and not wait:
            return None
        time.sleep(PAUSE)


def is_held(path: Path) -> bool:
    """Return whether the file ``path`` is there and not known to be left of a process that is gone.

    Nothing is written, and nothing waits to see whether a lock of another machine is renewed.
    """
    try:
        found = _content(path)
    except OSError:
        return False
    return found is not None and _alive(found) is not False


class _Renewal:
    """Renews a lock from a thread of its own until it is let go of."""

    def __init__(self, path: Path, note: dict[str, Any]) -> None:
        self._path, self._note = path, note
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY):
            with contextlib.suppress(OSError):  # the next time may go well
                if not self._written():
                    logger.error(
                        "%s: another process has taken it over, because this one was not seen for "
                        "%g seconds; stop one of them",
                        self._path.parent,
                        STALE_AFTER,
                    )
                    return

    def _written(self) -> bool:
        """Write the present time into the lock, if it still is this process's."""
        # Opened anew each time: on NFS others see what was written once it is closed.
        with contextlib.suppress(FileNotFoundError), open(self._path, "r+b", buffering=0) as file:
            if self._is_ours(file.read()):
                file.seek(0)
                file.write(_text(self._note))
                return True
        return False

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and self._note["token"].encode() in content

    def end(self) -> None:
        """Let go of the lock."""
        if os.getpid() != self._note["process"]:  # a copy of the process that has it
            return
        self._ended.set()
        self._thread.join()
        if self._is_ours(_content(self._path)):
            self._path.unlink(missing_ok=True)


def _note() -> dict[str, Any]:
    """Return who this process is."""
    return {
        **_machine(),
        "process": os.getpid(),
        "started": _started(os.getpid()),
        "token": uuid.uuid4().hex,
    }


def _text(note: dict[str, Any]) -> bytes:
    """Return a note with the present time in it, always equally long."""
    return json.dumps({**note, "renewed": f"{time.time():017.3f}"}).encode() + b"\n"


def _machine() -> dict[str, str]:
    """Return what tells apart where numbers of processes mean something: host, start, container."""
    found = {"host": platform.node(), "boot": "", "processes": ""}
    with contextlib.suppress(OSError):  # where there is no /proc
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["processes"] = os.readlink("/proc/self/ns/pid")
    return found


def _started(process: int) -> str:
    """Return when a process was started, in the system's own unit.

    It is empty where that is not told, and of a process that has ended and only waits to be asked
    how (a zombie, which keeps its number).
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _alive(content: bytes) -> bool | None:
    """Whether the process that made a lock lives; None if that cannot be told from here."""
    try:
        note = json.loads(content)
        process, started = int(note["process"]), str(note["started"])
        if {key: note[key] for key in _machine()} != _machine() or process < 1:
            return None
    except (ValueError, KeyError, TypeError):  # its maker has only begun to write it
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return _started(process) == started  # another process may have the number by now


def _made(path: Path, content: bytes) -> bool:
    """Make a file that is not there, and say whether it was this call that made it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, content)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return True


def _content(path: Path) -> bytes | None:
    """Return what is in a file, or None where it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _remove_left_over(path: Path, content: bytes) -> None:
    """Remove a lock whose maker is gone, if it still is that one.

    Raises:
        OSError: if it cannot be removed.
        TrimtabError: if another process was killed right here.
    """
    # Of several that want to remove it only one looks and removes at a time: the next one would
    # remove the lock that the first has made in its place.
    guard = path.with_name(path.name + ".removal")
    until = time.monotonic() + STALE_AFTER
    while not _made(guard, b""):
        if time.monotonic() > until:
            raise TrimtabError(f"{guard} is left of a process that was killed; remove it")
        time.sleep(PAUSE)
    try:
        if _content(path) == content:
            path.unlink(missing_ok=True)
            logger.warning(
                "%s: its lock was left by %s; it is taken over", path.parent, _of(content)
            )
    finally:
        guard.unlink(missing_ok=True)


def _of(content: bytes) -> str:
    """Return in words who made a lock."""
    try:
        note = json.loads(content)
        return f"process {int(note['process'])} on {note['host']}, which is gone"
    except (ValueError, KeyError, TypeError):
        return "a process that is gone"
