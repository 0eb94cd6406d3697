"""A run whose folder belongs elsewhere: it is carried out in a folder of this machine alone.

What lies at its home comes down before it begins, and goes there with every checkpoint and at the
end. So a run that was killed on one machine goes on on another one, from what it sent last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.folder import POLICIES, RESULT
from trimtab.benchmarks.training.lease import LEASE, lease
from trimtab.benchmarks.training.mirror import MANIFEST, BlobStore, Copy, is_light
from trimtab.benchmarks.training.rundir import LOCK_FILE, check_writable
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.shelves import AddressBlobStore
from trimtab.benchmarks.training.storage import Store, child_of, is_address, open_store
from trimtab.errors import TrimtabError

__all__ = [
    "SCRATCH", "AddressRunStore", "RemoteRun", "RunStore", "at_home", "check_at_address", "copied",
    "localised", "replaced", "scratch_of", "visible",
]  # fmt: skip

logger = logging.getLogger(__name__)

SCRATCH = "TRIMTAB_SCRATCH"
"""Environment variable: where runs are carried out whose folders belong elsewhere."""
_TRIES = 3
_PAUSE = 2.0  # seconds between two of them


class RunStore(Protocol):
    """Where runs' folders belong, each by a name such as ``gym/Hopper-v5/sac/1a2b3c/seed0``."""

    shelf: BlobStore

    def address(self, where: str) -> str:
        """Return what others call a run's folder by."""

    def hold(self, where: str, *, wait: bool) -> AbstractContextManager[Callable[[], None]]:
        """Hold a folder for this process alone; yield what raises once that is not so any more."""

    def localised(self, config: RunConfig) -> RunConfig:
        """Return the settings with folders of this machine in place of those elsewhere."""


class AddressRunStore:
    """Runs at an address of pyarrow's.

    Args:
        address: such as ``s3://bucket/runs``.
    """

    def __init__(self, address: str) -> None:
        self._address, self._store = address, open_store(address, "out")
        self.shelf: BlobStore = AddressBlobStore(self._store)

    def address(self, where: str) -> str:
        """Return the address of a run's folder."""
        return child_of(self._address, where)

    @contextmanager
    def hold(self, where: str, *, wait: bool) -> Iterator[Callable[[], None]]:
        """Hold a run's folder by a lease.

        Raises:
            TrimtabError: if another process has it.
        """
        held = lease(self._store, where, wait=wait)
        if held is None:
            raise TrimtabError(
                f"{self.address(where)} is in use by another process; wait for it or choose "
                "another out="
            )
        try:
            yield held.check
        finally:
            held.end()

    def localised(self, config: RunConfig) -> RunConfig:
        """Return the settings with a scratch folder in place of the address."""
        return replaced(config, out=str(scratch_of(self._address)))


class RemoteRun:
    """A folder here and its copy at home.

    Args:
        copy: the copy; None where the folder is at home.
        check: raises once another process has it.
        address: of the copy.
    """

    def __init__(self, copy: Copy | None, check: Callable[[], None], address: str) -> None:
        self._copy, self.check, self.address = copy, check, address
        self._is_done = False

    @property
    def callbacks(self) -> Sequence[Callback]:
        """What sends the folder home with every checkpoint."""
        return () if self._copy is None else (_Sender(self),)

    def fetch(self) -> None:
        """Make the folder what its copy is; of a run that is done, checkpoints stay where it is."""
        if self._copy is not None:
            self._is_done = RESULT in (self._copy.files() or ())
            self._copy.fetch(is_light if self._is_done else lambda file: True)

    def send(self, tries: int = _TRIES) -> None:
        """Make the copy what the folder is.

        Raises:
            TrimtabError: if another process has it by now, or it cannot be written.
        """
        if self._copy is None or self._is_done:
            return
        self.check()
        for left in reversed(range(tries)):
            try:
                self._copy.send()
                return
            except TrimtabError as error:
                if not left:
                    raise
                logger.warning("%s; it is tried again", error)
                time.sleep(_PAUSE)


class _Sender(Callback):
    """Sends a run's folder home with every checkpoint."""

    def __init__(self, away: RemoteRun) -> None:
        self._away = away

    def on_checkpoint(self, now: RunProgress) -> None:
        """Send it; where that fails, the run goes on, and the next checkpoint is sent with it."""
        self._away.check()
        try:
            self._away.send(1)
        except TrimtabError as error:
            logger.warning("%s; the next checkpoint is sent again", error)


@contextmanager
def at_home(home: RunStore | None, where: str, folder: Path, *, wait: bool) -> Iterator[RemoteRun]:
    """Hold the home of a run's folder, if it has one elsewhere.

    Yields:
        What fetches and sends it.

    Raises:
        TrimtabError: if another process has it.
    """
    if home is None:
        yield RemoteRun(None, lambda: None, "")
        return
    with home.hold(where, wait=wait) as check:
        yield RemoteRun(Copy(home.shelf, where, folder), check, home.address(where))


