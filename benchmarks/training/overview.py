"""What a list of runs says of each: its state, where it is, its last score, its own settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from trimtab.benchmarks.training.folder import EPISODES, METRICS, RunState, inspect_run
from trimtab.benchmarks.training.rows import STOPPED_EARLY, read_episodes
from trimtab.benchmarks.training.settings_of import command_of, differing, settings_of
from trimtab.errors import TrimtabError
from trimtab.files import reading

__all__ = ["Line", "lines_of"]

_TAIL = 65536


@dataclass(frozen=True)
class Line:
    """One run of a list.

    Attributes:
        run: its folder.
        state: one of :data:`trimtab.benchmarks.training.folder.STATES`.
        settings: those in which it differs from another run of the list.
        return_: mean return of its last evaluation, if there was one.
        success: success rate of that evaluation, where the task has it.
        episodes: how many episodes that evaluation had.
        held_out: error of its exported policy on held-out episodes, where it has some.
        env_steps: environment steps that it has come to.
        updates: updates that it has come to.
        seconds: that it took to get there.
        note: what is wrong with it, or where it was stopped early.
        command: the ``trimtab train`` command that it was made with, where that is known.
    """

    run: str
    state: str
    settings: Mapping[str, Any]
    return_: float | None
    success: float | None
    episodes: int | None
    held_out: float | None
    env_steps: int
    updates: int
    seconds: float
    note: str
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {name.rstrip("_"): value for name, value in asdict(self).items()}


def lines_of(folders: Sequence[Path]) -> list[Line]:
    """Return what there is to say of some runs.

    Args:
        folders: of the runs.
    """
    own = differing([settings_of(folder) for folder in folders])
    return [_line(folder, settings) for folder, settings in zip(folders, own, strict=True)]


def _line(folder: Path, settings: Mapping[str, Any]) -> Line:
    found = inspect_run(folder)
    env_steps, updates, seconds = _reached(found)
    total, success, episodes = _score(found)
    held_out = found.result.get("held_out", {}).get("error")
    return Line(
        str(folder), found.state, settings, total, success, episodes, held_out, env_steps, updates,
        seconds, _note(found), command_of(folder),
    )  # fmt: skip


def _reached(found: RunState) -> tuple[int, int, float]:
    """Return how far a run is: environment steps, updates and seconds.

    A run that goes on is where its log says; one that is stopped goes on from its checkpoint, which
    the copy of a run at an address does not have.
    """
    if found.result:
        place: Mapping[str, Any] = found.result
    else:
        of_log = found.state == "running" or not found.counters
        logged = _last_line(found.folder / METRICS) if of_log else {}
        place = {**found.counters, **logged}
    numbers = [place.get(name, 0) for name in ("env_steps", "updates", "seconds")]
    return int(numbers[0]), int(numbers[1]), round(float(numbers[2]), 2)


def _last_line(log: Path) -> dict[str, Any]:
    """Return the position in the last whole line of a run's log."""
    try:
        with reading(log) as file:
            file.seek(max(0, os.path.getsize(log) - _TAIL))
            lines = file.read().split(b"\n")[:-1]
        value = json.loads(lines[-1])
        return {name: value[name] for name in ("env_steps", "updates", "seconds")}
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return {}


def _score(found: RunState) -> tuple[float | None, float | None, int | None]:
    """Return mean return, success rate and number of episodes of a run's last evaluation."""
    if found.result:
        return found.result["return"], found.result["success"], found.result["episodes"]
    try:
        rows = read_episodes(found.folder / EPISODES)
    except TrimtabError:
        return None, None, None
    if rows.num_rows == 0:
        return None, None, None
    at = pc.add(rows["env_steps"], rows["updates"])
    last = rows.filter(pc.equal(at, pc.max(at)))
    success = last["success"]
    rate = None if success.null_count else pc.mean(success.cast("float64")).as_py()
    return pc.mean(last["return"]).as_py(), rate, last.num_rows


def _note(found: RunState) -> str:
    """Return what is wrong with a run, or where it was stopped early."""
    if found.faults:
        return found.broken
    early = found.result.get(STOPPED_EARLY)
    if isinstance(early, Mapping):
        return f"stopped early by a callback, at {early.get('at')} of {early.get('of')}"
    return ""
