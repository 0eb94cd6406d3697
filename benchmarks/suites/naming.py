"""What a suite's runs may be called and set, and which methods its file may name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from trimtab.benchmarks.training.settings.outside import is_file_of_settings
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError

__all__ = ["check_methods", "check_run", "method_of", "runs_once"]

Described = TypeVar("Described")

_NAME = re.compile(r"\w[\w~.-]*")
_OF_THE_SUITE = {
    "seed": "write seeds: […] in its place",
    "out": "leave it out and give bench runs=…",
    "suite_name": "leave it out; the suite's name is its file's",
}
"""Settings of a run that its suite decides, and what says the same of a suite."""


def runs_once(suite: str, runs: Iterable[tuple[str, Described]]) -> dict[str, Described]:
    """Return runs by name.

    Args:
        suite: its name, for messages.
        runs: names of runs, and what each of them is.

    Raises:
        TrimtabError: if two have the same name, such as one of the grid and one of ``runs``.
    """
    found: dict[str, Described] = {}
    for name, what in runs:
        if name in found:
            raise TrimtabError(
                f"suite {suite}: two runs are called {name}; rename what one of them is named "
                "after, in the grid or in runs"
            )
        found[name] = what
    return found


def check_run(suite: str, run: str, words: Sequence[str]) -> None:
    """Check a run's name, and that its words leave to the suite what is the suite's.

    Args:
        suite: its name, for messages.
        run: the name.
        words: all that its file sets for the run.

    Raises:
        TrimtabError: if the name is not plain, or a word sets what the suite decides.
    """
    if not _NAME.fullmatch(run):
        raise TrimtabError(
            f"suite {suite}: the name of the run {run!r} must begin with a letter or a digit and "
            "have only letters, digits, - _ ~ and . in it; rename it"
        )
    for word in words:
        remedy = _OF_THE_SUITE.get(_key(word))
        if remedy is not None:
            raise TrimtabError(
                f"suite {suite}: the run {run} has {word}, which a suite sets for its runs itself; "
                f"{remedy}"
            )


def method_of(words: Sequence[str]) -> str | None:
    """Return the method that a run's words name; None where they leave that to other files."""
    named = [word.partition("=")[2].strip("'\"") for word in words if _key(word) == "algorithm"]
    if not named or any(_key(word) == "experiment" for word in words):
        return None
    return Path(named[-1]).stem if is_file_of_settings(named[-1]) else named[-1]


def check_methods(
    suite: str, what: str, names: Iterable[str | None], methods: Collection[str | None]
) -> None:
    """Check that a part of a suite's file names methods, as far as it is known what those are.

    Labels such as ``dsrl_sac (flow)`` follow from the rows, so of one only its method is checked.

    Args:
        suite: its name, for messages.
        what: the part of the file.
        names: that it has.
        methods: that there are; with None among them, any name may be right.

    Raises:
        TrimtabError: if a name is that of no method.
    """
    known = sorted(method for method in methods if method is not None)
    for name in names if len(known) == len(methods) else ():
        if name is not None and name.partition(" (")[0] not in known:
            raise TrimtabError(
                f"suite {suite}: {what}: there is no method {name!r}; {nearest(name, known)}"
            )


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~").strip()
