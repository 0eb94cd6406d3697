"""``trimtab list``: what there is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from trimtab.benchmarks.cli.screen import print_json, print_rows
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.settings.groups import outside_file
from trimtab.benchmarks.training.settings.words import listed
from trimtab.envs.core.needs import unmet
from trimtab.envs.registry import list_families, list_open_families, list_tasks
from trimtab.errors import TrimtabError

__all__ = ["list_things"]

# These import torch, which takes a second. The other lists must not wait for it.
_METHODS = "trimtab.benchmarks.training.settings.catalog"
_LAUNCHERS = "trimtab.benchmarks.suites.launch"


def list_things(what: str, tag: str, format: str) -> int:
    """Print everything of one kind, such as all tasks."""
    rows = LISTINGS[what](what, tag)
    if format == "json":
        print_json(rows)
        return 0
    print_rows(what, rows)
    if what in EXPLAINED_BY:
        heading, listing = EXPLAINED_BY[what]
        print_rows(heading, listing(heading, ""))
    return 0


def _tasks(what: str, tag: str) -> list[dict[str, Any]]:

    # A family's name selects as a tag does.
    tags = {name: {*task.tags, name.split("/", 1)[0]} for name, task in list_tasks().items()}
    wanted = set(listed(tag))
    known = sorted(set().union(*tags.values()))
    for word in sorted(wanted.difference(known)):
        raise TrimtabError(f"list: no task has the tag {word!r}; there are: {', '.join(known)}")
    return [
        {
            what: name,
            "horizon": task.horizon,
            "success": task.success_key is not None,
            "tags": ", ".join(task.tags),
        }
        for name, task in list_tasks().items()
        if wanted <= tags[name]
    ]


def _families(what: str, tag: str) -> list[dict[str, Any]]:

    rows = []
    for family in list_families():
        installed = f"pip install '{family.install}'" if unmet(family) else "yes"
        rows.append({what: family.name, "tasks": len(family.tasks), "installed": installed})
    for opened in list_open_families():  # their tasks cannot be counted
        rows.append({what: f"{opened.name}:<id>", "tasks": None, "installed": "yes"})
    return rows


def _methods(what: str, tag: str) -> list[dict[str, Any]]:
    catalog = importlib.import_module(_METHODS)
    rows = []
    for name in groups.group_options(what):
        target = groups.constructed_section(what, name)["_target_"]
        class_of(target, f"{what}={name}: _target_")  # one line if it cannot be imported
        own = outside_file(f"{what}/{name}.yaml") is not None
        summary, paper = catalog.describe_algorithm(target, groups.heading(what, name), own=own)
        faithful = "yes" if catalog.is_faithful(target) else "no"
        rows.append(
            {
                what: name,
                "family": catalog.family_of(target),
                "faithful": faithful,
                "paper": paper,
                "summary": summary,
            }
        )
    order = {family: place for place, family in enumerate(catalog.FAMILIES)}
    return sorted(rows, key=lambda row: order.get(row["family"], len(order)))


def _families_of_methods(what: str, tag: str) -> list[dict[str, Any]]:
    families = importlib.import_module(_METHODS).FAMILIES
    return [{"family": name, "what its methods do": text} for name, text in families.items()]


def _files(*keys: str) -> Callable[[str, str], list[dict[str, Any]]]:
    """Return a listing of a group's files by some of their keys."""

    def listing(what: str, tag: str) -> list[dict[str, Any]]:
        files = {name: groups.load_group(what, name) for name in groups.group_options(what)}
        return [{what: name, **{k: file.get(k) for k in keys}} for name, file in files.items()]

    return listing


def _launchers(what: str, tag: str) -> list[dict[str, Any]]:
    launch = importlib.import_module(_LAUNCHERS)
    rows: list[dict[str, Any]] = []
    for name, kind in launch.launcher_kinds().items():
        needs = f"pip install 'trimtab[{name}]'" if kind.package else None
        rows.append({what: name, "setting": None, "default": None, "meaning": needs})
        rows += [
            {
                what: name,
                "setting": launch.WITHIN + key,
                "default": option.default,
                "meaning": option.help,
            }
            for key, option in kind.options.items()
        ]
    return rows


LISTINGS: dict[str, Callable[[str, str], list[dict[str, Any]]]] = {
    "env": _tasks,
    "family": _families,
    "algorithm": _methods,
    "policy": _files("_target_"),
    "dataset": _files("id", "env", "episodes"),
    "source": _files("_target_"),
    "suite": _files("title"),
    "launcher": _launchers,
}
"""How ``trimtab list`` finds what there is: (group, tag) -> rows."""

EXPLAINED_BY: dict[str, tuple[str, Callable[[str, str], list[dict[str, Any]]]]] = {
    "env": ("family", _families),
    "algorithm": ("family", _families_of_methods),
}
"""Listings that explain another listing: as tables, they are printed after it."""
