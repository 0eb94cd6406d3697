"""What carries out many runs: one launcher behind ``trimtab bench`` and ``trimtab train -m``.

A launcher is a module of ``benchmarks/suites/launchers/`` that defines ``LAUNCHER``; its name is
what the setting ``launcher`` takes, and ``launcher.<name>=<value>`` are settings of its own. A run
is handed over as words, as ``trimtab train`` takes them, so that it can be carried out by a process
that shares nothing but the files. What became of it comes back as plain JSON values.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trimtab.benchmarks.core.own_code import in_a_line
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.benchmarks.training.train import train
from trimtab.discovery import modules_in
from trimtab.errors import Stopped, TrimtabError

__all__ = [
    "JOBS", "STOPPED", "WITHIN", "Chosen", "Done", "Kind", "Launcher", "Option", "Start", "Tell",
    "Work", "attempt", "carry_out", "chosen_launcher", "launcher_kinds", "line_of", "settle",
]  # fmt: skip

STOPPED = "stopped; the runs' states are saved, run the same command to resume"
JOBS = "jobs"
"""The folder, beside a suite's tables or a sweep's runs, for what launchers write of their own."""
WITHIN = "launcher."
"""What the words of a launcher's own settings begin with."""

Tell = Callable[[str, float, str], None]
"""Called with a run's label, the share of it that is done and a few words."""


@dataclass(frozen=True)
class Work:
    """One run: what progress bars call it, and its words."""

    label: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """What became of a run: its folder or address, its ``result.json``, whether it was there."""

    folder: str
    summary: Mapping[str, Any]
    already_done: bool


class Launcher(Protocol):
    """Carries out runs side by side."""

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        """Have a run carried out as soon as there is room for it.

        The future's error is what the run ended with.
        """
        ...

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        """Return those of the futures that are done, once there is one.

        Raises:
            Stopped: if the process is told to end (SIGTERM): the runs' states are saved.
            TrimtabError: if nothing can be carried out any more.
        """
        ...


@dataclass(frozen=True)
class Option:
    """A setting of a launcher's own; the type of ``default`` is that of its values."""

    default: int | float | str
    help: str


@dataclass(frozen=True)
class Start:
    """What a launcher is started with.

    Attributes:
        workers: runs side by side; 0 for as many as there is room for.
        tell: told how far each run is, from any thread.
        settings: a value for each of the launcher's options.
        folder: for files of the launcher's own; not made yet, and on a file system that every
            machine sees which shares one.
    """

    workers: int
    tell: Tell
    settings: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class Kind:
    """A kind of launcher: the one thing that its module has to define, as ``LAUNCHER``.

    Attributes:
        name: what the setting ``launcher`` takes; the extra that installs its package has the same.
        start: gives a launcher as a context; at its end none of its processes is left.
        options: settings of its own, by name.
        package: what it imports beside this project; empty for nothing.
        check: raises a ``TrimtabError`` where nothing could be started with these settings.
    """

    name: str
    start: Callable[[Start], AbstractContextManager[Launcher]]
    options: Mapping[str, Option] = field(default_factory=dict)
    package: str = ""
    check: Callable[[Mapping[str, Any]], None] = lambda settings: None


@dataclass(frozen=True)
class Chosen:
    """Where runs go: a launcher and its settings."""

    kind: Kind
    settings: Mapping[str, Any]

    def start(self, workers: int, tell: Tell, folder: Path) -> AbstractContextManager[Launcher]:
        """Give the launcher as a context; see :class:`Start`."""
        return self.kind.start(Start(workers, tell, self.settings, folder))


@functools.cache
def launcher_kinds() -> Mapping[str, Kind]:
    """Return every kind of launcher by its name."""
    found = (module.LAUNCHER for module in modules_in("benchmarks", "suites", "launchers"))
    return {kind.name: kind for kind in found}


def chosen_launcher(name: str, words: Sequence[str] = ()) -> Chosen:
    """Return a launcher with its settings, of which it is known that it can be started.

    Args:
        name: of the launcher.
        words: settings of its own, ``launcher.<name>=<value>``.

    Raises:
        TrimtabError: if there is no such launcher or setting, a value is wrong, its package is not
            installed, or what it hands runs to is not there.
    """
    kinds = launcher_kinds()
    if name not in kinds:
        raise TrimtabError(f"launcher={name}: there is no such launcher; {nearest(name, kinds)}")
    kind = kinds[name]
    settings: dict[str, Any] = {key: option.default for key, option in kind.options.items()}
    given: set[str] = set()
    for word in words:
        key, _, text = word.removeprefix(WITHIN).partition("=")
        if key not in kind.options:
            has = nearest(key, kind.options) if kind.options else "it has none"
            raise TrimtabError(f"{word}: launcher={name} has no setting {key!r}; {has}")
        if key in given:
            raise TrimtabError(f"{word}: {WITHIN}{key} is given twice")
        given.add(key)
        settings[key] = _value(word, text, kind.options[key].default)
    if kind.package and importlib.util.find_spec(kind.package) is None:
        raise TrimtabError(
            f"launcher={name}: {kind.package} is not installed; pip install 'trimtab[{name}]'"
        )
    kind.check(settings)
    return Chosen(kind, settings)


def _value(word: str, text: str, default: int | float | str) -> int | float | str:
    """Return the value of a launcher's setting.

    Raises:
        TrimtabError: if it is of another type than the default, or negative.
    """
    if isinstance(default, str):
        return text
    whole = isinstance(default, int)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1e9:
        kind = "whole number" if whole else "number"
        raise TrimtabError(f"{word}: must be a {kind} from 0 to 1000000000")
    return value


def carry_out(work: Work, tell: Tell) -> Done:
    """Carry out one run in this process: what a launcher's workers do.

    Args:
        work: the run.
        tell: told how far it is.

    Raises:
        Stopped: if the process is told to end.
        TrimtabError: as ``trimtab train``.
    """
    with in_a_line():  # what is raised here loses its traceback on its way
        result = train(
            compose_run(work.words),
            lambda share, text: tell(work.label, share, text),
            wait=True,  # two that share runs do each of them once
        )
    return Done(result.place, result.summary, result.already_done)


def attempt(work: Work, tell: Tell) -> dict[str, Any]:
    """Carry out one run, as :func:`carry_out`; return what became of it as JSON values.

    Raises:
        Stopped: if the process is told to end.
    """
    try:
        done = carry_out(work, tell)
    except Stopped:
        raise
    except TrimtabError as error:
        return {"error": str(error)}
    return {"folder": done.folder, "summary": dict(done.summary), "already_done": done.already_done}


def settle(future: concurrent.futures.Future[Done], outcome: Mapping[str, Any]) -> None:
    """Give a future what :func:`attempt` returned."""
    if "error" in outcome:
        future.set_exception(TrimtabError(outcome["error"]))
    else:
        future.set_result(Done(outcome["folder"], outcome["summary"], outcome["already_done"]))


def line_of(error: BaseException) -> str:
    """Return what an error of another package says, as one line; of Ray's, its cause."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {line_of(cause)}"
    return " ".join(str(error).split())[:300] or type(error).__name__
