"""Classes that settings name, and the keywords of their constructors."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.files import sha256_file
from trimtab.settings import check_settings, keywords_of

__all__ = ["check_keywords", "class_of", "is_ours", "is_outside", "keywords", "source_of"]


def class_of(target: Any, setting: str) -> type[Any]:
    """Return the class that ``target`` names by its dotted path.

    Args:
        target: such as ``trimtab.algorithms.off_policy.sac.SAC``; it may be a user's own.
        setting: what errors call it.

    Raises:
        TrimtabError: if there is no such class, or its module cannot be imported.
    """
    if not (isinstance(target, str) and "." in target):
        raise TrimtabError(f"{setting}={target}: must be a class, such as my_module.MyClass")
    try:
        found = pkgutil.resolve_name(target)
    except (Exception, SystemExit) as error:  # its module may be a user's and hold any fault
        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TrimtabError(f"{setting}={target}: cannot be imported ({line})") from error
    if not isinstance(found, type):
        raise TrimtabError(f"{setting}={target}: is no class")
    return found


def keywords(target: Any, setting: str = "_target_") -> dict[str, inspect.Parameter]:
    """Return the settings of the class that ``target`` names, as :func:`keywords_of` does.

    Raises:
        TrimtabError: as :func:`class_of`.
    """
    return keywords_of(class_of(target, setting))


def check_keywords(setting: str, section: Any) -> dict[str, inspect.Parameter]:
    """Return the keywords of the constructor that ``section`` names, and check those it gives.

    Args:
        setting: the section's name, such as ``algorithm`` or ``dataset.controller``.
        section: ``_target_`` and keywords.

    Raises:
        TrimtabError: if it names no class, or a value is of another type than it is annotated with,
            or out of bounds.
    """
    if not isinstance(section, Mapping) or "_target_" not in section:
        raise TrimtabError(f"{setting}={section}: must name a class as {setting}._target_")
    chosen = class_of(section["_target_"], f"{setting}._target_")
    check_settings(chosen, section, setting)
    return keywords_of(chosen)


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
