"""Where a leaderboard's rows come from: folders of runs, their settings, and what is unfinished.

Numbers come from rows alone. What is here names things: configurations by the settings in which
they differ, and runs that are not in a table whole.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from trimtab.benchmarks.training.folder import (
    EPISODES,
    RunState,
    find_runs,
    find_runs_and_suites,
    inspect_run,
    is_run,
    named_runs,
    read_provenance,
)
from trimtab.benchmarks.training.locking import remedy
from trimtab.benchmarks.training.rows import SUITE_NOTE, collect_files, episode_files
from trimtab.benchmarks.training.settings.words import listed
from trimtab.benchmarks.training.settings_of import identity_words
from trimtab.errors import TrimtabError
from trimtab.files import read_json

__all__ = ["CONFIGURATIONS", "Sources", "collect", "named_places", "sources_of"]

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
        results: what ``result.json`` of each finished run says, by hash and seed.
    """

    folders: Mapping[tuple[str, int], Path] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    baselines: Mapping[str, str | None] = field(default_factory=dict)
    unplayed: tuple[Path, ...] = ()
    results: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)

    def newest(self, runs: Iterable[tuple[str, int]]) -> float:
        """Return when the newest of some runs was evaluated, as seconds; 0 where none is known."""
        files = [self.folders[run] / EPISODES for run in runs if run in self.folders]
        return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def named_places(runs: str) -> list[str]:
    """Return the places that ``runs=`` names: one, or several with commas between them.

    Raises:
        TrimtabError: if it names none.
    """
    if "," not in runs or os.path.lexists(runs):
        return [runs]
    places = listed(runs)
    if not places:
        raise TrimtabError(f"leaderboard: runs={runs}: names no place; give a folder of runs")
    return places


def collect(*places: Path) -> tuple[pa.Table, Sources]:
    """Return all rows in files or below folders, and where they come from.

    Rows of one run that are in several places count once; what a suite compares is only known
    where a single place is given.

    Raises:
        TrimtabError: if a place has no row, a file of rows is damaged, or two places contradict
            each other.
    """
    found = [_runs_and_suites(place) for place in places]
    known = [_known_of(place, runs) for place, (runs, _) in zip(places, found, strict=True)]
    for place, one in zip(places, known, strict=True):
        if one.unplayed and len(one.unplayed) == len(one.folders):
            why = one.notes[-1]
            raise TrimtabError(f"leaderboard: there is nothing to compare in {place}: {why}")
    files = [
        file
        for place, (runs, _) in zip(places, found, strict=True)
        for file in _files_of(place, runs)
    ]
    table = collect_files(files, Path(" and ".join(map(str, places))))
    notes = [note for one in known for note in one.notes]
    notes += _missing([folder for _, suites in found for folder in suites], table)
    return table, Sources(
        folders={run: folder for one in known for run, folder in one.folders.items()},
        settings={digest: words for one in known for digest, words in one.settings.items()},
        notes=tuple(notes),
        baselines=_baselines_of(places[0]) if len(places) == 1 else {},
        results={run: result for one in known for run, result in one.results.items()},
    )


def _runs_and_suites(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders of the runs in a place, and those of suites' notes."""
    if place.is_dir():
        return find_runs_and_suites(place)
    return [place.parent] if is_run(place.parent) else [], [place.parent]


def _files_of(place: Path, runs: Sequence[Path]) -> list[Path]:
    """Return the files of rows in a place with these runs.

    Raises:
        TrimtabError: if there is none.
    """
    if not place.exists() and glob.has_magic(str(place)):
        raise TrimtabError(f"leaderboard: {place} does not exist; {_without_pattern(place)}")
    if not place.is_dir():
        return [place]
    files = episode_files(place)
    if runs and not files:
        one = sources_of(runs).notes[0].removesuffix(".")  # without rows no run is done
        raise TrimtabError(
            f"leaderboard: no {EPISODES} below {place}; of its {len(runs)} run(s), {one}"
        )
    if not files:
        raise TrimtabError(
            f"episodes: no {EPISODES} below {place}; name a folder of runs, or train first"
        )
    return files


def _known_of(place: Path, runs: Sequence[Path]) -> Sources:
    """Return what is known of the runs in a place, or of those of a suite whose tables it has."""
    suite, _ = _noted(place if place.is_dir() else place.parent)
    known = sources_of(runs or [run for run in suite.values() if run.is_dir()])
    return dataclasses.replace(known, settings={**_published(place), **known.settings})


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
    results: dict[tuple[str, int], Mapping[str, Any]] = {}
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
        whole = inspect_run(folder)
        if whole.state == "done" and whole.result["return"] is None:  # it had no task
            unplayed.append(folder)
        elif whole.state == "done" and str(seed).isdigit():
            results[digest, int(seed)] = whole.result
        notes += _unfinished(whole)
    if unplayed:
        notes.append(
            f"{len(unplayed)} run(s) learned from data alone, without a task to play, and are in "
            f"no table: {named_runs(unplayed)}; trimtab runs shows their held-out errors."
        )
    return Sources(folders, settings, tuple(notes), unplayed=tuple(unplayed), results=results)


def _noted(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the folders of the runs of a suite whose tables lie in a folder, and those that wait.

    They are named ``<run>/<seed>``. There are none where no table was made or its note is damaged.
    """
    try:
        found = read_json(folder / SUITE_NOTE, "suite")
    except TrimtabError:
        return {}, []
    found = found if isinstance(found, dict) else {}
    runs, waiting = found.get("folders"), found.get("waiting")
    named = runs.items() if isinstance(runs, dict) else ()
    folders = {run: Path(path) for run, path in named if isinstance(path, str)}
    return folders, [str(run) for run in waiting] if isinstance(waiting, list) else []


def _missing(suites: Iterable[Path], table: pa.Table) -> list[str]:
    """Return a note on each suite of whose runs some have no rows here, with their seeds."""
    there = {(row["config_hash"], row["seed"]) for row in
             table.group_by(["config_hash", "seed"]).aggregate([]).to_pylist()}  # fmt: skip
    notes = []
    for folder in dict.fromkeys(suites):
        lacking: dict[str, list[str]] = {}
        folders, waiting = _noted(folder)
        gone = [
            run for run, path in folders.items()
            if run.rpartition("/")[2].isdigit()
            and (path.parent.name, int(run.rpartition("/")[2])) not in there
        ]  # fmt: skip
        for run in [*gone, *waiting]:
            name, _, seed = run.rpartition("/")
            lacking.setdefault(name, []).append(seed)
        if lacking:
            said = "; ".join(
                f"{name} seed{'s' * (len(seeds) > 1)} {', '.join(dict.fromkeys(seeds))}"
                for name, seeds in lacking.items()
            )
            notes.append(f"Missing of the suite {folder.name}: {said}.")
    return notes


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


def _unfinished(found: RunState) -> list[str]:
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
