"""What carries out many runs: one launcher behind ``trimtab bench`` and ``trimtab train -m``.

A launcher is a module of ``benchmarks/suites/launchers/`` that defines ``LAUNCHER``; its name is
what the setting ``launcher`` takes. A run is handed over as words, as ``trimtab train`` takes them,
so that it can be carried out by a process that shares nothing but the files.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.benchmarks.runs.train import train
from trimtab.benchmarks.settings.config import compose_run
from trimtab.benchmarks.settings.words import nearest
from trimtab.discovery import modules_in
from trimtab.errors import TrimtabError

__all__ = ["Done", "Kind", "Launcher", "Tell", "Work", "carry_out", "launcher_kind"]

STOPPED = "stopped; the runs' states are saved, run the same command to go on"

Tell = Callable[[str, float, str], None]
"""Called with a run's label, the share of it that is done and a few words."""


@dataclass(frozen=True)
class Work:
    """One run: what progress bars call it, and its words."""

    label: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """What became of a run: its folder, what ``result.json`` in it says, whether it was there."""

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
        """
        ...


@dataclass(frozen=True)
class Kind:
    """A kind of launcher: the one thing that its module has to define, as ``LAUNCHER``.

    Attributes:
        name: what the setting ``launcher`` takes.
        start: ``start(workers, tell)`` gives a launcher as a context; at its end none of its
            processes is left. ``workers``: runs side by side; 0 for as many as there is room for.
    """

    name: str
    start: Callable[[int, Tell], AbstractContextManager[Launcher]]


@functools.cache
def _kinds() -> Mapping[str, Kind]:
    found = (module.LAUNCHER for module in modules_in("benchmarks", "suites", "launchers"))
    return {kind.name: kind for kind in found}


def launcher_kind(name: str) -> Kind:
    """Return a kind of launcher.

    Raises:
        TrimtabError: if there is none of that name.
    """
    if name not in _kinds():
        raise TrimtabError(f"launcher={name}: there is no such launcher; {nearest(name, _kinds())}")
    return _kinds()[name]


def carry_out(work: Work, tell: Tell) -> Done:
    """Carry out one run in this process: what a launcher's workers do.

    Raises:
        Stopped: if the process is told to end.
        TrimtabError: as ``trimtab train``.
    """
    result = train(
        compose_run(work.words),
        lambda share, text: tell(work.label, share, text),
        wait=True,  # two that share runs do each of them once
    )
    return Done(str(result.folder), result.summary, result.already_done)
