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

from trimtab.policies.base import Policy
from trimtab.types import Metrics, Source, Tensor

__all__ = ["Budget", "Feed", "Outcome", "Phase", "Trial", "Trials", "Unit", "default_phases"]

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
class Trial:
    """A policy that a method wants to see act, and in which episodes.

    Attributes:
        policy: acts; the harness looks at it during the trial only.
        episodes: how many episodes it acts in.
        first: number of the first one. Episodes of the same number begin alike in every trial of a
            run, so that two policies can be compared on the same initial states.
    """

    policy: Policy
    episodes: int
    first: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a trial's E episodes, in their order."""

    success: Tensor  # [E] 1 or 0; 0 where the task has no success
    returns: Tensor  # [E] undiscounted
    steps: Tensor  # [E] environment steps


@dataclass(frozen=True)
class Trials:
    """A feed of whole episodes: the harness judges what a method proposes, and says the outcome.

    The judge is the run's own; its episodes are others than those that the run is evaluated in. The
    executed steps count as those of the phase and of the run. A trial only begins where all of its
    episodes surely end within the phase, however long they last.

    Attributes:
        propose: returns the next trial, or None where there is none left, which ends the phase. The
            answer follows from the method's state alone, and asking changes nothing.
        episodes: those of each trial that will be proposed, in order, where that is known before:
            so a run can say how much of the search its steps hold.
    """

    propose: Callable[[], Trial | None]
    episodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Phase:
    """One part of a run.

    A phase that counts steps gathers them with ``explore``, and after each decision makes as many
    updates as are due. One that is fed by ``Trials`` makes one update after each trial. A phase
    that counts updates gathers nothing.

    Attributes:
        name: what logs call it.
        length: how long it is; one of trials may end before.
        unit: what its length counts.
        feed: what its batches come from: the harness's, or a source of the method's own; or what
            it proposes to try.
        update: called with each batch, rollout or outcome; None for a phase that only gathers.
        eval_every: its units between two evaluations; None for the run's ``eval_every``, which
            counts through all phases.
        batch_size: rows of its batches; None for the method's own.
        begin: called once, before the first unit of the phase; it may change the method's state.
        fresh: whether what was gathered before is let go when the phase begins, because what a
            stored decision means has changed. An episode that is under way goes on.
    """

    name: str
    length: int
    unit: Unit
    feed: Feed | Source | Trials
    update: Callable[[Any], Metrics] | None
    eval_every: int | None = None
    batch_size: int | None = None
    begin: Callable[[], None] | None = None
    fresh: bool = False

    @property
    def gathers(self) -> bool:
        """Whether the run acts by ``explore`` in it."""
        return self.unit == "steps" and not isinstance(self.feed, Trials)


def default_phases(
    budget: Budget, offline: Callable[[Any], Metrics], online: Callable[[Any], Metrics]
) -> tuple[Phase, ...]:
    """Return updates on the dataset and then interaction, those of them that have a length.

    Args:
        budget: what the run may spend.
        offline: called with each batch of the dataset.
        online: called with what is gathered.
    """
    both = (
        Phase("offline", budget.offline_steps, "updates", Feed.DATASET, offline),
        Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, online),
    )
    return tuple(phase for phase in both if phase.length)
