"""What a room holds: the modules of a folder, so that a new one is found by being there."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import trimtab

__all__ = ["modules_in"]


def modules_in(*room: str) -> Iterator[ModuleType]:
    """Import every module of a folder of this package, and of the folders in it; by their paths.

    Args:
        room: the folder's names from the package on, such as ``"envs", "families"``.
    """
    for root in map(Path, trimtab.__path__):
        for file in sorted(root.joinpath(*room).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            yield importlib.import_module(".".join(("trimtab", *parts)))
