"""Every dataset format by its name; a new format is a new module here, and no edit elsewhere."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from trimtab.datasets.formats.base import Format
from trimtab.datasets.io.fetched import check_fetched
from trimtab.datasets.io.hdf5 import FORBIDDEN, check_opens
from trimtab.discovery import modules_in
from trimtab.errors import TrimtabError

__all__ = ["choose_output_format", "get_format", "list_formats", "recognise"]

_MAX_CHECKED = 1000  # files and folders, for one that may not be read; a home folder has many


@functools.cache
def _formats() -> Mapping[str, Format]:
    """Find the modules beside this one, and in folders beside it, that define ``FORMAT``."""
    found = {}
    for module in modules_in("datasets", "formats"):
        format = getattr(module, "FORMAT", None)
        if isinstance(format, Format):
            if format.name not in module.__name__.split(".")[-2:]:  # the module's or its folder's
                raise TrimtabError(
                    f"dataset format {format.name!r} lies in {module.__name__}; "
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
        TrimtabError: if there is nothing, it is empty, may not be read or opened, or no format
            knows it.
    """
    path = Path(path)
    if not os.path.exists(path):  # unlike Path.exists, it raises nothing below a closed folder
        raise TrimtabError(f"dataset {path}: there is no such file or folder; check the path")
    if not path.is_file() and not path.is_dir():  # a device may have no end
        raise TrimtabError(f"dataset {path}: neither a file nor a folder; check the path")
    _check_permission(path)
    below = itertools.chain.from_iterable(path.glob("[!.]*/" * deep + "[!.]*") for deep in range(3))
    for place in itertools.islice(below, _MAX_CHECKED):
        if not place.match("lost+found"):  # of a disk
            _check_permission(place)
    check_fetched(path)
    for format in list_formats():
        if format.recognises(path):
            return format
    if path.is_file():
        check_opens(path)
    raise TrimtabError(
        f"dataset {path}: in none of the formats {_names()}, or too damaged to tell; check the path"
    )


def _check_permission(path: Path) -> None:
    needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
    if os.path.exists(path) and not os.access(path, needed):  # a link may lead nowhere
        raise TrimtabError(f"dataset {path}: {FORBIDDEN}")


def choose_output_format(path: str | Path, name: str = "") -> Format:
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
    # An unknown suffix is part of a folder's name.
    suffix = path.suffix if any(path.suffix in f.suffixes for f in list_formats()) else ""
    possible = [f for f in list_formats() if f.save is not None and suffix in f.suffixes]
    if len(possible) != 1:
        names = [f.name for f in possible or list_formats() if f.save is not None]
        raise TrimtabError(f"{path}: say as= which format to write: {', '.join(names)}")
    return possible[0]


def _names() -> str:
    return ", ".join(_formats())
