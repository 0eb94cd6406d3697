"""A suite that goes on when its terminal is closed, and what is shown of it from another one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.cli.screen import print_json, print_rows
from trimtab.benchmarks.core.signals import interrupt_as_event, sigterm_as_event
from trimtab.benchmarks.suites.following import PROGRESS, progress_of
from trimtab.benchmarks.training.rundir import in_use
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import atomic_file, check_own

__all__ = ["LOG", "detach", "print_progress"]

LOG = "bench.log"
"""The file beside a suite's tables with what it says when no terminal is there."""
_BEGUN = 60.0  # seconds to wait for the process to be at it, or to end with its first error
_GRACE = 30.0  # seconds for it to save its runs' states when it is stopped
_HINTS = {
    "running": "it goes on",
    "done": "all runs are done",
    "ended": "run the same command to go on",
    "lost": "its process is gone; run the same command to go on",
}


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
    if not (folder / PROGRESS).is_file():  # no earlier call has begun there
        check_own(log, None, "out")
    # Of two that are started at once, one finds the folder in use: the log is the other one's.
    with atomic_file(log) as own:
        # Signals are held back before the process is started: one that came between its start and
        # this line's end would leave it behind.
        with interrupt_as_event("the suite's start") as interrupted, sigterm_as_event() as stopped:
            with own.open("wb") as told:
                process = subprocess.Popen(
                    [sys.executable, "-m", "trimtab.benchmarks.cli.main", "bench", *words],
                    stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=True,
                    env={**os.environ, "COLUMNS": "120"},
                )  # fmt: skip
            with _ended_if_stopped(process):
                deadline = time.monotonic() + _BEGUN
                begun = False
                while process.poll() is None and time.monotonic() < deadline and not begun:
                    stopped.wait(0.1)
                    begun = _is_at_it(process.pid, folder)
                    if stopped.is_set():
                        raise Stopped("bench: stopped; nothing goes on, run the same command again")
                    if interrupted.is_set():
                        raise KeyboardInterrupt
        if process.poll():
            lines = own.read_text(errors="replace").strip().splitlines() or ["it says nothing"]
            raise TrimtabError(lines[-1].removeprefix("trimtab: "))
    plain = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    plain.print(f"process {process.pid} goes on without this terminal; it writes to {log}")
    plain.print("the same words with status in place of detach=true show how far it is")


@contextmanager
def _ended_if_stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process if its starter is stopped before the process has begun its work."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def _is_at_it(process: int, folder: Path) -> bool:
    """Return whether it is this process that carries the suite out."""
    try:
        found = progress_of(folder)
    except TrimtabError:
        return False
    return found["state"] == "running" and found.get("process") == process


def print_progress(found: Mapping[str, Any], format: str) -> None:
    """Print how far a suite is."""
    if format == "json":
        print_json(found)
        return
    runs: Mapping[str, Mapping[str, Any]] = found["runs"]
    done = sum(run["state"] == "done" for run in runs.values())
    rows = [
        {"run": label, "state": run["state"], "done": f"{run['share']:.0%}", "": run["text"]}
        for label, run in runs.items()
    ]
    ago = max(time.time() - found["updated"], 0.0)
    print_rows(
        f"{found['suite']} by launcher={found['launcher']}: {done} of {len(runs)} runs, "
        f"{found['state']}, last news {ago:.0f} s ago",
        rows,
    )
    why = f"{found['ended']}; " if found["state"] == "ended" else ""
    plain = Console(soft_wrap=True, highlight=False, markup=False)
    plain.print(f"{why}{_HINTS[found['state']]}", markup=False)
