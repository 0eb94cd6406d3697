"""What help says of a method's or a policy's own keywords: their values, and what they mean."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from trimtab.benchmarks.training.settings.constructors import class_of, keywords
from trimtab.benchmarks.training.settings.groups import constructed_section, heading, load_group
from trimtab.benchmarks.training.settings.run_settings import RunSettings
from trimtab.settings import keywords_of

__all__ = ["keywords_help", "meanings", "settings_help"]

_ARGUMENT = re.compile(r"^(\w+): (.*)$")
_AS_IN = re.compile(r"as in ([\w-]+)")


def settings_help() -> list[str]:
    """Return a line for each setting of the run: its default, and what it means."""
    told, defaults = meanings(RunSettings), vars(RunSettings())
    return [f"{key}: {_plain(defaults[key])} # {told[key]}" for key in keywords_of(RunSettings)]


def keywords_help(group: str, name: str) -> list[str]:
    """Return a line for each keyword of a method or a policy, and for what it sets of the run.

    Args:
        group: ``algorithm`` or ``policy``.
        name: of one of the group's files.

    Raises:
        TrimtabError: if there is no such file, or its class cannot be imported.
    """
    file = load_group(group, name)
    section: Any = OmegaConf.to_container(constructed_section(group, name))
    target, setting = section["_target_"], f"{group}._target_"
    chosen = class_of(target, setting)
    told, derived = meanings(chosen), getattr(chosen, "derived", ())
    summary = heading(group, name).partition("\n")[0]
    lines = [f"{group}={name}: {summary}" if summary else f"{group}={name}"]
    for key, parameter in keywords(target, setting).items():
        if key in derived:
            continue
        value = _plain(section.get(key, parameter.default))
        lines.append(f"  {group}.{key}: {value} # {told.get(key, '')}".rstrip(" #"))
    if len(lines) == 1:
        lines.append("  no settings of its own")
    run = {key: value for key, value in file.items() if key != group} if group in file else {}
    lines += [
        f"  {key}: {_plain(value)} # of the run, unless you give it" for key, value in run.items()
    ]
    return lines


def meanings(kind: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a class and its parents say of their arguments, by name.

    Where a class says that an argument is as in a parent, the parent's words stand there.
    """
    found: dict[str, str] = {}
    by_class: dict[str, dict[str, str]] = {}
    for one in reversed(kind.__mro__):
        for name, text in _arguments(vars(one).get("__doc__") or "").items():
            named = _AS_IN.match(text)
            above = by_class.get(named[1].replace("-", ""), {}) if named is not None else {}
            rest = text[named.end() :] if named is not None else ""
            found[name] = f"{above[name]}{rest}" if name in above else text
        by_class[one.__name__] = dict(found)
    return found


def _arguments(docstring: str) -> dict[str, str]:
    """Return the arguments that a docstring in Google's style describes, each in one line."""
    section = inspect.cleandoc(docstring).partition("\nArgs:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in section.split("\n"):
        argument = _ARGUMENT.match(line.removeprefix("    "))
        if not line.startswith("    "):
            break
        if argument is not None and not line.startswith("     "):
            name, text = argument.groups()
            found[name] = text
        elif name:
            found[name] += f" {line.strip()}"
    return {name: text.removesuffix(".") for name, text in found.items()}


def _plain(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_plain(one)}' for key, one in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)
