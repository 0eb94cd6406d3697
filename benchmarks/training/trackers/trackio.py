"""Trackio: a database on this machine, which ``trackio show`` draws while runs go on."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path

from trimtab.benchmarks.training.tracking import Kind, TrackedRun
from trimtab.errors import TrimtabError
from trimtab.files import unwritable

PROJECT = "trimtab"
DIRECTORY = "TRACKIO_DIR"
"""Environment variable: where its databases lie, in place of its folder in the user's cache."""


class Trackio:
    """Logs to Trackio's project ``trimtab``, which lies where ``TRACKIO_DIR`` says.

    A run that goes on has its points in the same curve. Those that a killed run repeats are there
    twice, with equal numbers.

    Args:
        run: what is tracked.
    """

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):  # it prints where its dashboard is
            self._run = trackio.init(
                project=PROJECT,
                name=f"{run.name} {run.id.rpartition('-')[2]}",
                group=run.group,
                config=dict(run.settings),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, position: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers as one step."""
        self._run.log(dict(numbers), step=position)

    def close(self) -> None:
        """Write what waits to be written."""
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()  # of this process's run; the run's own would be repeated at its exit


def _check() -> None:
    """Check that its database can be written: else it would only warn, and keep no curve."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    folder = os.environ.get(DIRECTORY) or os.path.expanduser(f"{home}/trackio")
    if reason := unwritable(Path(folder)):
        raise TrimtabError(
            f"tracker=trackio: {DIRECTORY}: {folder} cannot be written: {reason}; set {DIRECTORY} "
            "to a writable folder"
        )


TRACKER = Kind("trackio", "trackio", Trackio, _check)
