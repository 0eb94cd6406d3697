"""The frozen policies that a suite's methods started from, kept beside its results.

A clone that is trained again on another kind of processor is another clone. To add a method
to published results, start from the published bases: copy them to where the runs go, and the suite
finds them done.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from trimtab.benchmarks.suites.suite import Suite
from trimtab.benchmarks.training.rundir import LOCK
from trimtab.errors import TrimtabError
from trimtab.files import read_json

BASES = "bases"
"""Folder of a result that has them, laid out as a folder of runs is."""
_DEPTH = 5
"""Folders from a folder of runs to a run's own: family, environment, method, hash, seed."""


def keep_bases(part: Path, place: Path, suite: Suite) -> None:
    """Copy the finished runs that others of an arena start from, without their checkpoints.

    A suite without controls compares other things than what a base becomes, and keeps none.

    Args:
        part: what ``trimtab bench`` wrote; its ``suite.json`` names the folders of the runs.
        place: folder of the committed result.
        suite: the suite.
    """
    for folder in _folders(part, suite):
        shutil.copytree(
            folder,
            place.joinpath(BASES, *folder.parts[-_DEPTH:]),
            ignore=shutil.ignore_patterns("checkpoint", LOCK),
            dirs_exist_ok=True,
        )


def check_bases(part: Path, suite: Suite) -> None:
    """Check that the runs which :func:`keep_bases` copies are there.

    Raises:
        TrimtabError: if one of them is gone.
    """
    for folder in _folders(part, suite):
        if not folder.is_dir():
            raise TrimtabError(
                f"publish: {folder}, from which others started, is gone; run the same command of "
                f"trimtab bench again where {part} was written"
            )


def _folders(part: Path, suite: Suite) -> list[Path]:
    """Return the folders of the runs that others of an arena started from."""
    if not suite.controls:
        return []
    bases = {job.base for job in suite.jobs if job.base is not None}
    folders = read_json(part / "suite.json", "suite")["folders"]
    return [Path(folder) for run, folder in folders.items() if run.rpartition("/")[0] in bases]
