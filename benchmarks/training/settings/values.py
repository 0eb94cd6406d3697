"""Checks of the values of a run's settings, whatever its method is, against their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.generator import Generator
from trimtab.benchmarks.training.settings.constructors import check_keywords, class_of
from trimtab.benchmarks.training.settings.groups import CONSTRUCTED
from trimtab.benchmarks.training.settings.run_settings import DatasetSettings, RunSettings
from trimtab.errors import TrimtabError, nearest
from trimtab.policies.base import Policy
from trimtab.settings import check_settings, fits, keywords_of

__all__ = ["as_whole", "check_device", "check_values"]

_PARENTS: Mapping[str, type[Any]] = MappingProxyType(
    {"algorithm": Algorithm, "policy": Policy, "source": Generator}
)
"""What the classes that settings name have to be children of."""


def as_whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which ``1e6`` is a whole number wherever one is asked for.

    Args:
        settings: every setting of a run by name; left as it is.

    Raises:
        TrimtabError: if a method or a policy names no class.
    """
    found = _whole(settings, RunSettings)
    for group in CONSTRUCTED:
        section = settings[group]
        if isinstance(section, Mapping) and "_target_" in section:
            chosen = class_of(section["_target_"], f"{group}._target_")
            found[group] = _whole(section, chosen)
    return found


def _whole(settings: Mapping[str, Any], chosen: type[Any]) -> dict[str, Any]:
    """Return settings of a class with 3.0 as 3 wherever a whole number is asked for."""
    known = keywords_of(chosen)
    found = dict(settings)
    for name, value in settings.items():
        kind = known[name].annotation if name in known else object
        if isinstance(value, float) and value.is_integer() and not fits(value, kind):
            found[name] = int(value) if fits(int(value), kind) else value
    return found


def check_values(settings: Mapping[str, Any]) -> None:
    """Check the values that are wrong whatever the method is.

    Args:
        settings: every setting of a run by name.

    Raises:
        TrimtabError: naming the setting.
    """
    data = settings["dataset"] or {}
    for section, values, kind in (("", settings, RunSettings), ("dataset", data, DatasetSettings)):
        declared = {name: values[name] for name in keywords_of(kind) if name in values}
        for name, value in declared.items():
            if value in ("", []):
                name = f"{section}.{name}" if section else name
                raise TrimtabError(f"{name}= is empty; give it a value, or leave it out")
        check_settings(kind, declared, section)
    check_device(settings["device"])
    for group in CONSTRUCTED:
        chosen = settings[group]
        if chosen is None:
            continue
        _check_child(group, chosen)
        known = check_keywords(group, chosen)
        for key in chosen:
            if key not in known and key != "_target_":
                raise TrimtabError(f"{group}.{key}: no such setting; {nearest(key, known)}")


def _check_child(group: str, section: Any) -> None:
    """Check that the class that a section names is a method, or a policy."""
    target = section.get("_target_") if isinstance(section, Mapping) else None
    if target is not None and not issubclass(
        class_of(target, f"{group}._target_"), parent := _PARENTS[group]
    ):
        raise TrimtabError(
            f"{group}._target_={target}: is no {group}: no child of {parent.__qualname__} in "
            f"{parent.__module__}"
        )


def check_device(device: str) -> None:
    """Check that ``device`` is one that torch has here.

    Raises:
        TrimtabError: if it is not.
    """
    try:
        torch.ones(1, device=device).item()  # "meta" has tensors, but no numbers in them
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        build = "" if torch.version.cuda else " (it is a build for processors alone)"
        told = f"device={device}: torch has no such device here{build}; use cpu"
        raise TrimtabError(told) from error
