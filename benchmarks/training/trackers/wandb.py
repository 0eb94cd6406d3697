"""Weights & Biases: its service after ``wandb login``, else files for ``wandb sync``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trimtab.benchmarks.training.tracking import Kind, TrackedRun
from trimtab.errors import TrimtabError

PROJECT = "trimtab"
MODE = "WANDB_MODE"
_MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")


class WeightsAndBiases:
    """Logs to a run of Weights & Biases, which is gone on with under the same id.

    ``WANDB_MODE``, ``WANDB_PROJECT`` and ``WANDB_ENTITY`` mean what they mean to wandb. Without
    ``WANDB_MODE`` a machine that is not logged in works offline, and nothing is asked. The service
    passes over points that a killed run repeats; offline, each start has a folder of its own.

    Args:
        run: what is tracked.

    Raises:
        TrimtabError: if wandb cannot start.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        try:
            mode: Any = os.environ.get(MODE) or ("online" if wandb.api.api_key else "offline")
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=run.id,
                name=run.name,
                group=run.group,
                config=dict(run.settings),
                dir=str(run.folder),
                mode=mode,
                resume="allow",
                # What is logged is all that it is to know: no console, no code, no git.
                settings=wandb.Settings(
                    console="off", disable_git=True, save_code=False, silent=True
                ),
            )
        except (wandb.Error, ValueError) as error:  # a wrong WANDB_MODE is a ValueError
            line = str(error).strip().splitlines()[0] if str(error).strip() else "it did not start"
            raise TrimtabError(
                f"tracker=wandb: {line}; WANDB_MODE=offline needs no service"
            ) from error

    def log(self, position: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers as one step."""
        self._run.log(dict(numbers), step=position)

    def close(self) -> None:
        """Finish this part of the run."""
        self._run.finish()


def _check() -> None:
    mode = os.environ.get(MODE, "")
    if mode and mode not in _MODES:
        raise TrimtabError(
            f"tracker=wandb: {MODE}={mode}: there are: {', '.join(_MODES)}; "
            "offline needs no service"
        )


TRACKER = Kind("wandb", "wandb", WeightsAndBiases, _check)
