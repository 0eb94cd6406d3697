"""Words of the command line: ``key=value``, what a command takes, and errors for wrong words.

Nothing heavy is imported here, so that ``trimtab --help`` answers at once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.errors import TrimtabError, nearest
from trimtab.policies.serving.protocol import is_server

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

    With ``address`` its value may be one, such as ``s3://bucket/runs``, in place of a path; with
    ``served`` it may be that of a policy server, such as ``ws://127.0.0.1:8000``. A whole number is
    at least ``least``; a number with a fraction is greater than 0, or with ``zero`` may be 0. Where
    ``of`` is not empty, the setting belongs to these values of the command's ``by`` alone.
    """

    default: Any
    help: str
    choices: tuple[str, ...] = ()
    address: bool = False
    served: bool = False
    least: int = 0
    zero: bool = False
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """One command: where it is carried out, its settings, and what its help shows.

    ``settings`` is None for commands whose words are Hydra overrides of a run's settings. Words
    that begin with ``within`` are kept as they are, in the argument ``overrides``. Words without
    ``=`` are the values of the settings in ``bare``, in this order; by default only the first
    setting can be given so. ``by`` is the setting that says what the command does, where it does
    several things; ``bare_of`` says by its value which bare words come after it.
    """

    function: str
    summary: str
    examples: tuple[str, ...]
    settings: Mapping[str, Setting] | None
    within: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    by: str = ""
    bare_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _key_of(word: str) -> str:
    """Return what stands before ``=``: ``--format=json``, as of other programs, is ``format``."""
    return word.partition("=")[0].lstrip("-+")


def wants_only_text(words: Sequence[str]) -> bool:
    """Return whether nothing but a text, such as JSON or CSV, may reach standard output.

    That is known before the words are checked, because a plug-in may print as it is found.
    """
    formats = [word.partition("=")[2] for word in words if _key_of(word) == "format"]
    return any(text not in ("", "table") for text in formats) and not {*HELP} & {*words}


def parse(name: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's settings.

    Args:
        name: of the command.
        command: what it takes.
        words: what it was given.

    Raises:
        TrimtabError: on an unknown setting, a missing one, a wrong value, or one that has no effect
            on what the command is to do.
    """
    settings = command.settings or {}
    values: dict[str, Any] = {}
    bare = []
    for word in words:
        key, equals, text = word.partition("=")
        key = key.lstrip("-+")
        if not equals or _ADDRESS.match(word) or (key not in settings and os.path.exists(word)):
            bare.append(word)
        elif key not in settings:
            raise TrimtabError(f"{name}: no setting {key!r}; {nearest(key, settings)}")
        elif key in values:
            raise TrimtabError(f"{name}: {key} is given twice, the second time as {text[:80]!r}")
        else:
            values[key] = _value(name, key, text, settings[key])
    places = [*(command.bare or [next(iter(settings))])]
    places += command.bare_of.get(values.get(command.by, ""), ())
    for word in bare:  # after those with a key, so that none takes the place of one behind it
        key = _place(name, settings, word, places, values)
        values[key] = _value(name, key, word, settings[key])
        if key == command.by:
            places += command.bare_of.get(word, ())
    for key, setting in settings.items():
        if key not in values and setting.default is ...:
            raise TrimtabError(f"{name}: {key} is not given: {setting.help}")
    does = str(values.get(command.by, settings[command.by].default)) if command.by else ""
    for key in values:
        if settings[key].of and does not in settings[key].of:
            of = f"{command.by}={' or '.join(settings[key].of)}"
            raise TrimtabError(f"{name}: {key}= belongs to {of}, not to {command.by}={does}")
    return {key: values.get(key, setting.default) for key, setting in settings.items()}


def _place(
    name: str,
    settings: Mapping[str, Setting],
    word: str,
    places: list[str],
    values: Mapping[str, Any],
) -> str:
    """Return the setting whose value a bare word is, and take it off ``places``.

    One that has a value already, or choices, none of which is the word, is passed over.

    Raises:
        TrimtabError: if every place is taken.
    """
    choices: Sequence[str] = ()
    while places:
        key = places.pop(0)
        if key in values:
            continue
        setting = settings[key]
        if setting.default is ... or not setting.choices or word in setting.choices:
            return key
        choices = setting.choices
    if choices:
        raise TrimtabError(f"{name}: {word}: {nearest(word, choices)}")
    raise TrimtabError(f"{name}: {word}: one word too many; see trimtab {name} --help")


def _value(name: str, key: str, text: str, setting: Setting) -> Any:
    """Return the value that a setting is given by a text."""
    if not text:  # such as only=$UNSET
        leave = "" if setting.default is ... else "leave it out, or "
        raise TrimtabError(f"{name}: {key}= is empty; {leave}give it a value: {setting.help}")
    if text == "~" or text.startswith("~/"):  # not every shell reads it after "="
        text = os.path.expanduser(text)
    if setting.choices and text not in setting.choices:
        few = len(setting.choices) <= _FEW
        hint = nearest("" if few else text, setting.choices)
        raise TrimtabError(f"{name}: {key}={text}: {hint}")
    served = setting.served and is_server(text)
    if _ADDRESS.match(text) and not setting.address and not served:
        raise TrimtabError(f"{name}: {key}={text}: takes no address; give a path on this machine")
    if isinstance(setting.default, str) or setting.default is ...:
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if isinstance(setting.default, int):
        if not number.is_integer() or not setting.least <= number <= MOST:
            raise TrimtabError(
                f"{name}: {key}={text[:80]}: must be a whole number from {setting.least} to {MOST}"
            )
        return int(number)
    if not (0 < number < math.inf or (setting.zero and number == 0)):
        least = "from 0" if setting.zero else "greater than 0"
        raise TrimtabError(f"{name}: {key}={text[:80]}: must be a number {least}")
    return number
