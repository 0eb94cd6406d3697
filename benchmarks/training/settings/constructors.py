"""Classes that settings name, and the keywords of their constructors."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.settings import check_settings, keywords_of

__all__ = ["check_keywords", "class_of", "keywords"]


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
