"""Whose a class is, and the file that it is written in."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from trimtab.files import sha256_file

__all__ = ["is_ours", "is_outside", "source_of"]

_PACKAGE = __name__.partition(".")[0]


def is_ours(kind: type[Any]) -> bool:
    """Return whether a class is of this package."""
    return kind.__module__.partition(".")[0] == _PACKAGE


def is_outside(kind: type[Any]) -> bool:
    """Return whether a class is neither of this package nor of Python's own library."""
    top = kind.__module__.partition(".")[0]
    return not is_ours(kind) and top not in sys.stdlib_module_names - {"__main__"}


def source_of(kind: type[Any]) -> str | None:
    """Return the SHA-256 of the file that a class is written in; None where there is none."""
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return None
    return sha256_file(Path(file)) if file is not None and Path(file).is_file() else None
