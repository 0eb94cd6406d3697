"""A method beside others in one contest, and the contrast that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trimtab.benchmarks.board.intervals.contests import (
    Contrast,
    held_out,
    hindsight,
    paired,
    unpaired,
)
from trimtab.benchmarks.board.stats import Array

__all__ = ["Scores", "Sides", "best_means", "contrast", "control_contrasts", "means_of"]

Scores = Mapping[int, Array]
"""For each seed the scores of the run's episodes ``[E]``, or one number that is no episode's."""


@dataclass(frozen=True)
class Sides:
    """A method beside others in one contest, or in contests that share a run.

    Attributes:
        task: the task.
        ours: the method's scores.
        others: those of the method that it is compared with, or of each control.
        rate: whether scores are rates of success.
        seconds: what one more seed of all of them costs.
    """

    task: str
    ours: Scores
    others: Mapping[str, Scores]
    rate: bool
    seconds: float

    def __post_init__(self) -> None:
        """Take the mean of each run where runs have different numbers of episodes."""
        sides = (self.ours, *self.others.values())
        if len({len(run) for side in sides for run in side.values()}) > 1:
            means = {name: _as_means(side) for name, side in self.others.items()}
            object.__setattr__(self, "ours", _as_means(self.ours))
            object.__setattr__(self, "others", means)


def _as_means(scores: Scores) -> Scores:
    return {seed: np.array([run.mean()]) for seed, run in scores.items()}


def contrast(sides: Sides, differences: Array | None = None) -> Contrast | None:
    """Return a contest's contrast, in success or as a share of the others' return.

    Args:
        sides: the sides.
        differences: ``[n, E]``; None: those to the one other method that there is.
    """
    others = [*sides.others.values()]
    own, level = (float(side.mean()) for side in (means_of(sides.ours), best_means(sides.others)))
    unit = 1.0 if sides.rate else max(abs(level), 1e-12)
    if differences is None:
        (theirs,) = others
        seeds = sorted(sides.ours.keys() & theirs.keys())
        if len(seeds) < 2:
            ours, other = (means_of(side) / unit for side in (sides.ours, theirs))
            return unpaired(ours, other) if min(len(ours), len(other)) > 1 else None
        differences = np.array([sides.ours[seed] - theirs[seed] for seed in seeds])
    if len(differences) < 2:
        return None
    least = 0.0
    if sides.rate and differences.shape[1] > 1:
        least = sum(_binomial(rate, differences.size) for rate in (own, level))
    return paired(differences / unit, least, sides.task)


def control_contrasts(sides: Sides) -> tuple[Contrast | None, Contrast | None]:
    """Return the contrasts to the best control, in hindsight and held out."""
    readings: tuple[Callable[..., Array], ...] = (hindsight, held_out)
    below, above = (contrast(sides, read(sides.ours, sides.others)) for read in readings)
    return below, above


def means_of(scores: Scores) -> Array:
    """Return the mean score of each seed."""
    return np.array([run.mean() for run in scores.values()])


def best_means(others: Mapping[str, Scores]) -> Array:
    """Return the means of the one other method, or of the control with the highest one."""
    return max((means_of(one) for one in others.values()), key=lambda means: float(means.mean()))


def _binomial(rate: float, episodes: int) -> float:
    """Return the variance of a rate, two successes and two failures added (Agresti 1998)."""
    added = (rate * episodes + 2) / (episodes + 4)
    return added * (1 - added) / (episodes + 4)
