"""What a room holds: the modules of a folder, so that a new one is found by being there."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import trimtab
from trimtab.errors import TrimtabError
from trimtab.plugins import plugins

__all__ = ["modules_here", "modules_in", "modules_outside"]


def modules_in(*room: str) -> Iterator[ModuleType]:
    """Import every module of a folder of this package, and of the folders in it; by their paths.

    Those of the same folder of every plug-in come after them.

    Args:
        room: the folder's names from the package on, such as ``"envs", "families"``.

    Raises:
        TrimtabError: if a module of a plug-in cannot be imported.
    """
    yield from modules_here(*room)
    yield from modules_outside(*room)


def modules_here(*room: str) -> Iterator[ModuleType]:
    """Import every module of a folder of this package alone.

    Args:
        room: as for :func:`modules_in`.
    """
    for root in map(Path, trimtab.__path__):
        for name in _names("trimtab", root, room):
            yield importlib.import_module(name)


def modules_outside(*room: str) -> Iterator[ModuleType]:
    """Import every module of a folder of every plug-in.

    Args:
        room: as for :func:`modules_in`.

    Raises:
        TrimtabError: if one cannot be imported.
    """
    for plugin in plugins():
        for name in _names(plugin.package, plugin.folder, room):
            try:
                with contextlib.redirect_stdout(sys.stderr):  # tables and JSON are on the other one
                    module = importlib.import_module(name)
            except TrimtabError:
                raise
            except (Exception, SystemExit) as error:  # it is a user's, and may hold any fault
                told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise TrimtabError(
                    f"plug-in {plugin.folder}: {name} cannot be imported ({told})"
                ) from error
            yield module


def _names(package: str, root: Path, room: tuple[str, ...]) -> Iterator[str]:
    for file in sorted(root.joinpath(*room).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        yield ".".join((package, *parts))
