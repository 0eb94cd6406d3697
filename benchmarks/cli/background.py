"""What is shown of a suite from another terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.cli.screen import print_json, print_line
from trimtab.benchmarks.training.locking import in_use
from trimtab.benchmarks.training.rows import SUITE_NOTE
from trimtab.errors import TrimtabError
from trimtab.files import read_json

__all__ = ["note_of", "print_status"]


def print_status(folder: Path, runs: str, format: str) -> None:
    """Print how far the suite is whose tables are, or will be, in a folder.

    Raises:
        TrimtabError: if it was never begun.
    """
    note = note_of(folder)
    if note is None:
        raise TrimtabError(f"bench: nothing was begun in {folder}; leave the word status out")
    done, waiting = list(note["folders"]), note.get("waiting", [])
    state = "running" if in_use(folder) else "stopped" if waiting else "done"
    if format == "json":
        print_json({"state": state, "done": done, "waiting": waiting})
        return
    hint = {
        "running": "it goes on",
        "stopped": "run the same command to resume",
        "done": "that is all",
    }
    print_line(f"{len(done)} of {len(done) + len(waiting)} runs are done; {hint[state]}")
    print_line(f"trimtab runs {shlex.quote(runs)} shows how far each is")


def note_of(folder: Path) -> Mapping[str, Any] | None:
    """Return what a suite has noted in the folder of its tables; None where it cannot be read."""
    try:
        found = read_json(folder / SUITE_NOTE, "suite")
    except TrimtabError:
        return None
    whole = isinstance(found, dict) and isinstance(found.get("folders"), dict)
    return found if whole and isinstance(found.get("waiting", []), list) else None
