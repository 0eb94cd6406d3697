"""A lease on a folder at an address: one process at a time, where there is nothing to lock.

A store replaces a file whole, and can do no more: it does not say whether the file was there. A
process that wants the folder writes a claim, waits until all competing claims must have been
written, and owns the folder if its claim is the last. From then on it renews the claim. On the
machine of its owner a lease counts for as long as that process lives; anywhere else for as long as
it is seen to be renewed, so that no two clocks are compared.
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
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.rundir import STALE_AFTER
from trimtab.benchmarks.training.storage import Store
from trimtab.errors import TrimtabError

__all__ = ["LEASE", "Lease", "lease"]

logger = logging.getLogger(__name__)

LEASE = "lease.json"
"""The file beside a run's manifest that names the process that has the run."""
SETTLES = 2.0
"""Seconds until every process that saw a folder free has written its claim, and others see it."""
RENEWED_EVERY = 10.0
"""Seconds between two renewals."""
SURE_FOR = 1.0
"""Seconds for which a lease is taken to be held without another look."""
PAUSE = 0.2
"""Seconds between two looks at a lease that another process has."""


def lease(store: Store, where: str, *, wait: bool) -> Lease | None:
    """Take the lease on a folder; return it, or None where another process has it.

    Args:
        store: where the folder is.
        where: name of the folder.
        wait: wait for another process that has it, instead of giving up.

    Raises:
        TrimtabError: if the store cannot be reached.
    """
    mine = Lease(store, where)
    seen, since, renewed = None, time.monotonic(), False
    while True:
        found = mine.read()
        if found != seen:
            renewed = seen is not None and found is not None
            seen, since = found, time.monotonic()
        alive = _is_alive(found) if found is not None else False
        if alive is None and time.monotonic() - since > STALE_AFTER:
            alive = False
        if alive is False:
            mine.write()
            time.sleep(SETTLES)
            if mine.is_held():
                mine.begin()
                return mine
            continue
        if (alive or renewed) and not wait:
            return None
        time.sleep(PAUSE)


class Lease:
    """A claim of this process on a folder, which a thread renews once it is held.

    Args:
        store: where the folder is.
        where: name of the folder.
    """

    def __init__(self, store: Store, where: str) -> None:
        self._store, self._name = store, f"{where}/{LEASE}"
        self._place = f"{store.address}, {where}"
        self.claim: dict[str, Any] = {
            **_machine(),
            "process": os.getpid(),
            "started": _started(os.getpid()),
            "token": uuid.uuid4().hex,
        }
        self._confirmed, self._lost = time.monotonic(), False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def read(self) -> bytes | None:
        """Return the claim that stands at the folder, whoever wrote it."""
        return self._store.read(self._name)

    def write(self) -> None:
        """Write this process's claim, with the present time in it."""
        claim = {**self.claim, "renewed": f"{time.time():017.3f}"}
        self._store.write(self._name, json.dumps(claim).encode() + b"\n")

    def is_held(self) -> bool:
        """Return whether the claim that stands is this process's."""
        return self.claim["token"].encode() in (self.read() or b"")

    def begin(self) -> None:
        """Renew the claim from now on."""
        self._confirmed = time.monotonic()
        self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY):
            with contextlib.suppress(OSError, TrimtabError):  # the next time may go well
                if not self.is_held():
                    self._lost = True
                    logger.error("%s; stop one of them", self._taken_over())
                    return
                self.write()
                self._confirmed = time.monotonic()

    def _taken_over(self) -> str:
        return (
            f"{self._place}: another process has taken it over, because this one was not seen for "
            f"{STALE_AFTER:g} seconds"
        )

    def check(self) -> None:
        """Check that the lease is still this process's; called before something is written.

        Raises:
            TrimtabError: if another process has taken it over.
        """
        if not self._lost and time.monotonic() - self._confirmed > SURE_FOR:
            try:
                self._lost = not self.is_held()
                self._confirmed = time.monotonic()
            except (OSError, TrimtabError):  # others, too, may see nothing of this process
                self._lost = time.monotonic() - self._confirmed > STALE_AFTER
        if self._lost:
            raise TrimtabError(
                f"{self._taken_over()}; this one has stopped, and writes no more there"
            )

    def end(self) -> None:
        """Give the lease up; where that fails, it is left over."""
        if os.getpid() != self.claim["process"]:  # a copy of the process that has it
            return
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError, TrimtabError):
            if self.is_held():
                self._store.remove(self._name)


def _machine() -> dict[str, str]:
    """Return what tells apart where numbers of processes mean something: host, start, container."""
    found = {"host": platform.node(), "boot": "", "processes": ""}
    with contextlib.suppress(OSError):  # where there is no /proc
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["processes"] = os.readlink("/proc/self/ns/pid")
    return found


def _started(process: int) -> str:
    """Return when a process was started, in the system's own unit.

    It is empty where the system does not tell, and for a process that has ended and waits for its
    parent to ask how (a zombie, which keeps its number).
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _is_alive(content: bytes) -> bool | None:
    """Return whether the process that wrote a claim lives; None if this machine cannot tell."""
    try:
        claim = json.loads(content)
        process, started = int(claim["process"]), str(claim["started"])
        if {key: claim[key] for key in _machine()} != _machine() or process < 1:
            return None
    except (ValueError, KeyError, TypeError):  # no claim
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return _started(process) == started  # another process may have the number by now
