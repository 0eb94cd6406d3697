"""Read a run's folder: its parts, whether each is intact, and the state of the run.

A finished run has a result, the rows of its evaluations and a policy; an unfinished one resumes
from its newest checkpoint. Nothing in this module writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trimtab.benchmarks.training.checkpoint import glance, places_of
from trimtab.benchmarks.training.locking import in_use, remedy
from trimtab.benchmarks.training.rows import FILE_NAME, SUITE_NOTE, read_episodes
from trimtab.errors import TrimtabError
from trimtab.files import read_bytes, read_json
from trimtab.policies.bundle.files import read_files

__all__ = [
    "CHECKPOINT", "CONFIG", "EPISODES", "METRICS", "POLICIES", "POLICY", "PROVENANCE", "RESULT",
    "STATES", "RunState", "check_done", "find_runs", "find_runs_and_suites", "inspect_run",
    "is_run", "log_fault", "named_runs", "read_config", "read_provenance", "read_result",
]  # fmt: skip

PROVENANCE, CONFIG, RESULT = "provenance.json", "config.yaml", "result.json"
EPISODES, METRICS = FILE_NAME, "metrics.jsonl"
CHECKPOINT, POLICY, POLICIES = "checkpoint", "policy", "policies"
_PARTS = (PROVENANCE, CONFIG, RESULT, EPISODES, METRICS, CHECKPOINT, POLICY)

STATES = ("running", "stopped", "done", "broken")
"""Locked by a process; resumable; finished; or with a part that is missing or damaged."""

_TAIL_BYTES = 1 << 16  # longer than any line of a log
_SEED_FOLDER = re.compile(r"seed\d+")
"""Pattern of the names of runs' folders."""
_MOST_NAMED = 3
"""How many folders a message lists; it gives only the number of the rest."""
_NUMBER_FIELDS = ("env_steps", "updates", "episodes", "seed")
_STATE_FIELDS = (
    "algorithm", "metrics", "rows", "phases", "updates", "env_steps", "reached", "seconds",
    "evaluation_due",
)  # fmt: skip
"""Fields of every checkpoint's state."""
_TOLD: Mapping[str, tuple[type, ...]] = {
    "identity": (dict,), "env": (dict,), "seed": (int,), "command": (list,), "plugins": (list,),
    "dataset": (dict, type(None)),
}  # fmt: skip
"""Entries of a run's provenance, and their types."""


@dataclass(frozen=True)
class RunState:
    """The state of a run, as found in its folder.

    Attributes:
        folder: the run's folder.
        state: one of :data:`STATES`.
        faults: what is wrong with each faulty part, by its name.
        result: content of ``result.json``; empty if it is missing or damaged.
        counters: plain values of the newest checkpoint; empty without one.
    """

    folder: Path
    state: str
    faults: Mapping[str, str]
    result: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def broken(self) -> str:
        """What is wrong, in one line."""
        return "; ".join(f"{part} {what}" for part, what in self.faults.items())


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's, even if some of its parts are lost."""
    if (folder / PROVENANCE).is_file():
        return True
    named = _SEED_FOLDER.fullmatch(folder.name) is not None
    there = any(os.path.lexists(folder / part) for part in _PARTS)
    return named and there


def find_runs(place: Path) -> list[Path]:
    """Return all run folders below ``place``, sorted; only ``place`` if it is a run."""
    return find_runs_and_suites(place)[0]


