"""Copies of folders in a store: what :mod:`.mirror` asks of an address."""

from __future__ import annotations

import re
from pathlib import Path

from trimtab.benchmarks.training.mirror import (
    MANIFEST,
    Entry,
    Files,
    files_of_text,
    text_of_files,
)
from trimtab.benchmarks.training.storage import Store
from trimtab.errors import TrimtabError

__all__ = ["AddressBlobStore"]
_LETTERS = 16
_OBJECT = re.compile(rf"\.[0-9a-f]{{{_LETTERS}}}$")


class AddressBlobStore:
    """Copies in a store.

    Args:
        store: where they lie.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._swept: set[str] = set()

    def files(self, where: str) -> Files | None:
        """Return what a copy holds; None where there is none."""
        text = self.store.read(f"{where}/{MANIFEST}")
        return None if text is None else files_of_text(text, f"{self.store.address}, {where}")

    def bring(self, where: str, name: str, entry: Entry, path: Path, most: int | None) -> None:
        """Write a file of a copy, or its first bytes, to ``path``."""
        self.store.get(f"{where}/{_object(name, entry)}", path, most)

    def take(self, where: str, folder: Path, old: Files, new: Files) -> None:
        """Make a copy what the files of a folder are."""
        had = {_object(name, entry) for name, entry in old.items()}
        has = {_object(name, entry): (name, entry) for name, entry in new.items()}
        for stored, (name, entry) in has.items():
            if stored not in had:
                sent = self.store.put(f"{where}/{stored}", folder / name)
                if sent != entry.sha256:
                    raise TrimtabError(f"{folder / name}: was written to while it was sent")
        if old != new:
            self.store.write(f"{where}/{MANIFEST}", text_of_files(new))
        useless = had - {*has}
        if where not in self._swept:  # what a process sent that was killed before it named it
            self._swept.add(where)
            there = {name for name in self.store.names(where) if _OBJECT.search(name)}
            useless |= there - {*has}
        for stored in sorted(useless):
            self.store.remove(f"{where}/{stored}")


def _object(name: str, entry: Entry) -> str:
    return f"{name}.{entry.sha256[:_LETTERS]}"
