"""Live curves: what a run logs, handed on to trackers such as TensorBoard while it goes on.

A tracker is a module of ``benchmarks/training/trackers/`` that defines ``TRACKER``; its name is
what the setting ``tracker`` takes. ``metrics.jsonl`` stays the record: trackers are told the same
numbers and nothing is read back from them. They change no number of a run, and its hash does not
know them.
"""

from __future__ import annotations

import functools
import importlib.util
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.benchmarks.training.without_task import NO_TASK
from trimtab.discovery import modules_in
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text

__all__ = ["Kind", "TrackedRun", "Tracker", "Trackers", "chosen_trackers", "start_trackers"]

FOLDER = "trackers"
"""Of a run: what trackers write into it, a folder each."""
_PROGRESS = ("env_steps", "updates", "seconds", "episodes")


class Tracker(Protocol):
    """Draws curves of one run."""

    def log(self, position: int, numbers: Mapping[str, float]) -> None:
        """Add points to curves.

        Args:
            position: how far the run is, updates on a dataset and environment steps together. It
                never falls, but for a run that goes on from its checkpoint: it repeats then what
                it logged after that checkpoint, with the same numbers.
            numbers: by curve, such as ``train/critic_loss`` or ``evaluation/success``.
        """
        ...

    def close(self) -> None:
        """Write what is not written yet; the run ends, or is to go on another time."""
        ...


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run as it starts.

    Attributes:
        id: of the run, the same when it goes on, and another when it is started anew.
        name: what a person calls it.
        group: the suite that it is of, or else the method.
        settings: every setting by name, as plain values.
        position: where it begins or goes on.
        folder: for files of this tracker alone; not made yet.
    """

    id: str
    name: str
    group: str
    settings: Mapping[str, Any]
    position: int
    folder: Path


@dataclass(frozen=True)
class Kind:
    """A kind of tracker: the one thing that its module has to define, as ``TRACKER``.

    Attributes:
        name: what the setting ``tracker`` takes; the extra that installs it has the same name.
        package: what it imports.
        start: called once a run, with its process's random states as they are; must not draw.
        check: called before a run has a folder; raises a :class:`TrimtabError` where what decides
            how it starts, such as an environment variable, is wrong.
    """

    name: str
    package: str
    start: Callable[[TrackedRun], Tracker]
    check: Callable[[], None] = lambda: None


@functools.cache
def _kinds() -> Mapping[str, Kind]:
    found = (module.TRACKER for module in modules_in("benchmarks", "training", "trackers"))
    return {kind.name: kind for kind in found}


def chosen_trackers(value: str | Sequence[str] | None) -> list[Kind]:
    """Return the kinds that the setting ``tracker`` names.

    Raises:
        TrimtabError: if there is none of a name, a name is there twice, its package is missing, or
            what it is started with is wrong.
    """
    names = [value] if isinstance(value, str) else list(value or ())
    for name in names:
        if name not in _kinds():
            raise TrimtabError(
                f"tracker={name}: there is no such tracker; {nearest(name, _kinds())}"
            )
        if names.count(name) > 1:
            raise TrimtabError(f"tracker: {name} is named twice; name it once")
        if importlib.util.find_spec(_kinds()[name].package) is None:
            raise TrimtabError(
                f"tracker={name}: {_kinds()[name].package} is not installed; "
                f"pip install 'trimtab[{name}]'"
            )
        _kinds()[name].check()
    return [_kinds()[name] for name in names]


class Trackers:
    """All trackers of a run, told the same."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = trackers
        self._lines: list[dict[str, float]] = []

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Take a line of ``metrics.jsonl``, which was written on the way to the next position."""
        if self._trackers:
            self._lines.append({_curve(name): float(value) for name, value in line.items()})

    def evaluation(self, position: int, scores: Mapping[str, float | None]) -> None:
        """Hand on what an evaluation found; None for a score that the task does not have."""
        found = {f"evaluation/{name}": value for name, value in scores.items()}
        self._lines.append({name: float(x) for name, x in found.items() if x is not None})
        self.arrived(position)

    def arrived(self, position: int) -> None:
        """Hand on what was taken, now that the run has come to a position."""
        lines, self._lines = self._lines, []
        for tracker in self._trackers:
            for line in lines:
                tracker.log(position, line)

    def close(self) -> None:
        """Close every tracker."""
        for tracker in self._trackers:
            tracker.close()


def _curve(name: str) -> str:
    if name in _PROGRESS:
        return f"progress/{name}"
    return f"train/{name.removeprefix('train_')}"


def start_trackers(config: RunConfig, config_hash: str, folder: Path, position: int) -> Trackers:
    """Start the trackers that the settings name.

    Args:
        config: settings of the run.
        config_hash: what its configuration is known by.
        folder: of the run; its caller holds the lock.
        position: where the run begins or goes on.

    Raises:
        TrimtabError: if a tracker cannot start.
    """
    chosen = chosen_trackers(config["tracker"])
    if not chosen:
        return Trackers()
    identity, seed = folder / FOLDER / "id", config["seed"]
    if not identity.is_file():  # random, so that a run that is started anew gets curves of its own
        identity.parent.mkdir(exist_ok=True)
        atomic_write_text(identity, f"{config_hash}-seed{seed}-{secrets.token_hex(3)}")
    known = identity.read_text(encoding="utf-8").strip()
    return Trackers(
        [
            kind.start(
                TrackedRun(
                    id=known,
                    name=f"{config['env'] or NO_TASK} {config.algorithm} {config_hash} seed{seed}",
                    group=config["suite_name"] or config.algorithm,
                    settings=config.settings,
                    position=position,
                    folder=folder / FOLDER / kind.name,
                )
            )
            for kind in chosen
        ]
    )