def find_runs_and_suites(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the run folders below ``place``, and the folders that hold a suite's note.

    Hidden folders, which are half written, are skipped.
    """
    if is_run(place):
        return [place], []
    found, suites = [], []
    for at, names, files in os.walk(place):
        if SUITE_NOTE in files:
            suites.append(Path(at))
        names[:] = sorted(x for x in names if not x.startswith("."))
        for name in list(names):
            with contextlib.suppress(PermissionError):  # another user's folder
                if is_run(Path(at, name)):
                    found.append(Path(at, name))
                    names.remove(name)
    return sorted(found), sorted(suites)


def named_runs(runs: Sequence[Path]) -> str:
    """Return up to three run folders as text, and how many more there are."""
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return ", ".join(shlex.quote(str(run)) for run in runs[:_MOST_NAMED]) + more


def read_result(folder: Path) -> dict[str, Any]:
    """Return the content of ``result.json``.

    Raises:
        TrimtabError: if it is missing or damaged; the message says what to do.
    """
    with _with_remedy(folder):
        return _parse_result(folder)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the content of ``provenance.json``.

    Raises:
        TrimtabError: if it is missing or damaged; the message says what to do.
    """
    with _with_remedy(folder):
        return _parse_provenance(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings in ``config.yaml``.

    Raises:
        TrimtabError: if it is missing or damaged; the message says what to do.
    """
    with _with_remedy(folder):
        return _parse_config(folder)


def check_done(folder: Path) -> None:
    """Check that all parts of a finished run are there and intact.

    Raises:
        TrimtabError: naming the faulty parts and what to do.
    """
    faults = _faults_of_done(folder)
    if faults:
        wrong = "; ".join(f"{part} {what}" for part, what in faults.items())
        raise TrimtabError(f"{folder} has a result, but is broken: {wrong}; {remedy(folder)}")


def inspect_run(folder: Path) -> RunState:
    """Return the state of a run and the faults of its parts.

    Args:
        folder: the run's folder.
    """
    running = in_use(folder)
    faults: dict[str, str] = {}
    for part, read in ((PROVENANCE, _parse_provenance), (CONFIG, _parse_config)):
        if os.path.lexists(folder / part):
            _note_fault(faults, folder, part, read)
    counters: dict[str, Any] = {}
    if places := _checkpoints(folder, faults):
        try:
            counters = _read_counters(places[-1])
        except TrimtabError as error:
            faults[CHECKPOINT] = _short_fault(error, folder)
    result: dict[str, Any] = {}
    done = os.path.lexists(folder / RESULT)
    if done:
        faults |= _faults_of_done(folder)
        with contextlib.suppress(TrimtabError):
            result = _parse_result(folder)
    else:
        if os.path.lexists(folder / EPISODES):
            _note_fault(faults, folder, EPISODES, lambda run: read_episodes(run / EPISODES))
        _check_log(folder, counters, faults)
        for part in (POLICY, POLICIES):
            if os.path.lexists(folder / part) and not (folder / part).is_dir():
                faults[part] = "is damaged (it is no folder)"
    state = "broken" if faults else "done" if done else "stopped"
    # A process is writing its files, or was when they were read.
    if running or in_use(folder):
        state, faults = "running", {}
    return RunState(folder, state, faults, result, counters)


def _faults_of_done(folder: Path) -> dict[str, str]:
    faults: dict[str, str] = {}
    _note_fault(faults, folder, RESULT, _parse_result)
    _note_fault(faults, folder, EPISODES, lambda run: read_episodes(run / EPISODES))
    _note_fault(faults, folder, POLICY, lambda run: read_files(run / POLICY))
    return faults


def _note_fault(
    faults: dict[str, str], folder: Path, part: str, read: Callable[[Path], Any]
) -> None:
    """Note a part that is missing or damaged."""
    if not os.path.lexists(folder / part):
        faults[part] = "is missing"
        return
    try:
        read(folder)
    except TrimtabError as error:
        faults[part] = _short_fault(error, folder)


def _short_fault(error: TrimtabError, folder: Path) -> str:
    """Return an error without the folder's path and without the advice after ``; ``."""
    text = str(error).replace(f"{folder}/", "").split("; ")[0]
    return f"is damaged ({text})"


def _checkpoints(folder: Path, faults: dict[str, str]) -> list[Path]:
    place = folder / CHECKPOINT
    if os.path.lexists(place) and not place.is_dir():
        faults[CHECKPOINT] = "is damaged (it is no folder)"
    return places_of(place)


def _read_counters(place: Path) -> dict[str, Any]:
    """Return the plain values of a checkpoint of a run.

    Raises:
        TrimtabError: if it is damaged, or not the state of a run.
    """
    found = glance(place)
    lacking = [name for name in _STATE_FIELDS if name not in found]
    if lacking:
        raise TrimtabError(f"{place} has no {lacking[0]}")
    log = found["metrics"] if isinstance(found["metrics"], dict) else {}
    for number in (found["env_steps"], found["updates"], found["seconds"], log.get("length")):
        if not isinstance(number, (int, float)):
            raise TrimtabError(f"{place} has {json.dumps(number)[:40]} for a number")
    return found


def _check_log(folder: Path, counters: Mapping[str, Any], faults: dict[str, str]) -> None:
    """Note a log that does not match the checkpoint; a missing log is no fault."""
    fault = log_fault(folder / METRICS, int(counters["metrics"]["length"]) if counters else 0)
    if fault:
        faults[METRICS] = f"is damaged (it {fault})"


def log_fault(path: Path, length: int) -> str:
    """Return why a run's log cannot be continued; empty if it can, or is missing.

    Args:
        path: the log.
        length: bytes of the log when the checkpoint was written.
    """
    if not os.path.lexists(path):
        return ""
    if not path.is_file():
        return "is no file"
    if path.stat().st_size < length:
        return "is shorter than the run's checkpoint says"
    begin = max(length - _TAIL_BYTES, 0)
    with open(path, "rb") as file:
        file.seek(begin)
        tail = file.read(length - begin)
    if length and not _ends_with_a_line(tail):
        return "has no line where the run's checkpoint was made"
    return ""


def _ends_with_a_line(text: bytes) -> bool:
    try:
        return text.endswith(b"\n") and isinstance(json.loads(text.splitlines()[-1]), dict)
    except ValueError:
        return False


@contextlib.contextmanager
def _with_remedy(folder: Path) -> Iterator[None]:
    """Add to an error what mends a damaged run."""
    try:
        yield
    except TrimtabError as error:
        raise TrimtabError(f"{error}; {remedy(folder)}") from error


def _object(folder: Path, name: str, what: str) -> dict[str, Any]:
    value = read_json(folder / name, what)
    if not isinstance(value, dict):
        raise TrimtabError(f"{what}: {folder / name} is not a JSON object")
    return value


def _parse_result(folder: Path) -> dict[str, Any]:
    value = _object(folder, RESULT, "result")
    for key in (*_NUMBER_FIELDS, "seconds"):
        _check_type(value, key, (int, float), folder / RESULT)
    for key in ("env", "algorithm", "config_hash"):
        _check_type(value, key, (str,), folder / RESULT)
    scores = (int, float, type(None))  # None for a run without a task
    for key in ("return", "success"):
        _check_type(value, key, scores, folder / RESULT)
    for name, kind in (("evaluations", dict), ("spending", str)):
        many = value.get(name, [])
        if not (isinstance(many, list) and all(isinstance(one, kind) for one in many)):
            raise TrimtabError(f"{folder / RESULT} says {name}={json.dumps(many)[:40]}")
    for one in value.get("evaluations", []):
        for key in ("env_steps", "updates"):
            _check_type(one, key, (int, float), folder / RESULT)
        for key in {"return", "success"} & one.keys():
            _check_type(one, key, scores, folder / RESULT)
    return value


def _parse_provenance(folder: Path) -> dict[str, Any]:
    value = _object(folder, PROVENANCE, "provenance")
    _check_type(value, "config_hash", (str,), folder / PROVENANCE)
    for name, kinds in _TOLD.items():
        if name in value:  # an early version wrote no identity
            _check_type(value, name, kinds, folder / PROVENANCE)
    for name in ("command", "plugins"):
        if not all(isinstance(word, str) for word in value.get(name, [])):
            raise TrimtabError(f"{folder / PROVENANCE} says {name}={json.dumps(value[name])[:40]}")
    return value


def _check_type(value: Mapping[str, Any], name: str, kinds: tuple[type, ...], file: Path) -> None:
    if name not in value:
        raise TrimtabError(f"{file} lacks {name}")
    if not isinstance(value[name], kinds) or isinstance(value[name], bool):
        raise TrimtabError(f"{file} says {name}={json.dumps(value[name])[:40]}")


def _parse_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        value = yaml.safe_load(read_bytes(path).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        line = " ".join(str(error).split())
        raise TrimtabError(f"config: {path} is not readable YAML ({line})") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TrimtabError(f"config: {path} holds no settings")
    return value
