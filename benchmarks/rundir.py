"""The folder of a run: who may write in it, and its log of metrics."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.types import TrimtabError


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold ``folder`` for this process alone while the block runs.

    Args:
        folder: made if it is not there.
        wait: wait for another process that holds it, instead of giving up.

    Raises:
        TrimtabError: if another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "run.lock", os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise TrimtabError(
            f"cannot write {folder}: {error.strerror}; choose a writable folder with out=…"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise TrimtabError(
                f"{folder} is in use by another process; wait for it or choose another out="
            ) from error
        except OSError as error:
            raise TrimtabError(
                f"cannot lock {folder}: {error.strerror}; choose a local folder with out=…"
            ) from error
        yield
    finally:
        os.close(lock)


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
