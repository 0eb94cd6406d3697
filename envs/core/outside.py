"""Families that users bring: by a variable or a plug-in."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.discovery import modules_outside
from trimtab.envs.core.faults import in_a_line
from trimtab.envs.core.fingerprint import source_digest
from trimtab.envs.core.options import LONGEST
from trimtab.envs.core.spec import Family, Task
from trimtab.errors import TrimtabError

__all__ = ["OUTSIDE", "families_outside"]

OUTSIDE = "TRIMTAB_FAMILIES"
"""Environment variable with the names of modules that define further families, after commas."""


def families_outside() -> Iterator[tuple[str, Family]]:
    """Yield the name of every module that a user brings, and its family with its source.

    Raises:
        TrimtabError: if a module cannot be imported, or its ``FAMILY`` is not what
            :class:`trimtab.envs.core.spec.Family` describes.
    """
    for name in _modules():
        yield name, _family_of(name)


def _modules() -> list[str]:
    named = [name.strip() for name in os.environ.get(OUTSIDE, "").split(",") if name.strip()]
    brought = [
        module.__name__
        for module in modules_outside("envs", "families")
        if hasattr(module, "FAMILY")  # others help these
    ]
    return list(dict.fromkeys([*named, *brought]))


def _family_of(name: str) -> Family:
    try:
        family = getattr(importlib.import_module(name), "FAMILY", None)
    except (Exception, SystemExit) as error:  # it is a user's, and may hold any fault
        raise TrimtabError(
            f"{OUTSIDE} names the module {name}, which cannot be imported ({in_a_line(error)})"
        ) from error
    if not isinstance(family, Family):
        raise TrimtabError(f"the module {name} defines no FAMILY of trimtab.envs.core.spec.Family")
    wrong = _wrong_field(family)
    if wrong is not None:
        raise TrimtabError(
            f"the module {name}: its FAMILY has {wrong}={getattr(family, wrong)!r}, which is not "
            "what trimtab.envs.core.spec.Family describes"
        )
    for task, declared in family.tasks.items():
        for line in _faults_of_task(declared):
            raise TrimtabError(f"the module {name}: its FAMILY's task {task!r} has {line}")
    return dataclasses.replace(family, source=source_digest(name))


def _wrong_field(family: Family) -> str | None:
    """Return the name of a field of a user's family that would break us later, or None."""
    tasks: Any = family.tasks
    right = {
        "name": isinstance(family.name, str) and re.fullmatch("[^/]+", family.name),
        "install": isinstance(family.install, str),
        "packages": isinstance(family.packages, tuple | list)
        and all(isinstance(package, str) for package in family.packages),
        "tasks": isinstance(tasks, Mapping)
        and all(isinstance(n, str) and isinstance(task, Task) for n, task in tasks.items()),
        "build": callable(family.build),
        "frames": callable(family.frames),
        "revision": type(family.revision) is int and family.revision >= 1,
    }
    return next((field for field, is_right in right.items() if not is_right), None)


def _faults_of_task(task: Task) -> Iterator[str]:
    """Yield what is wrong with a task as a user declares it, in words that follow "it has"."""
    horizon: Any = task.horizon
    key: Any = task.success_key
    if type(horizon) is not int or not 1 <= horizon <= LONGEST:
        yield f"horizon={horizon!r}; give a whole number of steps from 1 to {LONGEST}"
    if key is not None and (not isinstance(key, str) or not key):
        yield f"success_key={key!r}; give the name of an entry of info, or None"
    tags: Any = task.tags
    if not isinstance(tags, tuple | list) or not all(isinstance(tag, str) for tag in tags):
        yield f"tags={tags!r}; give a tuple of words"
    options: Any = task.options
    if not isinstance(options, Mapping) or not all(
        isinstance(name, str) and isinstance(choices, tuple | list) and choices
        for name, choices in options.items()
    ):
        yield f"options={options!r}; give each option a tuple of its values, the default first"
