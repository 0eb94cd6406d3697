"""A lease on a folder at an address: one process at a time, where there is nothing to lock.

A store replaces a file whole, and can do no more: it does not say whether the file was there. So
who wants the folder writes its note, waits until every other one that saw it free has written too,
and has it if it still reads its own: the last one to write has it. From then on it renews the note.
No two clocks are compared: a lease is left over when its reader has seen no change for a while.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from trimtab.benchmarks.core import lockfile
from trimtab.benchmarks.core.lockfile import Renewed, is_alive, note_of_this_process, text_of
from trimtab.benchmarks.core.storage import Store

__all__ = ["LEASE", "lease"]

LEASE = "lease.json"
"""The file beside a run's manifest that says who is at it."""
SETTLES = 2.0
"""Seconds in which whoever saw a folder free has written its note, and a note is seen by others."""


def lease(store: Store, where: str, *, wait: bool) -> Renewed | None:
    """Take the lease on a folder; return what holds it, or None where another process has it.

    Args:
        store: where the folder is.
        where: name of the folder.
        wait: wait for another process that has it, instead of giving up.

    Raises:
        TrimtabError: if the store cannot be reached.
    """
    name = f"{where}/{LEASE}"
    seen, since, renewed = None, time.monotonic(), False
    while True:
        found = store.read(name)
        if found != seen:
            renewed = seen is not None and found is not None
            seen, since = found, time.monotonic()
        alive = is_alive(found) if found is not None else False
        if alive is None and time.monotonic() - since > lockfile.STALE_AFTER:
            alive = False
        if alive is False:
            note = note_of_this_process()
            store.write(name, text_of(note))
            time.sleep(SETTLES)
            if _is_of(note, store.read(name)):
                return _held(store, name, where, note)
            continue
        if (alive or renewed) and not wait:
            return None
        time.sleep(lockfile.PAUSE)


def _held(store: Store, name: str, where: str, note: Mapping[str, Any]) -> Renewed:
    def renew(text: bytes) -> bool:
        if not _is_of(note, store.read(name)):
            return False
        store.write(name, text)
        return True

    return Renewed(
        f"{store.address}, {where}", note, lambda: store.read(name), renew,
        lambda: store.remove(name),
    )  # fmt: skip


def _is_of(note: Mapping[str, Any], content: bytes | None) -> bool:
    return content is not None and note["token"].encode() in content