def localised(config: RunConfig, home: RunStore | None) -> tuple[RunConfig, RunStore | None]:
    """Return the settings with paths of this machine in place of addresses, and the run's home.

    A base at an address comes down.

    Raises:
        TrimtabError: if an address is wrong, or nothing is there.
    """
    if is_address(config["out"]):
        home = AddressRunStore(config["out"])
    if home is not None:
        config = home.localised(config)
    if is_address(config["base"]):
        config = replaced(config, base=str(copied(config["base"], "base")))
    return config, home


def replaced(config: RunConfig, **changes: str) -> RunConfig:
    """Return the settings with some changed for this machine; they say what was asked for, too."""
    asked = {key: config[key] for key in changes}
    return dataclasses.replace(
        config, settings={**config.settings, **changes}, asked={**asked, **config.asked}
    )


def scratch_of(address: str) -> Path:
    """Return the folder of this machine for what belongs at an address.

    Raises:
        TrimtabError: if it cannot be written, or another user has made the one for this user.
    """
    chosen = os.environ.get(SCRATCH)
    root = Path(chosen or Path(tempfile.gettempdir()) / f"trimtab-{os.getuid()}")
    if chosen:
        check_writable(root, SCRATCH)
    else:
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            others = root.is_symlink() or root.stat().st_uid != os.getuid()
        except OSError as error:
            raise TrimtabError(
                f"cannot make {root}: {error.strerror}; name a folder with {SCRATCH}=…"
            ) from error
        if others:
            raise TrimtabError(f"{root} is another user's; name a folder with {SCRATCH}=…")
    return root / hashlib.sha256(address.encode()).hexdigest()[:16]


def copied(address: str, setting: str) -> Path:
    """Bring a finished run or a bundle at an address down, without its checkpoints.

    Args:
        address: of its folder.
        setting: what errors call it.

    Returns:
        Its folder on this machine.

    Raises:
        TrimtabError: if nothing is there.
    """
    place, mark, options = address.partition("?")
    above, _, name = place.rstrip("/").rpartition("/")
    store = open_store(above + mark + options, setting)
    folder = scratch_of(address) / name
    folder.mkdir(parents=True, exist_ok=True)
    if not Copy(AddressBlobStore(store), name, folder).fetch(is_light):
        shutil.rmtree(folder, ignore_errors=True)
        hint = _plain(store, name) or f"there is no run; see trimtab runs {above}"
        raise TrimtabError(f"{setting}={address}: {hint}")
    return folder


@contextmanager
def visible(place: str, setting: str) -> Iterator[Path]:
    """Yield a folder that looks as the one at a place: the place itself, or what is there of small.

    Checkpoints at an address come without their arrays, and the lease on a run is taken over as a
    lock. The folder is gone afterwards.

    Raises:
        TrimtabError: if it is an address that cannot be reached, or no run is there.
    """
    if not is_address(place):
        yield Path(place)
        return
    store = open_store(place, setting)
    shelf = AddressBlobStore(store)
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        found = store.find(MANIFEST)
        for where in found:
            folder = Path(scratch) / where
            folder.mkdir(parents=True, exist_ok=True)
            try:
                Copy(shelf, where, folder).fetch(
                    lambda file: is_light(file) and not file.startswith(f"{POLICIES}/")
                )
            except TrimtabError as error:
                if len(found) == 1:
                    raise
                logger.warning("left out: %s", error)
                shutil.rmtree(folder)
                continue
            _take_lease(store, where, folder)
        if not found:
            hint = _plain(store, "") or "there is no run"
            raise TrimtabError(f"{setting}={place}: {hint}")
        yield Path(scratch)


def check_at_address(place: str, setting: str) -> None:
    """Check that what lies at an address was written to it as to an address.

    Raises:
        TrimtabError: if it is an ordinary folder.
    """
    store = open_store(place, setting)
    if not store.find(MANIFEST) and (hint := _plain(store, "")):
        raise TrimtabError(f"{setting}={place}: {hint}")


def _plain(store: Store, name: str) -> str:
    """Return what to do with the files of an ordinary folder at an address; empty if none is there.

    Args:
        store: at the address, or above it.
        name: of the folder in it.
    """
    if not store.names(name):
        return ""
    why = "files are there that were not written to it as to an address (by out=)"
    if store.folder is None:
        return f"{why}; copy the folder to this machine and give its path"
    return f"{why}; give the plain path: {shlex.quote(str(store.folder / name))}"


def _take_lease(store: Store, where: str, folder: Path) -> None:
    """Write down the lease on a run, as a lease of another machine."""
    held: Any = store.read(f"{where}/{LEASE}")
    if held is not None:
        (folder / LOCK_FILE).write_bytes(held)
