"""The folder of a run: who may write in it, and its log of metrics."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class MetricsLog:
    """Running means of an update's metrics, appended to ``metrics.jsonl`` a line at a time.

    The file's length is part of a checkpoint, so a resumed run cuts what was written after it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sums: dict[str, float] = {}
        self.count = 0
        self.length = 0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one update to the running means."""
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def write(self, position: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> None:
        """Append one line: position in the run, means since the last line, and ``extra``."""
        means = {name: value / max(self.count, 1) for name, value in self.sums.items()}
        line = json.dumps({**position, **means, **(extra or {})}) + "\n"
        self.sums, self.count = {}, 0
        with self._explained(), open(self.path, "ab") as file:
            file.write(line.encode())
        self.length += len(line.encode())

    def state_dict(self) -> dict[str, Any]:
        """Return the running means and the file's length."""
        return {"sums": dict(self.sums), "count": self.count, "length": self.length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, dropping lines that were written after it."""
        self.sums, self.count = dict(state["sums"]), int(state["count"])
        self.length = int(state["length"])
        with self._explained():
            self.path.touch()
            if self.path.stat().st_size < self.length:  # cutting it would fill it up with zeros
                raise TrimtabError(
                    f"{self.path} is shorter than the run's checkpoint says; "
                    f"remove {self.path.parent} to start this run again"
                )
            os.truncate(self.path, self.length)

    def start_again(self) -> None:
        """Drop what an earlier process wrote that left no checkpoint."""
        with self._explained():
            self.path.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrimtabError(
                f"cannot write {self.path}: {error.strerror}; free the disk or choose another out="
            ) from error
