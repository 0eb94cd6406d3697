"""Every dataset format by its name; a new format is a new module here, and nothing else changes."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

import trimtab
from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.datasets.formats.contents import Contents

__all__ = ["Format", "Hints", "Load", "format_for", "get_format", "list_formats", "recognise"]


class Hints(TypedDict, total=False):
    """What a user may say of a file that does not say it itself.

    Attributes:
        env: id of the environment.
        id: id of the dataset, ``namespace/name-v0``.
        mask: name of a part, such as ``train``; only its episodes are kept.
        horizon: length of an episode that the clock ended, where the file does not mark it.
        keys: names of observation keys after commas; these alone are concatenated, in this order.
        task: id of the task that a run wants it for, where a file serves several.
        frames: cameras after commas, or ``all``, whose frames are decoded; otherwise none are.
    """

    env: str
    id: str
    mask: str
    horizon: int
    keys: str
    task: str
    frames: str


class Load(Protocol):
    """Reads a file or folder; every fault of it is one line (TrimtabError)."""

    def __call__(self, path: str | Path, **hints: Unpack[Hints]) -> Dataset:
        """Return the dataset in ``path``, checked."""
        ...


def _nothing(dataset: Dataset) -> list[str]:
    return []


@dataclass(frozen=True)
class Format:
    """A dataset format: the one thing that a format's module has to define, as ``FORMAT``.

    Attributes:
        name: name of the format and of its module.
        description: what it is and who reads it, a few words.
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


@functools.cache
def _formats() -> Mapping[str, Format]:
    """Find the modules beside this one that define ``FORMAT``."""
    found = {}
    for module in pkgutil.iter_modules([f"{path}/datasets/formats" for path in trimtab.__path__]):
        full = f"trimtab.datasets.formats.{module.name}"
        format = getattr(importlib.import_module(full), "FORMAT", None)
        if isinstance(format, Format):
            if format.name != module.name:
                raise TrimtabError(
                    f"dataset format {format.name!r} lies in datasets/formats/{module.name}.py; "
                    "give both the same name"
                )
            found[format.name] = format
    return dict(sorted(found.items()))


def list_formats() -> tuple[Format, ...]:
    """Return every format, sorted by name."""
    return tuple(_formats().values())


def get_format(name: str) -> Format:
    """Return the format ``name``.

    Raises:
        TrimtabError: if there is none.
    """
    formats = _formats()
    if name not in formats:
        raise TrimtabError(f"{name}: there is no such dataset format; there are {_names()}")
    return formats[name]


def recognise(path: str | Path) -> Format:
    """Return the format that ``path`` has, told from its content.

    Raises:
        TrimtabError: if there is nothing, or no format knows it.
    """
    path = Path(path)
    if not path.exists():
        raise TrimtabError(f"dataset {path}: there is no such file or folder; check the path")
    if not path.is_file() and not path.is_dir():  # a device may have no end
        raise TrimtabError(f"dataset {path}: neither a file nor a folder; check the path")
    for format in list_formats():
        if format.recognises(path):
            return format
    raise TrimtabError(
        f"dataset {path}: in none of the formats {_names()}, or too damaged to tell; check the path"
    )


def format_for(path: str | Path, name: str = "") -> Format:
    """Return the format to write ``path`` in: the one named, or the only one that it can be.

    Raises:
        TrimtabError: if it is unknown, only read, ambiguous, or of another suffix.
    """
    path = Path(path)
    if name:
        format = get_format(name)
        if format.save is None:
            writable = ", ".join(f.name for f in list_formats() if f.save is not None)
            raise TrimtabError(f"{name} is only read here; write one of {writable}")
        if "" not in format.suffixes and path.suffix not in format.suffixes:
            raise TrimtabError(
                f"{path}: a {name} file ends with {' or '.join(format.suffixes)}; rename it"
            )
        return format
    suffix = path.suffix if any(path.suffix in f.suffixes for f in list_formats()) else ""
    possible = [f for f in list_formats() if f.save is not None and suffix in f.suffixes]
    if len(possible) != 1:
        names = [f.name for f in possible or list_formats() if f.save is not None]
        raise TrimtabError(f"{path}: say as= which format to write: {', '.join(names)}")
    return possible[0]


def _names() -> str:
    return ", ".join(_formats())
