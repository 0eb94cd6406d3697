"""Mend the folder of a run: what is damaged is set aside, and what is whole stays where it is.

Nothing is removed. Parts that cannot be used are moved to a folder ``broken-1`` (or 2, 3 …) within
the run's, which counts for nothing. After that the run is done, or ``trimtab train`` goes on with
it: from its newest checkpoint that is whole, to the bits of a run that was never damaged, or from
its start where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.checkpoint import places_of
from trimtab.benchmarks.training.folder import (
    CHECKPOINT,
    CONFIG,
    EPISODES,
    METRICS,
    POLICIES,
    POLICY,
    PROVENANCE,
    RESULT,
    RunState,
    inspect_run,
    is_run,
)
from trimtab.benchmarks.training.rundir import locked, set_aside_folder
from trimtab.benchmarks.training.settings_of import command_of
from trimtab.errors import TrimtabError

__all__ = ["Mended", "repair"]


@dataclass(frozen=True)
class Mended:
    """What a repair did.

    Attributes:
        folder: of the run.
        faults: what was wrong, by the name of the part.
        aside: folder that holds what was set aside; None where nothing was.
        moved: what was set aside, by its path in the run's folder.
        state: of the run now.
        goes_on: where ``train`` goes on; empty for a run that is done and whole.
        command: the ``trimtab train`` command that goes on, where that is known.
    """

    folder: Path
    faults: Mapping[str, str]
    aside: Path | None
    moved: tuple[str, ...]
    state: str
    goes_on: str
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "run": str(self.folder),
            "faults": dict(self.faults),
            "set_aside": None if self.aside is None else str(self.aside),
            "moved": list(self.moved),
            "state": self.state,
            "goes_on": self.goes_on,
            "command": self.command,
        }


def repair(folder: Path) -> Mended:
    """Mend the folder of a run, so that it is done or can be gone on with.

    A repair that was interrupted is repeated: it finds what is left to do.

    Args:
        folder: of the run.

    Raises:
        TrimtabError: if it is no run, is in use, or cannot be written.
    """
    if not is_run(folder):
        raise TrimtabError(
            f"runs repair: {folder} is no folder of a run; trimtab runs {folder.parent} lists them"
        )
    with locked(folder):
        found = inspect_run(folder, check_hashes=True, locked=True)
        command = command_of(folder)  # while what says it may still be there
        parts = _useless(found)
        aside = _move(folder, parts) if parts else None
        after = inspect_run(folder, locked=True)
    return Mended(
        folder,
        found.faults,
        aside,
        tuple(parts),
        "done" if after.result else "stopped",
        _goes_on(folder, after),
        command,
    )


def _useless(found: RunState) -> list[str]:
    """Return the parts to set aside, in an order in which an interrupted repair can be repeated.

    The result goes first, because it says that the run is done; what could be gone on from is last.
    """
    folder, faults = found.folder, found.faults
    parts = [name for name in (PROVENANCE, CONFIG) if name in faults]
    broken = [name for name in (RESULT, EPISODES, POLICY, POLICIES, METRICS) if name in faults]
    at_its_end = bool(found.result) and not broken
    if broken and os.path.lexists(folder / RESULT) and RESULT not in broken:
        broken.insert(0, RESULT)  # what is missing comes of finishing the run again
    if not at_its_end and found.usable is None and (broken or CHECKPOINT in faults):
        broken = [RESULT, EPISODES, POLICY, POLICIES, METRICS]  # it begins at its start
    damaged = [str(place.relative_to(folder)) for place in found.unusable]
    if CHECKPOINT in faults and found.usable is None:
        damaged = [CHECKPOINT]
    return [x for x in (*broken, *parts, *damaged) if os.path.lexists(folder / x)]


def _move(folder: Path, parts: list[str]) -> Path:
    """Move parts of a run to a folder within it.

    Raises:
        TrimtabError: if the disk refuses.
    """
    aside = set_aside_folder(folder)
    try:
        for part in parts:
            (aside / part).parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder / part, aside / part)
    except OSError as error:
        raise TrimtabError(
            f"runs repair: cannot move {error.filename} to {aside}: {error.strerror}; make "
            f"{folder} writable and repair it again"
        ) from error
    return aside


def _goes_on(folder: Path, after: RunState) -> str:
    """Return in words where ``train`` goes on with a run."""
    written = [name for name in (PROVENANCE, CONFIG) if not os.path.lexists(folder / name)]
    if after.result:
        return f"its end: {' and '.join(written)} will be written anew" if written else ""
    if not places_of(folder / CHECKPOINT):
        return "its start"
    steps, updates = after.counters["env_steps"], after.counters["updates"]
    return f"its checkpoint at {steps:,} environment steps and {updates:,} updates"
