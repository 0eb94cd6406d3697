"""Words that set things: read by Hydra's grammar, short forms written out, names checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from trimtab.benchmarks.training.settings.constructors import keywords
from trimtab.benchmarks.training.settings.groups import (
    CONSTRUCTED,
    GROUPS,
    conf_file,
    constructed_section,
    group_options,
    is_file_of_settings,
    name_in_group,
)
from trimtab.benchmarks.training.settings.run_settings import RunSettings
from trimtab.benchmarks.training.settings.words import closest, nearest, quoted
from trimtab.datasets.catalog import external_datasets
from trimtab.errors import TrimtabError
from trimtab.settings import keywords_of

__all__ = ["check_name", "checked_words", "read_word"]

_HOME = re.compile(r"""^([^=]+=['"]?)~(?=/|$)""")


def read_word(word: str) -> Override:
    """Return a word as Hydra's grammar reads it.

    A value that it cannot read is one piece of text, such as a path with letters beyond ASCII;
    unless it might be several values, a list, a mapping or a text in quotes. A path that begins
    with ``~`` is one in the home folder: not every shell reads it after ``=``.

    Raises:
        TrimtabError: if it might.
    """
    word = _HOME.sub(lambda found: found[1] + os.path.expanduser("~"), word)
    key, equals, value = word.partition("=")
    try:
        override: Override = OverridesParser.create().parse_override(word)
        if not equals and not override.is_delete():
            raise HydraException("no value")
    except HydraException as error:
        if not equals or value.startswith(("[", "{", "'", '"')) or "," in value:
            raise TrimtabError(
                f"settings: {word}: cannot be read; values have one comma between two of them, "
                "such as seed=0,1; if it is text, put it into quotes for the shell and for Hydra: "
                f"\"{key}='…'\""
            ) from error
        return read_word(f"{key}={quoted(value)}")
    return override


def text_of(override: Override) -> str:
    """Return the word that an override was read from."""
    return str(override.input_line)


def checked_words(words: Sequence[str]) -> list[str]:
    """Return a run's words as Hydra composes them, with their names checked against what there is.

    Short forms of a dataset (its folder, runs, or others' id) and files of the user's own in the
    place of a group's name are written out. Every keyword of a constructor can be set, also one
    that no YAML has.

    Raises:
        TrimtabError: with the nearest right name; or if a setting has several values.
    """
    parsed = [override for word in words for override in _spelt_out(read_word(word))]
    # A group that a later ~group leaves out takes its settings with it.
    last = {one.key_or_group: n for n, one in enumerate(parsed) if one.is_delete()}
    parsed = [
        one
        for n, one in enumerate(parsed)
        if "." not in one.key_or_group or last.get(one.key_or_group.partition(".")[0], -1) < n
    ]
    for override in parsed:
        if override.is_sweep_override():
            raise TrimtabError(
                f"{text_of(override)}: these are several runs, a sweep: add -m; one value with a "
                "comma in it goes into quotes"
            )
        if override.key_or_group in GROUPS:
            _check_choice(override)
    chosen = {one.key_or_group: one.value() for one in parsed if isinstance(one.value(), str)}
    for override in parsed:
        _check_setting(override, chosen)
    return [_checked(override, chosen) for override in parsed]  # each name of a setting is right


def _spelt_out(override: Override) -> list[Override]:
    """Return what a word stands for."""
    key, value = override.key_or_group, override.value()
    if key not in GROUPS or override.is_delete():
        return [override]
    if isinstance(value, str) and is_file_of_settings(value):
        return [read_word(f"{key}={quoted(name_in_group(key, value))}")]
    if key != "dataset":
        return [override]
    if isinstance(value, list):
        runs = text_of(override).partition("=")[2]
        return [read_word("dataset=runs"), read_word(f"dataset.runs={runs}")]
    if not isinstance(value, str):
        return [override]
    if value in external_datasets():
        return [read_word("dataset=external"), read_word(f"dataset.name={quoted(value)}")]
    a_name = not value or value in group_options(key)
    if "/" in value or "." in value or (not a_name and Path(value).exists()):
        return [read_word("dataset=folder"), read_word(f"dataset.path={quoted(value)}")]
    return [override]


def _check_choice(override: Override) -> None:
    """Check the name that a group's setting is given."""
    group, value, text = override.key_or_group, override.value(), text_of(override)
    if override.is_delete():
        if value is not None and not isinstance(value, str):
            raise TrimtabError(f"{text}: leave the word out; what is not named is not used")
        return
    options = group_options(group)
    if value is None or isinstance(value, list | dict):
        raise TrimtabError(f"{text}: name one, or leave it out; {nearest('', options)}")
    check_name(group, str(value), options)
    conf_file(f"{group}/{value}.yaml")  # Hydra would not say which file is wrong


def _check_setting(override: Override, chosen: Mapping[str, Any]) -> None:
    """Check that there is the setting that a word gives a value."""
    key, text = override.key_or_group, text_of(override)
    head, _, rest = key.partition(".")
    top = [*keywords_of(RunSettings), *GROUPS]
    if head.startswith("hydra"):
        raise TrimtabError(
            f"{text}: Hydra's own settings have no effect here; leave the word out "
            "(algorithm._target_= names a class of your own, bench suite= a file)"
        )
    if head not in top:
        close = closest(key, [*top, *_inner_settings(chosen)])
        hint = f"did you mean {close}?" if close else nearest("", top)
        raise TrimtabError(f"{key}: there is no such setting; {hint}")
    if not rest and override.is_delete() and head not in GROUPS:
        raise TrimtabError(f"{text}: a run needs it; leave the word out for its default")
    if rest and head in GROUPS and head not in chosen and "experiment" not in chosen:
        own = ", or set algorithm.* where the method makes its own" if head == "policy" else ""
        raise TrimtabError(
            f"{text}: {head} is not given: add {head}=…{own}; see trimtab list {head}"
        )


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


def check_name(group: str, name: str, options: Sequence[str]) -> None:
    """Check a name that a group's setting is given.

    Args:
        group: such as ``algorithm``.
        name: what it is set to.
        options: the names there are.

    Raises:
        TrimtabError: with the nearest right one.
    """
    if name not in options:
        known = nearest(name, options)
        more = f"; trimtab list {group} shows them" if known.startswith("there are") else ""
        raise TrimtabError(f"{group}={name}: {known}{more}")


def _checked(override: Override, chosen: Mapping[str, Any]) -> str:
    """Return a word as Hydra takes it, checked if it is of a setting inside a group or mapping."""
    text = text_of(override)
    head, _, rest = override.key_or_group.partition(".")
    if not rest or override.is_delete():
        return text
    if head in CONSTRUCTED and head in chosen:
        _check_keyword(head, rest, str(chosen[head]), chosen.get(f"{head}._target_"))
    elif head == "dataset" and head in chosen:
        return _dataset_override(text, rest, str(chosen[head]))
    elif head != "env_options":  # an open mapping: the task says what it takes
        return text
    return _even_if_new(text)


def _check_keyword(group: str, key: str, choice: str, target: str | None) -> None:
    """Check that a constructor has a keyword.

    Args:
        group: such as ``algorithm``.
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
        of_run = head in keywords_of(RunSettings)
        hint = f"it is the run's: write {head}=…" if of_run else nearest(head, known)
        raise TrimtabError(f"{group}.{key}: {called} has no such setting; {hint}")


def _dataset_override(text: str, key: str, choice: str) -> str:
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
