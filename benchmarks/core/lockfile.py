"""A lock where the file system has none: a file that only one process can make.

It says who made it, and its maker renews it. On the machine of its maker it counts for as long as
that process lives; anywhere else for as long as it is seen to be renewed, so that no two clocks are
compared. What is left of a process that is gone is taken over. Who was only not seen for a while
notices that, and writes no more.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError

__all__ = ["Renewed", "hold", "is_alive", "is_held", "note_of_this_process", "text_of"]

logger = logging.getLogger(__name__)

RENEWED_EVERY = 10.0
"""Seconds between two renewals."""
STALE_AFTER = 60.0
"""Seconds without a renewal after which a lock of another machine is taken to be left over."""
SURE_FOR = 1.0
"""Seconds for which nobody looks again whether a lock is still this process's."""
PAUSE = 0.2
"""Seconds between two looks at a lock that another process holds."""


def hold(path: Path, *, wait: bool) -> Renewed | None:
    """Make the file ``path``; return what holds it, or None where another process has it.

    Args:
        path: in a folder that is there.
        wait: wait for another process that has it, instead of giving up.

    Raises:
        OSError: if the file cannot be written; FileNotFoundError if its folder is gone.
        TrimtabError: if what is left of a crash has to be removed by hand.
    """
    seen, since = None, time.monotonic()
    while True:
        note = note_of_this_process()
        if _made(path, text_of(note)):
            return Renewed(
                str(path.parent),
                note,
                lambda: _content(path),
                functools.partial(_renew, path, note),
                functools.partial(path.unlink, missing_ok=True),
            )
        found = _content(path)
        if found is None:  # gone in the meantime
            continue
        renewed = seen is not None and found != seen
        if found != seen:
            seen, since = found, time.monotonic()
        alive = is_alive(found)
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
    return found is not None and is_alive(found) is not False


class Renewed:
    """A lock that this process has, and renews from a thread of its own until it lets go of it.

    Args:
        place: what is locked, as errors call it.
        note: who this process is; it is in the lock.
        read: returns what is in the lock; None where it is gone.
        renew: writes a text into the lock if it is still this process's, and says whether it is.
        remove: removes the lock.
    """

    def __init__(
        self,
        place: str,
        note: Mapping[str, Any],
        read: Callable[[], bytes | None],
        renew: Callable[[bytes], bool],
        remove: Callable[[], None],
    ) -> None:
        self._place, self._note, self._read = place, note, read
        self._renew, self._remove = renew, remove
        self._confirmed, self._lost = time.monotonic(), False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="lock", daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        while not self._ended.wait(RENEWED_EVERY):
            with contextlib.suppress(OSError, TrimtabError):  # the next time may go well
                if not self._renew(text_of(self._note)):
                    self._lost = True
                    logger.error("%s; stop one of them", self._told())
                    return
                self._confirmed = time.monotonic()

    def _told(self) -> str:
        return (
            f"{self._place}: another process has taken it over, because this one was not seen for "
            f"{STALE_AFTER:g} seconds"
        )

    def check(self) -> None:
        """Look whether the lock is still this process's; called before something is written.

        Raises:
            TrimtabError: if another process has taken it over.
        """
        if not self._lost and time.monotonic() - self._confirmed > SURE_FOR:
            try:
                self._lost = not _is_of(self._note, self._read())
                self._confirmed = time.monotonic()
            except (OSError, TrimtabError):  # others, too, may see nothing of this process
                self._lost = time.monotonic() - self._confirmed > STALE_AFTER
        if self._lost:
            raise TrimtabError(f"{self._told()}; this one has stopped, and writes no more there")

    def end(self) -> None:
        """Let go of the lock; where that fails, it is left over."""
        if os.getpid() != self._note["process"]:  # a copy of the process that has it
            return
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError, TrimtabError):
            if _is_of(self._note, self._read()):
                self._remove()


def _renew(path: Path, note: Mapping[str, Any], text: bytes) -> bool:
    """Write a text into a lock, if it still is that of a note."""
    # Opened anew each time: on NFS others see what was written once it is closed.
    with contextlib.suppress(FileNotFoundError), open(path, "r+b", buffering=0) as file:
        if _is_of(note, file.read()):
            file.seek(0)
            file.write(text)
            return True
    return False


def _is_of(note: Mapping[str, Any], content: bytes | None) -> bool:
    return content is not None and note["token"].encode() in content


def note_of_this_process() -> dict[str, Any]:
    """Return who this process is."""
    return {
        **_machine(),
        "process": os.getpid(),
        "started": _started(os.getpid()),
        "token": uuid.uuid4().hex,
    }


def text_of(note: Mapping[str, Any]) -> bytes:
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


def is_alive(content: bytes) -> bool | None:
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
