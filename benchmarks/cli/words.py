"""Words of the command line: ``key=value``, what a command takes, and errors for wrong words.

Nothing heavy is imported here, so that ``trimtab --help`` answers at once.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trimtab.errors import TrimtabError

__all__ = ["MOST", "Command", "Setting", "near", "parse"]

MOST = 2**32 - 1
"""The largest whole number of a setting: NumPy's older generators take no larger seed."""


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+]*://")


@dataclass(frozen=True)
class Setting:
    """One ``key=value`` word of a command; ``default`` decides its type, ``...`` means required.

    With ``address`` its value may be one, such as ``s3://bucket/runs``, in place of a path.
    """

    default: Any
    help: str
    choices: tuple[str, ...] = ()
    address: bool = False


@dataclass(frozen=True)
class Command:
    """One command: where it is carried out, its settings, and what its help shows.

    ``settings`` is None for commands whose words are Hydra overrides of a run's settings. Words
    that begin with ``within`` are kept as they are, in the argument ``overrides``. Words without
    ``=`` are the values of the settings in ``bare``, in this order; by default only the first
    setting can be given so. Where it depends on the action which settings those are, ``bare_of``
    says by the action what comes after it.
    """

    function: str
    summary: str
    examples: tuple[str, ...]
    settings: Mapping[str, Setting] | None
    within: str = ""
    bare: tuple[str, ...] = ()
    bare_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def near(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a hint that names the nearest right word, or all right words if none is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"


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
            first setting. One that has choices, none of which is the word, is passed over if it has
            a default.
        bare_of: further such settings, by the value of the first one.

    Raises:
        TrimtabError: on an unknown setting, a missing one or a wrong value.
    """
    values: dict[str, Any] = {}
    places = list(bare)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or _ADDRESS.match(word):
            key, text = _next_place(settings, places, word) if bare else next(iter(settings)), word
            if not key and bare[0] not in values and settings[bare[0]].choices:
                key = bare[0]  # a wrong word in its place
            if not key:
                raise TrimtabError(
                    f"{command}: {word}: one word too many; see trimtab {command} --help"
                )
        key = key.lstrip("-+")
        if key not in settings:
            raise TrimtabError(f"{command}: no setting {key!r}; {near(key, settings)}")
        if key in values:
            raise TrimtabError(f"{command}: {key} is given twice, the second time as {text[:80]!r}")
        if bare and key == bare[0]:
            places = [place for place in places if place != key] + [*bare_of.get(text, ())]
        setting = settings[key]
        if text == "~" or text.startswith("~/"):  # not every shell reads it after "="
            text = os.path.expanduser(text)
        if setting.choices and text not in setting.choices:
            raise TrimtabError(f"{command}: {key}={text}: {near(text, setting.choices)}")
        if _ADDRESS.match(text) and not setting.address:
            raise TrimtabError(
                f"{command}: {key}={text}: takes no address; give a path on this machine"
            )
        if isinstance(setting.default, int):
            text = _without_exponent(text)
            if not (text.isascii() and text.isdigit()):
                raise TrimtabError(f"{command}: {key}={text}: must be a whole number, 0 or more")
            if len(text.lstrip("0")) > len(str(MOST)) or int(text) > MOST:
                raise TrimtabError(f"{command}: {key}={text}: must be at most {MOST}")
            values[key] = int(text)
        else:
            values[key] = text
    for key, setting in settings.items():
        if key not in values:
            if setting.default is ...:
                raise TrimtabError(f"{command}: {key} is not given: {setting.help}")
            values[key] = setting.default
    return values
