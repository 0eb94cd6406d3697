"""Classes that settings name, and the keywords of their constructors."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.errors import TrimtabError

__all__ = ["check_keywords", "class_of", "fits", "keywords", "keywords_of"]


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
    """Return the keyword-only parameters of the constructor that ``target`` names.

    A constructor that hands ``**keywords`` on to its parent takes the parent's too, but for those
    that the class is ``without``. Annotations are resolved to types; ``object`` where there is none
    or it cannot be.

    Raises:
        TrimtabError: as :func:`class_of`.
    """
    return keywords_of(class_of(target, setting))


def keywords_of(chosen: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a class's constructor, see :func:`keywords`."""
    found: dict[str, inspect.Parameter] = {}
    without = getattr(chosen, "without", ())
    for kind in chosen.__mro__:
        constructor = vars(kind).get("__init__")
        if not isinstance(constructor, types.FunctionType):  # none of its own, or one in C
            continue
        hints = _hints(constructor)
        parameters = inspect.signature(constructor).parameters.values()
        for one in parameters:
            if one.kind is inspect.Parameter.KEYWORD_ONLY and one.name not in without:
                found.setdefault(one.name, one.replace(annotation=hints.get(one.name, object)))
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            break
    return found


@functools.cache  # a run's settings are checked against the same few constructors many times
def _hints(constructor: types.FunctionType) -> dict[str, Any]:
    """Return a constructor's annotations as types; none if they cannot be resolved."""
    try:
        return typing.get_type_hints(constructor)
    except (NameError, AttributeError, TypeError):  # a user's, written for type checkers alone
        return {}


def check_keywords(setting: str, section: Any) -> dict[str, inspect.Parameter]:
    """Return the keywords of the constructor that ``section`` names, and check those it gives.

    Args:
        setting: the section's name, such as ``algorithm`` or ``dataset.controller``.
        section: ``_target_`` and keywords.

    Raises:
        TrimtabError: if it names no class, or a value is of another type than it is annotated with.
    """
    if not isinstance(section, Mapping) or "_target_" not in section:
        raise TrimtabError(f"{setting}={section}: must name a class as {setting}._target_")
    known = keywords(section["_target_"], f"{setting}._target_")
    for key, value in section.items():
        if key in known and not fits(value, known[key].annotation):
            kind = known[key].annotation
            wanted = str(kind.__name__ if isinstance(kind, type) else kind).replace(
                "collections.abc.", ""
            )
            raise TrimtabError(f"{setting}.{key}={value}: must be of type {wanted}")
    return known


def fits(value: Any, kind: Any) -> bool:
    """Return whether a plain value is of the type with which a keyword is annotated."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(fits(one, arguments[0]) for one in value)
    if kind in (int, float):
        allowed = int if kind is int else int | float
        return isinstance(value, allowed) and not isinstance(value, bool)
    return not isinstance(origin or kind, type) or isinstance(value, origin or kind)
