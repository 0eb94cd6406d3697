"""``trimtab runs``: list runs, or compare two of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.benchmarks.cli.screen import print_json, print_line, print_rows
from trimtab.benchmarks.core.numerals import score_words
from trimtab.benchmarks.training.folder import find_runs
from trimtab.benchmarks.training.locking import remedy
from trimtab.benchmarks.training.overview import Line, lines_of
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.benchmarks.training.settings_of import settings_of, text_of
from trimtab.benchmarks.training.store import is_address, local_view
from trimtab.errors import TrimtabError

__all__ = ["runs"]

_MOST_SETTINGS = 8
"""Settings of one run in the table; JSON and ``runs diff`` have all."""


def runs(action: str, where: str, other: str, format: str) -> int:
    """List the runs in a folder, or print in which settings two runs differ.

    Raises:
        TrimtabError: if there is no such run.
    """
    return _ACTIONS[action](where, other, format)


def _list(where: str, other: str, format: str) -> int:
    if other:
        raise TrimtabError(f"runs: {where} {other}: {nearest(where, list(_ACTIONS))}")
    with local_view(where, "runs") as place:
        lines = lines_of(_runs_in(str(place)))
    if place != Path(where):  # an address: its runs by their names there
        lines = [
            replace(line, run=str(Path(line.run).relative_to(place)), command=None)
            for line in lines
        ]
        place = Path()
    if format == "json":
        print_json([line.to_json() for line in lines])
        return 0
    print_rows(f"{len(lines)} run{'s' if len(lines) > 1 else ''} in {where}",
               [_row(line, place) for line in lines])  # fmt: skip
    for line in lines:
        if line.state == "broken" and not is_address(where):
            print_line(remedy(Path(line.run)))
        elif line.state == "stopped" and line.command and len(lines) == 1:
            print_line(f"resume it with: {line.command}")
    return 0


def _row(line: Line, place: Path) -> dict[str, Any]:
    """Return a line of the table; the run by its path in the folder that was asked for."""
    score = score_words(line.return_, line.success, line.held_out)
    settings = [f"{name}={text_of(value)}" for name, value in line.settings.items()]
    if len(settings) > _MOST_SETTINGS:
        rest = f"and {len(settings) - _MOST_SETTINGS} more"
        settings = [*settings[:_MOST_SETTINGS], rest]
    path = Path(line.run)
    return {
        "run": str(path if path == place else path.relative_to(place)),
        "state": line.state,
        "settings": " ".join(settings),
        "last score": score,
        "env steps": f"{line.env_steps:,}",
        "updates": f"{line.updates:,}",
        "seconds": f"{line.seconds:,.0f}",
        "note": line.note,
    }


def _diff(where: str, other: str, format: str) -> int:
    if not other:
        raise TrimtabError("runs diff: give the folders of two runs, such as: runs diff a b")
    with local_view(where, "runs diff") as first, local_view(other, "runs diff") as second:
        one, two = _run_at(str(first)), _run_at(str(second))
        mine, theirs = settings_of(one), settings_of(two)
    if is_address(where) or is_address(other):
        one, two = Path(where), Path(other)
    names = [
        name
        for name in dict.fromkeys([*mine, *theirs])
        if text_of(mine.get(name)) != text_of(theirs.get(name))
    ]
    if format == "json":
        print_json({name: [mine.get(name), theirs.get(name)] for name in names})
        return 0
    if not names:
        print_line("the two runs have the same settings")
        return 0
    rows = [
        {"setting": name, str(one): _shown(mine, name), str(two): _shown(theirs, name)}
        for name in names
    ]
    print_rows(f"{len(names)} settings differ" if len(names) > 1 else "one setting differs", rows)
    return 0


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return text_of(settings[name]) if name in settings else "–"


def _runs_in(where: str) -> list[Path]:
    """Return the folders of the runs in a folder.

    Raises:
        TrimtabError: if there is none.
    """
    place = Path(where)
    if not place.is_dir():
        why = "is no folder" if place.exists() else "does not exist"
        hint = f"; {nearest(where, list(_ACTIONS))}" if _is_near(where) else ""
        raise TrimtabError(f"runs: {where} {why}; name a folder of runs, or train first{hint}")
    found = find_runs(place)
    if not found:
        raise TrimtabError(f"runs: there is no run in {where}; name a folder of runs")
    return found


def _is_near(word: str) -> bool:
    return "/" not in word and nearest(word, list(_ACTIONS)).startswith("did you mean")


def _run_at(where: str) -> Path:
    """Return the folder of the one run that is named by its own folder, or by one above it.

    Raises:
        TrimtabError: if it is none, or there are several.
    """
    found = _runs_in(where)
    if len(found) > 1:
        raise TrimtabError(
            f"runs: {where} holds {len(found)} runs; name one of them, such as "
            f"{shlex.quote(str(found[0]))}"
        )
    return found[0]


_ACTIONS = {"list": _list, "diff": _diff}
