"""Runs on machines that share no files: their folders come back to the machine that asked for them.

A keeper there writes them, and is called over whatever connects the machines. A run that is started
again elsewhere has a new turn, and what an earlier turn of it still sends is refused: so two
processes never write one folder, however late one of them notices that it was given up.
"""

from __future__ import annotations

import os
import platform
import posixpath
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.away import replaced, scratch_of
from trimtab.benchmarks.training.mirror import (
    BlobStore,
    Copy,
    Entry,
    Files,
    Known,
    entries_of,
    is_light,
)
from trimtab.benchmarks.training.rundir import LOCK, LOCK_FILE, InUseError, locked
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory

__all__ = ["FolderServer", "ServedRunStore"]

Call = Callable[..., Any]
"""Calls a method of the keeper by its name; what it takes and returns are plain values."""
CHUNK = 8_000_000
"""Bytes that are sent at a time."""
PAUSE = 1.0
"""Seconds between two questions whether a run's folder is free."""
_TRACKERS = "trackers"


class FolderServer:
    """Writes the folders of runs on the machine that asked for them.

    Args:
        place: its current folder there, which paths are relative to.
        variables: of its environment, that decide how folders are locked.
    """

    def __init__(self, place: str, variables: Mapping[str, str]) -> None:
        os.environ.update(variables)
        self._place = Path(place)
        self._turns: dict[str, int] = {}
        self._holds: dict[str, ExitStack] = {}
        self._holders: dict[str, str] = {}
        self._known: dict[str, Known] = {}

    def begin(self, run: str, holder: str) -> int:
        """Hold a run's folder, and return the turn that begins; 0 where it is in use.

        Args:
            run: the folder.
            holder: name of the work that asks. If it asks again, it was started again, and its
                earlier turn has ended; work of another name has to wait.

        Raises:
            TrimtabError: if the folder cannot be made or locked.
        """
        if run not in self._holds:
            hold = ExitStack()
            try:
                hold.enter_context(locked(self._place / run))
            except InUseError:
                return 0
            self._holds[run], self._holders[run] = hold, holder
        elif self._holders[run] != holder:
            return 0
        self._turns[run] = self._turns.get(run, 0) + 1
        folder = self._place / run
        for left in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a keeper that was killed
            shutil.rmtree(left, ignore_errors=True)
        return self._turns[run]

    def is_on(self, run: str, turn: int) -> bool:
        """Return whether a turn is the last that began, and has not ended."""
        return run in self._holds and self._turns[run] == turn

    def end(self, run: str, turn: int) -> None:
        """Let go of a run's folder, if it is this turn's."""
        if self.is_on(run, turn):
            shutil.rmtree(self._incoming(run), ignore_errors=True)
            self._holds.pop(run).close()

    def files(self, run: str) -> dict[str, tuple[int, str]] | None:
        """Return the files of a folder, each with its size and SHA-256; None where it is none."""
        folder = self._place / run
        if not folder.is_dir():
            return None
        found = entries_of(folder, self._known.setdefault(run, {}))
        return {name: (entry.size, entry.sha256) for name, entry in found.items()} or None

    def read(self, run: str, name: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        with (self._place / run / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def put(self, run: str, turn: int, digest: str, start: int, chunk: bytes) -> bool:
        """Take a part of a file that is coming; return whether it is still this turn's to send."""
        if not self.is_on(run, turn):
            return False
        self._incoming(run).mkdir(exist_ok=True)
        with (self._incoming(run) / digest).open("ab" if start else "wb") as file:
            file.write(chunk)
        return True

    def commit(self, run: str, turn: int, files: Mapping[str, tuple[int, str]]) -> bool:
        """Make the folder what was sent, whole: with files that have come, and that were there."""
        if not self.is_on(run, turn):
            return False
        folder, incoming = self._place / run, self._incoming(run)
        had = entries_of(folder, self._known.setdefault(run, {}))
        there = {entry.sha256: folder / name for name, entry in had.items()}
        there |= {path.name: path for path in incoming.glob("*")}
        with atomic_directory(folder) as beside:
            for name, (_, digest) in files.items():
                (beside / name).parent.mkdir(parents=True, exist_ok=True)
                _link(there[digest], beside / name)
            for lock in (LOCK, LOCK_FILE):  # the very files, so that they stay held
                with suppress(FileNotFoundError):
                    _link(folder / lock, beside / lock)
            if (folder / _TRACKERS).is_dir():
                shutil.copytree(folder / _TRACKERS, beside / _TRACKERS, copy_function=_link)
        shutil.rmtree(incoming, ignore_errors=True)
        return True

    def _incoming(self, run: str) -> Path:
        folder = self._place / run
        return folder.with_name(f".{folder.name}.incoming.tmp")


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copy2(source, target)


class _ServedBlobStore:
    """Folders of the machine that asked for runs, as copies."""

    def __init__(self, call: Call, root: str) -> None:
        self._call, self._root = call, root
        self.turns: dict[str, int] = {}

    def path(self, where: str) -> str:
        """Return the path of a folder there."""
        return posixpath.join(self._root, where)

    def files(self, where: str) -> Files | None:
        """Return what a folder holds; None where there is none."""
        found = self._call("files", self.path(where))
        return found and {name: Entry(*entry) for name, entry in found.items()}

    def bring(self, where: str, name: str, entry: Entry, path: Path, most: int | None) -> None:
        """Write a file, or its first bytes, to ``path``."""
        size = entry.size if most is None else min(most, entry.size)
        with path.open("wb") as file:
            while file.tell() < size:
                length = min(CHUNK, size - file.tell())
                chunk = self._call("read", self.path(where), name, file.tell(), length)
                if not chunk:
                    raise FileNotFoundError(name)
                file.write(chunk)

    def take(self, where: str, folder: Path, old: Files, new: Files) -> None:
        """Make a folder there what the one here is."""
        run, turn = self.path(where), self.turns[where]
        had = {entry.sha256 for entry in old.values()}
        on = True
        for name, entry in new.items():
            if entry.sha256 not in had:
                had.add(entry.sha256)
                on = on and self._put(run, turn, entry, folder / name)
        sent = {name: (entry.size, entry.sha256) for name, entry in new.items()}
        if not on or not self._call("commit", run, turn, sent):
            raise _given_up(run)

    def _put(self, run: str, turn: int, entry: Entry, path: Path) -> bool:
        with path.open("rb") as file:
            while True:
                start, chunk = file.tell(), file.read(CHUNK)
                if (chunk or not start) and not self._call(
                    "put", run, turn, entry.sha256, start, chunk
                ):
                    return False
                if len(chunk) < CHUNK:
                    return True


class ServedRunStore:
    """Runs' folders on the machine that asked for them.

    Args:
        call: calls its keeper.
        private: what no other machine is called; part of the name of the scratch folder.
        holder: name of the work; no other work of the command has it.
    """

    def __init__(self, call: Call, private: str, holder: str) -> None:
        self._call, self._private, self._holder = call, private, holder
        self._shelf = _ServedBlobStore(call, "")
        self.shelf: BlobStore = self._shelf

    def address(self, where: str) -> str:
        """Return the path of a run's folder on its machine."""
        return self._shelf.path(where)

    @contextmanager
    def hold(self, where: str, *, wait: bool) -> Iterator[Callable[[], None]]:
        """Hold a run's folder, and begin a turn.

        Raises:
            TrimtabError: if another process has it.
        """
        run = self._shelf.path(where)
        while not (turn := self._call("begin", run, self._holder)):
            if not wait:
                raise TrimtabError(f"{run} is in use by another process; wait for it")
            time.sleep(PAUSE)
        self._shelf.turns[where] = turn

        def check() -> None:
            if not self._call("is_on", run, turn):
                raise _given_up(run)

        try:
            yield check
        finally:
            self._call("end", run, turn)

    def localised(self, config: RunConfig) -> RunConfig:
        """Return the settings with folders of this machine; a base that is kept comes down."""
        self._shelf = _ServedBlobStore(self._call, config["out"])
        self.shelf = self._shelf
        changes = {"out": str(scratch_of(f"{self._private}/{config['out']}"))}
        if (base := config["base"]) is not None:
            folder = scratch_of(f"{self._private}/{base}") / Path(base).name
            folder.mkdir(parents=True, exist_ok=True)
            if Copy(_ServedBlobStore(self._call, ""), base, folder).fetch(is_light):
                changes["base"] = str(folder)
        return replaced(config, **changes)


def _given_up(run: str) -> TrimtabError:
    return TrimtabError(
        f"{run}: was given up on {platform.node()} and is carried out elsewhere; nothing more is "
        "written here"
    )
