"""What a run goes through: its phases, each with what feeds it and which update it calls.

A method says its phases in ``Algorithm.phases``. Most have the usual two, updates on a dataset and
then interaction; one that trains a policy in stages, gathers between two rounds of learning, or
learns from data that it generates itself says its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.types import Metrics, Source

__all__ = ["Budget", "Feed", "Phase", "Unit"]

Unit = Literal["updates", "steps"]
"""What a phase's length counts: gradient updates, or environment steps."""


@dataclass(frozen=True)
class Budget:
    """What a run may spend, by its settings of the same names.

    Attributes:
        offline_steps: updates on the dataset.
        online_steps: environment steps.
    """

    offline_steps: int
    online_steps: int


class Feed(enum.Enum):
    """What of the harness feeds a phase.

    ``DATASET`` draws batches of the run's dataset. ``EXPERIENCE`` is what the run gathers: batches
    of its replay buffer, mixed with the dataset's as ``offline_share`` says, or whole rollouts
    where the method has ``rollout_steps``.
    """

    DATASET = enum.auto()
    EXPERIENCE = enum.auto()


@dataclass(frozen=True)
class Phase:
    """One part of a run.

    A phase that counts steps gathers them with ``explore``, and after each decision makes as many
    updates as are due. A phase that counts updates gathers nothing.

    Attributes:
        name: what logs call it.
        length: how long it is.
        unit: what its length counts.
        feed: what its batches come from: the harness's, or a source of the method's own.
        update: called with each batch or rollout; None for a phase that only gathers.
        eval_every: its units between two evaluations; None for the run's ``eval_every``, which
            counts through all phases.
    """

    name: str
    length: int
    unit: Unit
    feed: Feed | Source
    update: Callable[[Any], Metrics] | None
    eval_every: int | None = None
