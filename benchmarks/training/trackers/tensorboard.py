"""TensorBoard's event files, in the run's folder: ``tensorboard --logdir runs`` finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from trimtab.benchmarks.training.tracking import Kind, TrackedRun

SECONDS_TO_FLUSH = 10
"""The longest that a point waits in memory."""


class TensorBoard:
    """Writes scalars as event files. Points that a killed run repeats take the earlier ones' place.

    Args:
        run: what is tracked.
    """

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        going_on = run.folder.is_dir()
        self._writer = SummaryWriter(
            str(run.folder),
            purge_step=run.position + 1 if going_on else None,
            flush_secs=SECONDS_TO_FLUSH,
        )
        if not going_on:
            settings = json.dumps(dict(run.settings), indent=1, default=str)
            self._writer.add_text("settings", f"```\n{run.name}\n{settings}\n```", run.position)

    def log(self, position: int, numbers: Mapping[str, float]) -> None:
        """Write one scalar for each number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, position)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


TRACKER = Kind("tensorboard", "tensorboardX", TensorBoard)
