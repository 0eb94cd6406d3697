"""What became of each run of a sweep: the lines of the table at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.benchmarks.suites.launch import Done, Work
from trimtab.benchmarks.training.folder import read_provenance
from trimtab.benchmarks.training.overview import lines_of
from trimtab.benchmarks.training.rundir import is_set_aside
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.without_task import NO_TASK
from trimtab.errors import TrimtabError

__all__ = ["Outcome", "outcomes_of"]


@dataclass(frozen=True)
class Outcome:
    """What there is to say of one run of a sweep.

    Attributes:
        label: the words in which it differs from the others.
        state: done, failed, stopped, not started, or what its folder says otherwise.
        return_: mean return of its last evaluation, if there was one.
        success: success rate of that evaluation, where the task has it.
        episodes: how many episodes that evaluation had.
        seconds: that it took; None if it was never started.
        folder: where it lies; empty if it was never started.
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


def outcomes_of(
    works: Sequence[Work],
    runs: Sequence[RunConfig],
    done: Mapping[Work, Done],
    failed: Mapping[Work, str],
) -> list[Outcome]:
    """Return what became of each run, in their order.

    Args:
        works: the runs as they were handed to a launcher.
        runs: their settings.
        done: those that came to their end.
        failed: why others failed, in one line each.
    """
    return [
        _ended(work.label, done[work])
        if work in done
        else _unfinished(work, run, failed.get(work, ""))
        for work, run in zip(works, runs, strict=True)
    ]


def _ended(label: str, done: Done) -> Outcome:
    found = done.summary
    note = "already done" if done.already_done else ""
    return Outcome(
        label, "done", found["return"], found["success"], found["episodes"], found.get("seconds"),
        done.folder, note, found.get("held_out", {}).get("error"),
    )  # fmt: skip


def _unfinished(work: Work, run: RunConfig, reason: str) -> Outcome:
    """Return what there is of a run that failed, or that was not carried out to its end."""
    folder = _folder(run)
    if folder is None:
        return Outcome(work.label, "failed" if reason else "not started", note=reason)
    line = lines_of([folder])[0]
    return Outcome(
        work.label, "failed" if reason else line.state, line.return_, line.success, line.episodes,
        line.seconds, line.run, reason or line.note,
    )  # fmt: skip


def _folder(run: RunConfig) -> Path | None:
    """Return the folder of a run by the words that it has noted; None where there is none.

    What it is called by, its hash, is only known once its base and its data have been read.
    """
    place: Path = Path(run["out"]) / (run["env"] or NO_TASK) / run.algorithm
    folders: list[Path] = sorted(place.glob(f"*/seed{run['seed']}"))
    for folder in folders:
        try:
            noted = read_provenance(folder).get("command")
        except TrimtabError:
            continue
        if noted == list(run.words) and not is_set_aside(folder.name):
            return folder
    return None
