"""What a format's module defines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.contents import Contents
from trimtab.datasets.formats.hints import Load

__all__ = ["Format"]


def _nothing(dataset: Dataset) -> list[str]:
    return []


@dataclass(frozen=True)
class Format:
    """A dataset format: the one thing that a format's module has to define, as ``FORMAT``.

    Attributes:
        name: name of the format and of its module.
        description: what it is and what reads it, a few words.
        suffixes: how its files end; ``("",)`` for a folder.
        load: reads it.
        recognises: whether a path looks like this format; it never raises.
        save: writes it whole or not at all, or None where it is only read. Only what Trimtab
            wrote itself is replaced.
        loses: what the format cannot hold of a dataset, one line each; nothing where its content
            hash is kept.
        hints: names of the hints that ``load`` takes.
        open: reads it an episode at a time (``contents.Open``), or None where it is read whole.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    load: Load
    recognises: Callable[[Path], bool]
    save: Callable[[Dataset, Path], None] | None = None
    loses: Callable[[Dataset], list[str]] = _nothing
    hints: frozenset[str] = frozenset({"env", "id", "mask"})
    open: Callable[..., Contents] | None = None
