"""What became of each run of a sweep: the lines of the table at its end."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass

from trimtab.benchmarks.suites.launch import Done
from trimtab.errors import Stopped, TrimtabError

__all__ = ["SweepLine", "sweep_line"]


@dataclass(frozen=True)
class SweepLine:
    """What there is to say of one run of a sweep.

    Attributes:
        label: the words in which it differs from the others.
        state: ``done``, ``failed`` or ``not finished``.
        return_: mean return of its last evaluation, if there was one.
        success: success rate of that evaluation, where the task has it.
        episodes: how many episodes that evaluation had.
        seconds: that it took.
        folder: where it lies.
        note: why it failed, or that it was done already.
        held_out: error of its exported policy on held-out episodes, where it has some.
    """

    label: str
    state: str
    return_: float | None = None
    success: float | None = None
    episodes: int | None = None
    seconds: float | None = None
    folder: str = ""
    note: str = ""
    held_out: float | None = None


def sweep_line(label: str, future: concurrent.futures.Future[Done]) -> SweepLine:
    """Return what became of a run that has ended.

    Args:
        label: the words in which it differs from the others.
        future: what its launcher gave for it.

    Raises:
        Stopped: if that was raised in it.
    """
    try:
        done = future.result()
    except Stopped:
        raise
    except TrimtabError as error:
        return SweepLine(label, "failed", note=str(error))
    found = done.summary
    note = "already done" if done.already_done else ""
    return SweepLine(
        label, "done", found["return"], found["success"], found["episodes"], found.get("seconds"),
        done.folder, note, found.get("held_out", {}).get("error"),
    )  # fmt: skip
