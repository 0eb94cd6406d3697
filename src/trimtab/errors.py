"""The one error that a user is meant to see, and hints on words that nothing is called by."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

__all__ = [
    "Stopped", "TrimtabError", "closest", "nearest", "one_line_on_wrong_arguments", "yaml_fault",
]  # fmt: skip

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_MOST_NAMED = 40  # right words in one message; more of them are no help
_NEAR, _REST = 0.6, 0.5
"""How alike a word and a name must be, whole and without the parts that both have."""


class TrimtabError(ValueError):
    """Wrong input: one line that says what was wrong, where, and what to do.

    The command line prints it on standard error and exits with code 2; a library user catches a
    ``ValueError``. It lives apart from :mod:`trimtab.types` so that the robot runtime, which has no
    torch, can raise it too.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))


class Stopped(TrimtabError):
    """Work that was asked to stop (SIGTERM), after it saved what it needs to go on."""

    exit_code = 143  # 128 and the signal's number, as a shell would report it


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest right word, or all of them."""
    known = list(known)
    if not known:
        return "there are none"
    if close := closest(word, known):
        return f"did you mean {close}?"
    if len(known) > _MOST_NAMED:
        return f"there are {len(known)}, such as {', '.join(known[:5])}"
    return f"there are: {', '.join(known)}"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the name that a wrong word most likely stands for, or None where it is none of them.

    A word without a point is also held against what stands behind a name's last point, so that
    ``warmup_steps`` finds ``algorithm.warmup_steps``.
    """
    names = {name: _likeness(word, name) for name in known}
    best = max(names, key=lambda name: names[name], default=None)
    return best if best is not None and names[best] >= _NEAR else None


def _likeness(word: str, name: str) -> float:
    """Return how alike a word and a name are, from 0 to 1.

    Parts that both have, such as ``steps`` of ``sampling_steps`` and ``online_steps``, do not make
    them alike where the rest is different.
    """
    word, name = word.lower(), name.lower()
    whole = _ratio(word, name)
    if "." in name and "." not in word:
        name = name.rpartition(".")[2]
        whole = max(whole, _ratio(word, name))
    parts, others = (re.split(r"[._/ -]", text) for text in (word, name))
    rests = [[one for one in a if one not in b] for a, b in ((parts, others), (others, parts))]
    alike = not all(rests) or _ratio(*("_".join(rest) for rest in rests)) >= _REST
    return whole if alike else 0.0


def _ratio(word: str, name: str) -> float:
    return difflib.SequenceMatcher(None, name, word).ratio()


def yaml_fault(error: Exception) -> str:
    """Return what is wrong with a YAML text, and in which line, from its reader's error."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())[:200]
    return f"line {mark.line + 1}: {problem}"


def one_line_on_wrong_arguments(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Decorate a function of the package: arguments that it does not take are wrong input."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            known = [one.name for one in signature.parameters.values()]
            wrong = next((name for name in named if name not in known), "")
            raise TrimtabError(f"{function.__name__}: {error}; {nearest(wrong, known)}") from None
        return function(*given, **named)

    return checked
