"""How far a suite is, in a file: for questions from another terminal, or tomorrow."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.rows import PROGRESS
from trimtab.benchmarks.training.rundir import in_use
from trimtab.benchmarks.training.store import open_store
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json, read_json

__all__ = ["PROGRESS", "Followed", "following", "progress_of"]

EVERY = 2.0
"""Seconds between two times that it is written."""
EVERY_AWAY = 30.0
"""Seconds between two times that it is also written where the runs are, if that is an address."""


class Followed:
    """What is known of each run; told from any thread.

    Args:
        path: file that it is written to.
        suite: name of the suite.
        labels: of all its runs.
        launcher: name of what carries them out.
        address: where the runs are, if they are at an address; it is written there, too.
    """

    def __init__(
        self, path: Path, suite: str, labels: Sequence[str], launcher: str, address: str = ""
    ) -> None:
        self._path, self._lock, self._changed = path, threading.Lock(), True
        self._store = open_store(address, "runs") if address else None
        self._sent = float("-inf")
        self._note: dict[str, Any] = {
            "suite": suite, "launcher": launcher, "host": platform.node(), "process": os.getpid(),
            "started": time.time(), "ended": None,
        }  # fmt: skip
        self._runs = {label: {"state": "waiting", "share": 0.0, "text": ""} for label in labels}

    def tell(self, label: str, share: float, text: str) -> None:
        """Note that a run is done to ``share``, with a few words."""
        with self._lock:
            if self._runs[label]["state"] != "done":
                self._runs[label] = {"state": "running", "share": share, "text": text}
                self._changed = True

    def finished(self, label: str) -> None:
        """Note that a run has come to its end."""
        with self._lock:
            self._runs[label] = {"state": "done", "share": 1.0, "text": ""}
            self._changed = True

    def write(self, ended: str | None = None) -> None:
        """Write the file, if there is anything new.

        Args:
            ended: how it ended, once it has.

        Raises:
            TrimtabError: if the address cannot be written the first time, before any run begins.
        """
        with self._lock:
            if not (self._changed or ended):
                return
            self._changed = False
            runs = {label: dict(run) for label, run in self._runs.items()}
        now = {"updated": time.time(), "ended": ended, "runs": runs}
        if self._store is not None and (ended or time.monotonic() - self._sent > EVERY_AWAY):
            first, self._sent = self._sent == float("-inf"), time.monotonic()
            with nullcontext() if first else suppress(TrimtabError):
                self._store.write(_there(self._path), json.dumps(self._note | now).encode())
        with suppress(TrimtabError):  # a full disk ends the runs by their own files
            atomic_write_json(self._path, self._note | now)


def _there(path: Path) -> str:
    """Return the name that a file of progress has where the runs are."""
    return f"suites/{path.parent.name}/{path.name}"


@contextmanager
def following(
    path: Path, suite: str, labels: Sequence[str], launcher: str, address: str = ""
) -> Iterator[Followed]:
    """Write how far runs are while the block goes on, and how it ended.

    Args:
        path: file that it is written to; its folder has the suite's name.
        suite: as :class:`Followed`.
        labels: as :class:`Followed`.
        launcher: as :class:`Followed`.
        address: as :class:`Followed`.

    Yields:
        What is told of the runs.
    """
    followed, over = Followed(path, suite, labels, launcher, address), threading.Event()
    followed.write()

    def write() -> None:
        while not over.wait(EVERY):
            followed.write()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    ended = "stopped"
    try:
        yield followed
        ended = "done"
    except TrimtabError as error:
        ended = str(error)
        raise
    finally:
        over.set()
        writer.join()
        followed.write(ended)


def progress_of(folder: Path, address: str = "") -> dict[str, Any]:
    """Return how far the suite is whose tables are, or will be, in a folder.

    Args:
        folder: of the tables.
        address: of the runs, which is asked where the folder is another machine's.

    Returns:
        What was written last, with its ``state`` now: ``running``, ``done``, ``ended`` (by an error
        or a signal, which ``ended`` says) or ``lost``, where its process is gone without a word.

    Raises:
        TrimtabError: if it was never begun, or the file is damaged.
    """
    path = folder / PROGRESS
    away = _away(path, address)
    if away is None and not path.is_file():
        raise TrimtabError(
            f"bench: nothing was begun in {address or folder}; leave the word status out"
        )
    found = away or read_json(path, "progress")
    if not _says_progress(found):
        raise TrimtabError(f"bench: {path} does not say how far runs are; start the suite again")
    ended = found.get("ended")
    if ended is None:
        state = "running" if away is not None or in_use(folder) else "lost"
    else:
        state = "done" if ended == "done" else "ended"
    return {**found, "state": state}


def _away(path: Path, address: str) -> Any:
    """Return what is said where the runs are; None where this machine has the file itself."""
    if not address or path.is_file():
        return None
    said = open_store(address, "runs").read(_there(path))
    with suppress(ValueError):
        return said and json.loads(said)
    return {"damaged": True}


_OF_SUITE = {"suite": str, "launcher": str, "updated": (int, float), "runs": dict}
_OF_RUN = {"state": str, "share": (int, float), "text": str}


def _says_progress(found: Any) -> bool:
    """Return whether a value has what is shown of a suite, each of its type."""

    def has(value: Any, entries: dict[str, Any]) -> bool:
        return isinstance(value, dict) and all(
            isinstance(value.get(name), kind) for name, kind in entries.items()
        )

    return has(found, _OF_SUITE) and all(has(run, _OF_RUN) for run in found["runs"].values())
