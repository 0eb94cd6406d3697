"""Where a leaderboard's rows come from: folders of runs, their settings, and what is unfinished.

Numbers come from rows alone. What is here names things: configurations by the settings in which
they differ, and runs that are not in a table whole.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from trimtab.benchmarks.core.rundir import remedy
from trimtab.benchmarks.runs.folder import (
    EPISODES,
    Look,
    find_runs,
    look,
    named_runs,
    read_provenance,
)
from trimtab.benchmarks.runs.rows import SUITE_NOTE, collect_episodes, episode_files
from trimtab.benchmarks.runs.settings_of import identity_words
from trimtab.benchmarks.runs.shards import check_shards, check_whole
from trimtab.errors import TrimtabError
from trimtab.files import read_json

__all__ = ["CONFIGURATIONS", "Sources", "collect", "sources_of"]

CONFIGURATIONS = "configurations.json"
"""Beside published rows: the identity document of each hash."""


@dataclass(frozen=True)
class Sources:
    """What is known of rows beside the rows.

    Attributes:
        folders: folder of each run, by the hash of its configuration and its seed.
        settings: what decides the numbers of a configuration, by its hash and the words of the
            command line.
        notes: on runs that are unfinished or broken.
        baselines: where the rows are a suite's own, what it compares its methods with.
        unplayed: finished runs without a task, which have no rows.
    """

    folders: Mapping[tuple[str, int], Path] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    baselines: Mapping[str, str | None] = field(default_factory=dict)
    unplayed: tuple[Path, ...] = ()

    def newest(self, runs: Iterable[tuple[str, int]]) -> float:
        """Return when the newest of some runs was evaluated, as seconds; 0 where none is known."""
        files = [self.folders[run] / EPISODES for run in runs if run in self.folders]
        return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def collect(place: Path) -> tuple[pa.Table, Sources]:
    """Return all rows in a file or below a folder, and where they come from.

    Raises:
        TrimtabError: if there is no row, a file of rows is damaged, or a part of an evaluation is
            there twice or is missing.
    """
    if place.is_dir():
        check_shards(place)
    elif not place.exists() and glob.has_magic(str(place)):
        raise TrimtabError(f"leaderboard: {place} does not exist; {_without_pattern(place)}")
    else:
        check_whole(place)
    runs = find_runs(place) if place.is_dir() else []
    known = sources_of(runs)
    if runs and len(known.unplayed) == len(runs):
        raise TrimtabError(f"leaderboard: there is nothing to compare in {place}: {known.notes[0]}")
    if runs and not episode_files(place):
        one = known.notes[0].removesuffix(".")  # without rows no run is done
        raise TrimtabError(
            f"leaderboard: no {EPISODES} below {place}; of its {len(runs)} run(s), {one}"
        )
    table = collect_episodes(place)
    published = _published(place)
    settings = {**published, **known.settings}
    return table, Sources(known.folders, settings, known.notes, _baselines_of(place))


def _without_pattern(place: Path) -> str:
    """Return what to give in place of a path with ``*``: a folder, of which all rows are taken."""
    folder = next(path for path in place.parents if not glob.has_magic(str(path)))
    runs = find_runs(folder) if folder.is_dir() else []
    there = f", where there are {named_runs(runs)}" if runs else ""
    return f"give a folder, all of whose runs are taken, such as runs={folder}{there}"


def sources_of(runs: Iterable[Path]) -> Sources:
    """Return what is known of the runs in some folders."""
    folders: dict[tuple[str, int], Path] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    notes: list[str] = []
    unplayed: list[Path] = []
    for folder in runs:
        try:
            found = read_provenance(folder)
        except TrimtabError:
            found = {}
        digest = str(found.get("config_hash", folder.absolute().parent.name))
        seed = found.get("seed", folder.name.removeprefix("seed"))
        if str(seed).isdigit():
            folders[digest, int(seed)] = folder
        if words := identity_words(found.get("identity", {})):
            settings[digest] = words
        seen = look(folder)
        notes += _unfinished(seen)
        unplayed += [folder] if _played_nothing(seen) else []
    if unplayed:
        notes.append(
            f"{len(unplayed)} run(s) learned from data alone, without a task to play, and are in "
            f"no table: {named_runs(unplayed)}; trimtab runs shows their held-out errors."
        )
    return Sources(folders, settings, tuple(notes), unplayed=tuple(unplayed))


def _baselines_of(place: Path) -> dict[str, str | None]:
    """Return what the suite whose own rows are there compares its methods with, if one is.

    Raises:
        TrimtabError: if its note is damaged: a table without the suite's gains would be another.
    """
    note = (place if place.is_dir() else place.parent) / SUITE_NOTE
    try:
        found = read_json(note, "suite") if note.is_file() else {}
    except TrimtabError as error:
        raise TrimtabError(
            f"{error}; give the suite's trimtab bench again, or remove it"
        ) from error
    noted = found.get("baselines") if isinstance(found, dict) else None
    if not isinstance(noted or {}, dict) or not all(
        isinstance(name, str | None) for pair in (noted or {}).items() for name in pair
    ):
        raise TrimtabError(
            f"{note}: its baselines must be methods by name; give the suite's trimtab bench again, "
            "or remove it"
        )
    return noted or {}


def _played_nothing(found: Look) -> bool:
    """Return whether a run is at its end and had no task."""
    return found.state == "done" and found.result["return"] is None


def _unfinished(found: Look) -> list[str]:
    """Return the note on a run that is not at its end."""
    if found.state == "done":
        return []
    if found.state == "broken":
        return [f"{found.folder} is broken: {found.broken}; {remedy(found.folder)}."]
    far = [f"{found.counters.get(name, 0):,}" for name in ("env_steps", "updates")]
    at = f" at {far[0]} environment steps and {far[1]} updates" if found.counters else ""
    has = (found.folder / EPISODES).is_file()
    rows = "counts with its last evaluation" if has else "has no evaluation yet and no row"
    return [f"{found.folder} is unfinished ({found.state}{at}): it {rows}."]


def _published(place: Path) -> dict[str, Mapping[str, Any]]:
    """Return the settings of published configurations, by hash."""
    files = place.rglob(CONFIGURATIONS) if place.is_dir() else [place.parent / CONFIGURATIONS]
    found: dict[str, Mapping[str, Any]] = {}
    for file in files:
        documents = read_json(file, "configurations") if file.is_file() else {}
        for digest, document in documents.items() if isinstance(documents, dict) else ():
            if isinstance(document, dict) and (words := identity_words(document)):
                found[digest] = words
    return found
