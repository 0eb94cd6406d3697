"""What a caller from Python is told of a run while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Callback", "RunProgress"]


@dataclass(frozen=True)
class RunProgress:
    """Where a run is.

    Attributes:
        folder: of the run.
        position: updates on a dataset and environment steps that are done, together.
        end: the position at which the run ends, at the latest.
        env_steps: environment steps taken.
        updates: updates made.
        stop: call it to end the run well after this step: it is evaluated and has a result and a
            policy, all marked as stopped early. The same call then finds it done. A call without
            callbacks goes on with it to its end, to the bits of a run that was never stopped.
    """

    folder: Path
    position: int
    end: int
    env_steps: int
    updates: int
    stop: Callable[[], None]


class Callback:
    """Told of a run as it goes on; a subclass writes the methods that it needs.

    A callback may draw from torch's global generators and seed them: the run draws from them apart
    from it. It must not draw from NumPy's, from which simulators may draw. An error that it raises
    ends the run, which goes on from its last checkpoint when it is called again.
    """

    def on_step(self, now: RunProgress) -> None:
        """After each update on a dataset, and each decision in every environment."""

    def on_evaluation(self, now: RunProgress, scores: Mapping[str, float | None]) -> None:
        """After an evaluation.

        Args:
            now: where the run is.
            scores: ``return`` and ``success``, None for a run without a task or without success;
                and ``held_out_error`` where episodes are held out.
        """

    def on_checkpoint(self, now: RunProgress) -> None:
        """After the run's state was saved."""
