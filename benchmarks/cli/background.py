"""A suite that goes on when its terminal is closed, and what is shown of it from another one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.cli.screen import print_json
from trimtab.benchmarks.training.rows import SUITE_NOTE
from trimtab.benchmarks.training.rundir import in_use
from trimtab.errors import TrimtabError
from trimtab.files import atomic_file, check_own, read_json

__all__ = ["LOG", "detach", "note_of", "print_status"]

LOG = "bench.log"
"""The file beside a suite's tables with what it says when no terminal is there."""
_BEGUN = 60.0  # seconds to wait for the process to be at it, or to end with its first error


def detach(words: Sequence[str], folder: Path) -> None:
    """Carry out ``trimtab bench`` with some words in a session of its own, and leave it alone.

    Args:
        words: of the command line.
        folder: of the suite's tables.

    Raises:
        TrimtabError: if another process is at it, what is there is not an earlier log, or the
            process ends at once with an error.
    """
    if in_use(folder):
        raise TrimtabError(
            f"{folder} is in use by another process; add status to see how far it is"
        )
    log = folder / LOG
    if not (folder / SUITE_NOTE).is_file():  # no earlier call has begun there
        check_own(log, None, "out")
    # Of two that are started at once, one finds the folder in use: the log is the other one's.
    with atomic_file(log) as own:
        with own.open("wb") as told:
            process = subprocess.Popen(
                [sys.executable, "-m", "trimtab.benchmarks.cli.main", "bench", *words],
                stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=True,
                env={**os.environ, "COLUMNS": "120"},
            )  # fmt: skip
        try:
            deadline = time.monotonic() + _BEGUN
            while process.poll() is None and time.monotonic() < deadline:
                if _is_at_it(process.pid, folder):
                    break
                time.sleep(0.1)
        except BaseException:  # its starter is interrupted before it has begun its work
            process.terminate()
            raise
        if process.poll():
            lines = own.read_text(errors="replace").strip().splitlines() or ["it says nothing"]
            raise TrimtabError(lines[-1].removeprefix("trimtab: "))
    plain = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    plain.print(f"process {process.pid} goes on without this terminal; it writes to {log}")
    plain.print("the same words with status in place of detach=true show how far it is")


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
        "stopped": "run the same command to go on",
        "done": "that is all",
    }
    plain = Console(soft_wrap=True, highlight=False, markup=False)
    plain.print(f"{len(done)} of {len(done) + len(waiting)} runs are done; {hint[state]}")
    plain.print(f"trimtab runs {shlex.quote(runs)} shows how far each is")


def note_of(folder: Path) -> Mapping[str, Any] | None:
    """Return what a suite has noted in the folder of its tables; None where it cannot be read."""
    try:
        found = read_json(folder / SUITE_NOTE, "suite")
    except TrimtabError:
        return None
    whole = isinstance(found, dict) and isinstance(found.get("folders"), dict)
    return found if whole and isinstance(found.get("waiting", []), list) else None


def _is_at_it(process: int, folder: Path) -> bool:
    """Return whether it is this process that carries the suite out."""
    return (note_of(folder) or {}).get("process") == process and in_use(folder)
