"""Words that set things: short forms written out, names checked against what there is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from trimtab.benchmarks.training.settings.constructors import keywords
from trimtab.benchmarks.training.settings.groups import (
    CONSTRUCTED,
    GROUPS,
    conf_file,
    constructed_section,
    group_options,
    name_in_group,
    top_level,
)
from trimtab.benchmarks.training.settings.outside import is_file_of_settings, outside_file
from trimtab.benchmarks.training.settings.renamed import RENAMED
from trimtab.benchmarks.training.settings.words import closest, nearest, quoted
from trimtab.datasets.catalog import external_datasets
from trimtab.errors import TrimtabError

__all__ = ["check_name", "check_overrides", "dataset_override", "readable", "spell_out"]


_PATHS = frozenset({"out", "base", "expert", "contract", "dataset.path"})
"""Settings whose value is a path, which may have any letters."""
_GRAMMAR = re.compile(r"""['"]|null$|(choice|range|interval|glob|sort|shuffle|tag)\(""")
"""How a value begins that is already written as Hydra reads it."""
_QUOTED = re.compile(r"""(['"])(.*)\1""")
"""A value that is one piece of text in quotes."""
_LISTS = {"oracles": True, "dataset": False}
"""Settings that take lists of paths; whether a list may be written without its brackets."""
_NEXT_LIST = re.compile(r"\]\s*,\s*\[")
_HOME = re.compile(r"""(?<=['"])~(?=/)""")
_AWKWARD = re.compile(r"""[\[\](),=~'"\\]|(?<!\$)\{""")
"""What Hydra's grammar would take for its own in a path; ``${seed}`` is to be filled in."""


def spell_out(overrides: Sequence[str]) -> list[str]:
    """Return a run's overrides with short forms written out, and paths in quotes.

    Short forms are those of a dataset (its folder, runs, or others' id), and files of the user's
    own in the place of a group's name.
    """
    spelt: list[str] = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in GROUPS and (inside := _QUOTED.fullmatch(value)):
            value = inside[2].replace(f"\\{inside[1]}", inside[1])
            override = f"{key}={value}"
        if key in GROUPS and is_file_of_settings(value) and _is_one(value):
            spelt.append(f"{key}={name_in_group(key, value)}")
            continue
        is_folder = not value.startswith("[") and (
            "/" in value or "." in value or value == "~" or (value and Path(value).exists())
        )
        if key == "dataset" and value in external_datasets():
            spelt += ["dataset=external", f"dataset.name={value}"]
        elif key == "dataset" and is_folder:
            spelt += ["dataset=folder", f"dataset.path={value}"]
        elif key == "dataset" and value.startswith("["):
            spelt += ["dataset=runs", f"dataset.runs={_paths_in_quotes(value)}"]
        else:
            spelt.append(_list_in_quotes(override))
    return [readable(word) for word in _without_left_out(spelt)]


def _without_left_out(words: Sequence[str]) -> list[str]:
    """Return words without the settings of a group that a later ``~group`` leaves out."""
    last = {word[1:]: place for place, word in enumerate(words) if word[:1] == "~"}
    return [
        word
        for place, word in enumerate(words)
        if "." not in (key := word.partition("=")[0]) or last.get(key.partition(".")[0], -1) < place
    ]


def _is_one(path: str) -> bool:
    """Return whether a comma in a path is the file's, and does not stand between several."""
    return "," not in path or os.path.exists(path)


def _list_in_quotes(word: str) -> str:
    """Return a word whose value is a list of paths with each of them in quotes."""
    key, _, value = word.partition("=")
    if key not in _LISTS or value in ("", "null"):
        return word
    if value[0] == "[":
        return f"{key}={_paths_in_quotes(value)}"
    return f"{key}={_paths_in_quotes(f'[{value}]')}" if _LISTS[key] else word


def _paths_in_quotes(listed: str) -> str:
    """Return a list of paths with each of them in quotes, unless it is written so already."""
    inside = listed[1:-1]
    if not listed.endswith("]") or set(inside) & set("'\"\\") or _NEXT_LIST.search(inside):
        return listed
    paths = [path.strip() for path in inside.split(",")]
    return f"[{','.join(quoted(os.path.expanduser(path)) for path in paths if path)}]"


def readable(word: str, *, several: bool = False) -> str:
    """Return a word with its value in quotes if Hydra would not read its letters without them.

    Args:
        word: of a run, spelt out; or of a sweep, as it was given.
        several: whether it is a sweep's, in which a comma stands between values.
    """
    word = _list_in_quotes(word) if several else word
    key, _, value = word.partition("=")
    if key in _PATHS or key == "dataset.runs":  # in quotes, so that no shell has read it
        value = _HOME.sub(lambda _: os.path.expanduser("~"), value)
        word = f"{key}={value}" if "=" in word else word
    if value.startswith(("[", "{")) and key in GROUPS or _GRAMMAR.match(value):
        return word
    if several and (key in _PATHS or key in GROUPS):
        paths = [path.strip() for path in value.split(",")]
        return f"{key}={','.join(_path(path) for path in paths)}" if "=" in word else word
    if key in _PATHS and _AWKWARD.search(value):
        return f"{key}={quoted(os.path.expanduser(value))}"
    plain = value[:1] not in ("[", "{") and not set(value) & set("'\"(),")  # one piece of text
    return f"{key}={quoted(value)}" if plain and not value.isascii() else word


def _path(path: str) -> str:
    """Return a path, or a name, as one of the values of a sweep."""
    awkward = _AWKWARD.search(path) or not path.isascii()
    return quoted(os.path.expanduser(path)) if awkward else path


def check_overrides(overrides: Sequence[str]) -> list[str]:
    """Check names against what there is, and let every constructor keyword be set.

    Hydra only lets a key be set that some YAML has; a keyword that a YAML leaves at its default is
    as good, so its override gets Hydra's ``++``.

    Args:
        overrides: words as :func:`spell_out` returns them.

    Raises:
        TrimtabError: with the nearest right name; or if one has several values.
    """
    parser = OverridesParser.create()
    top = top_level()
    parsed = parser.parse_overrides(list(overrides))
    for text, override in zip(overrides, parsed, strict=True):
        if override.key_or_group not in GROUPS:
            continue
        if not override.is_delete():  # before any word about what is chosen, wherever it stands
            _check_choice(text, override)
        elif not isinstance(override.value(), str | None):
            raise TrimtabError(f"{text}: leave the word out; what is not named is not used")
    chosen = {p.key_or_group: p.value() for p in parsed if isinstance(p.value(), str)}
    for text, override in zip(overrides, parsed, strict=True):
        if override.is_sweep_override():
            raise TrimtabError(
                f"{text}: these are several runs, a sweep: add -m; one value with a comma in it "
                "goes into quotes"
            )
        key = override.key_or_group
        head = key.partition(".")[0]
        if head.startswith("hydra"):
            raise TrimtabError(
                f"{text}: Hydra's own settings have no effect here; leave the word out "
                "(algorithm._target_= names a class of your own, bench suite= a file)"
            )
        if head not in top:
            close = closest(key, [*top, *_inner_settings(chosen)])
            hint = f"did you mean {close}?" if close else nearest("", top)
            raise TrimtabError(f"{key}: there is no such setting; {hint}")
    checked: list[str] = []
    for text, override in zip(overrides, parsed, strict=True):  # each name of a setting is right
        head, _, rest = override.key_or_group.partition(".")
        if not rest and override.is_delete() and head not in GROUPS:
            raise TrimtabError(f"{text}: a run needs it; leave the word out for its default")
        if rest and head in GROUPS and head not in chosen and "experiment" not in chosen:
            raise TrimtabError(
                f"{text}: {head} is not given: add {head}=…; see trimtab list {head}"
            )
        if rest and not override.is_delete():
            text = _inner_override(text, head, rest, chosen)
        checked.append(text)
    return checked


def _inner_settings(chosen: Mapping[str, Any]) -> list[str]:
    """Return the settings of the chosen method, policy and data, as ``algorithm.<keyword>``."""
    found = []
    for group in (*CONSTRUCTED, "dataset"):
        if group in chosen and group in CONSTRUCTED:
            target = chosen.get(f"{group}._target_")
            target = target or constructed_section(group, chosen[group])["_target_"]
            found += [f"{group}.{name}" for name in keywords(target, f"{group}._target_")]
        elif group in chosen:
            found += [f"{group}.{name!s}" for name in conf_file(f"{group}/{chosen[group]}.yaml")]
    return found


def _check_choice(text: str, override: Override) -> None:
    """Check the name, or the names of a sweep, that a group's setting is given."""
    group = override.key_or_group
    options = group_options(group)
    swept = override.is_sweep_override()
    for one in override.sweep_string_iterator() if swept else [override.value()]:
        if swept and is_file_of_settings(str(one)):  # read once it is known to be a sweep
            continue
        if one in (None, "null") or isinstance(one, list | dict):
            raise TrimtabError(f"{text}: name one, or leave it out; {nearest('', options)}")
        check_name(group, str(one), options)
        if outside_file(f"{group}/{one}.yaml") is not None:
            conf_file(f"{group}/{one}.yaml")  # Hydra would not say which file is wrong


def check_name(group: str, name: str, options: Sequence[str]) -> None:
    """Check a name that a group's setting is given.

    Args:
        group: such as ``algorithm``.
        name: what it is set to.
        options: the names there are.

    Raises:
        TrimtabError: with the name of now, or the nearest right one.
    """
    if group == GROUPS[0] and name in RENAMED:
        raise TrimtabError(
            f"{group}={name}: is called {RENAMED[name]} now; write {group}={RENAMED[name]}"
        )
    if name not in options and os.path.dirname(name):
        what = "is a folder" if Path(name).is_dir() else "is no name"
        raise TrimtabError(
            f"{group}={name}: {what}; give a .yaml file of your own, or a name that trimtab list "
            f"{group} shows"
        )
    if name not in options:
        known = nearest(name, options)
        more = f"; trimtab list {group} shows them" if known.startswith("there are") else ""
        raise TrimtabError(f"{group}={name}: {known}{more}")


def _inner_override(text: str, head: str, rest: str, chosen: Mapping[str, Any]) -> str:
    """Return an override of a setting inside a group or mapping as Hydra takes it, checked."""
    if head in CONSTRUCTED and head in chosen:
        own = chosen.get(f"{head}._target_")
        return _constructor_override(text, head, rest, str(chosen[head]), own)
    if head == "dataset" and head in chosen:
        return dataset_override(text, rest, str(chosen[head]))
    if head == "env_options":  # an open mapping: the task says what it takes
        return _even_if_new(text)
    return text


def _constructor_override(text: str, group: str, key: str, choice: str, target: str | None) -> str:
    """Return an override of a constructor's keyword, checked.

    Args:
        text: the word.
        group: ``algorithm`` or ``policy``.
        key: the keyword.
        choice: name of the group's file that is chosen.
        target: the class that takes the place of the file's, if one is named.
    """
    section = constructed_section(group, choice)
    target = target or section["_target_"]
    known = keywords(target, f"{group}._target_")
    head = key.partition(".")[0]
    if head not in known and head != "_target_":
        called = choice if target == section["_target_"] else target
        of_run = head in conf_file("config.yaml") and head not in GROUPS
        hint = f"it is the run's: write {head}=…" if of_run else nearest(head, known)
        raise TrimtabError(f"{group}.{key}: {called} has no such setting; {hint}")
    return _even_if_new(text)


def dataset_override(text: str, key: str, choice: str) -> str:
    """Return an override of a dataset's setting as Hydra takes it, checked.

    Args:
        text: the word.
        key: its setting, without ``dataset.``.
        choice: name of the dataset.

    Raises:
        TrimtabError: with the nearest right name.
    """
    section = conf_file(f"dataset/{choice}.yaml")
    head, _, rest = key.partition(".")
    listed = [str(key) for key in section]  # `in` would not see those that are still to be given
    if head not in listed:
        raise TrimtabError(f"dataset.{key}: {choice} has no such setting; {nearest(head, listed)}")
    if head == "controller" and rest:
        known = keywords(section[head]["_target_"], "dataset.controller._target_")
        word = rest.partition(".")[0]
        if word not in known and word != "_target_":
            raise TrimtabError(
                f"dataset.{key}: {choice}'s controller has no such setting; {nearest(word, known)}"
            )
    return _even_if_new(text) if rest else text


def _even_if_new(text: str) -> str:
    return text if text.startswith("+") else f"++{text}"
