"""Words of the command line: ``key=value``, what a command takes, and errors for wrong words.

Nothing heavy is imported here, so that ``trimtab --help`` answers at once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trimtab.benchmarks.training.settings.words import closest, nearest
from trimtab.errors import TrimtabError

__all__ = ["HELP", "MOST", "Command", "Setting", "parse", "wants_only_text"]

MOST = 2**32 - 1
"""The largest whole number of a setting: NumPy's older generators take no larger seed."""

HELP = ("--help", "-h")
"""Words that ask what a command takes."""
_FEW = 4
"""As many choices or fewer are all named where a word is none of them: a guess may mislead."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+]*://")


@dataclass(frozen=True)
class Setting:
    """One ``key=value`` word of a command; ``default`` decides its type, ``...`` means required.

    With ``address`` its value may be one, such as ``s3://bucket/runs``, in place of a path. A whole
    number is at least ``least``, and a number with a fraction is greater than 0.
    """

    default: Any
    help: str
    choices: tuple[str, ...] = ()
    address: bool = False
    least: int = 0


@dataclass(frozen=True)
class Command:
    """One command: where it is carried out, its settings, and what its help shows.

    ``settings`` is None for commands whose words are Hydra overrides of a run's settings. Words
    that begin with ``within`` are kept as they are, in the argument ``overrides``. Words without
    ``=`` are the values of the settings in ``bare``, in this order; by default only the first
    setting can be given so. Where it depends on the action which settings those are, ``bare_of``
    says by the action what comes after it. ``light`` says of the settings whether little is
    imported for them: no simulator, and torch at most.
    """

    function: str
    summary: str
    examples: tuple[str, ...]
    settings: Mapping[str, Setting] | None
    within: str | tuple[str, ...] = ""
    bare: tuple[str, ...] = ()
    bare_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    light: Callable[[Mapping[str, Any]], bool] | None = None


def _key_of(word: str) -> str:
    """Return what stands before ``=``: ``--format=json``, as of other programs, is ``format``."""
    return word.partition("=")[0].lstrip("-+")


def wants_only_text(words: Sequence[str]) -> bool:
    """Return whether nothing but a text, such as JSON or CSV, may reach standard output.

    That is known before the words are checked, because a plug-in may print as it is found.
    """
    formats = [word.partition("=")[2] for word in words if _key_of(word) == "format"]
    return any(text not in ("", "table") for text in formats) and not {*HELP} & {*words}


def _without_exponent(text: str) -> str:
    """Return 1e3 as 1000; anything else as it is."""
    if re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", text) and float(text).is_integer():
        return str(int(float(text)))
    return text


def _next_place(settings: Mapping[str, Setting], places: list[str], word: str) -> str:
    """Take off ``places`` the setting whose value a bare word is; empty if none is left."""
    while places:
        key = places.pop(0)
        setting = settings[key]
        if setting.default is ... or not setting.choices or word in setting.choices:
            return key
    return ""


def _is_bare(word: str, settings: Mapping[str, Setting]) -> bool:
    """Return whether a word names no setting: it has no ``=``, or is an address or a path."""
    known = _key_of(word) in settings
    return (
        "=" not in word or _ADDRESS.match(word) is not None or (not known and os.path.exists(word))
    )


def _place_of(
    command: str,
    settings: Mapping[str, Setting],
    word: str,
    places: list[str],
    bare: Sequence[str],
    given: Collection[str],
) -> str:
    """Return the setting whose value a bare word is.

    Args:
        command: its name.
        settings: what it takes.
        word: the word.
        places: settings whose values may still be bare words; what is taken goes.
        bare: all such settings that the command begins with.
        given: settings that have a value by now.

    Raises:
        TrimtabError: if every place is taken.
    """
    if not bare:
        return next(iter(settings))
    key, first = _next_place(settings, places, word), bare[0]
    if key:
        return key
    choices = settings[first].choices
    # The word is a wrong one in the first place, unless what it is for is given as key=value.
    free = first not in given and choices
    if free and (not {*given} & {*bare} or closest(word, choices)):
        return first
    raise TrimtabError(f"{command}: {word}: one word too many; see trimtab {command} --help")


def _first(settings: Mapping[str, Setting], bare: Sequence[str]) -> str:
    """Return, as ``key=…``, the setting that a path without a key most likely is for."""
    paths = [key for key in bare or settings if not settings[key].choices]
    return f"{(paths or list(settings))[0]}=…"


def parse(
    command: str,
    settings: Mapping[str, Setting],
    words: Sequence[str],
    bare: Sequence[str] = (),
    bare_of: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the values of a command's settings.

    Args:
        command: its name.
        settings: what it takes.
        words: what it was given.
        bare: the settings whose values are the words without ``=``, in this order; by default the
            first setting. One that is given as ``key=value``, or that has choices, none of which is
            the word, is passed over if it has a default.
        bare_of: further such settings, by the value of the first one.

    Raises:
        TrimtabError: on an unknown setting, a missing one or a wrong value.
    """
    values: dict[str, Any] = {}
    places = list(bare)
    # Those with a key come first, so that a bare word never takes the place of one behind it.
    for word in sorted(words, key=lambda word: _is_bare(word, settings)):
        key, text = _key_of(word), word.partition("=")[2]
        if _is_bare(word, settings):
            key, text = _place_of(command, settings, word, places, bare, values.keys()), word
        if key not in settings:
            hint = nearest(key, settings)
            if not key.isidentifier():
                hint += f"; a path with = in it is {_first(settings, bare)}"
            raise TrimtabError(f"{command}: no setting {key!r}; {hint}")
        if key in values:
            raise TrimtabError(f"{command}: {key} is given twice, the second time as {text[:80]!r}")
        further = bare_of.get(text, ()) if bare and key == bare[0] else ()
        places = [place for place in [*places, *further] if place != key and place not in values]
        setting = settings[key]
        if not text and setting.default is not ...:  # such as only=$UNSET
            raise TrimtabError(
                f"{command}: {key}= is empty; leave it out, or give it a value: {setting.help}"
            )
        if text == "~" or text.startswith("~/"):  # not every shell reads it after "="
            text = os.path.expanduser(text)
        if setting.choices and text not in setting.choices:
            few = len(setting.choices) <= _FEW
            hint = nearest("" if few else text, setting.choices)
            raise TrimtabError(f"{command}: {key}={text}: {hint}")
        if _ADDRESS.match(text) and not setting.address:
            raise TrimtabError(
                f"{command}: {key}={text}: takes no address; give a path on this machine"
            )
        if isinstance(setting.default, int):
            text = _without_exponent(text)
            if not (text.isascii() and text.isdigit()) or int(text[:20]) < setting.least:
                raise TrimtabError(
                    f"{command}: {key}={text}: must be a whole number, {setting.least} or more"
                )
            if len(text.lstrip("0")) > len(str(MOST)) or int(text) > MOST:
                raise TrimtabError(f"{command}: {key}={text}: must be at most {MOST}")
            values[key] = int(text)
        elif isinstance(setting.default, float):
            values[key] = _positive(command, key, text)
        else:
            values[key] = text
    for key, setting in settings.items():
        if key not in values:
            if setting.default is ...:
                raise TrimtabError(f"{command}: {key} is not given: {setting.help}")
            values[key] = setting.default
    return values


def _positive(command: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise TrimtabError(f"{command}: {key}={text[:80]}: must be a number greater than 0")
    return value
