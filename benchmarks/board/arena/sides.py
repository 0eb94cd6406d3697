"""A method beside others in one contest, and the contrast that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trimtab.benchmarks.board.intervals.contests import (
    Contrast,
    held_out,
    hindsight,
    paired,
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
        rate: whether scores are rates of success or other shares, which are averaged as they are.
        seconds: what a run of the method takes.
        seconds_of_others: what one of each other takes.
    """

    task: str
    ours: Scores
    others: Mapping[str, Scores]
    rate: bool
    seconds: float = 0.0
    seconds_of_others: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the first starts alone where some runs were judged in more of them."""
        sides = (self.ours, *self.others.values())
        counts = {len(run) for side in sides for run in side.values()}
        if len(counts) > 1:
            first = {name: _cut(side, min(counts)) for name, side in self.others.items()}
            object.__setattr__(self, "ours", _cut(self.ours, min(counts)))
            object.__setattr__(self, "others", first)

    def missing_seconds(self, seeds: int) -> float:
        """Return how long the runs take that are missing to so many seeds of all."""
        every = {"": self.ours, **self.others}
        seconds = {"": self.seconds, **self.seconds_of_others}
        return sum(max(seeds - len(runs), 0) * seconds[name] for name, runs in every.items())


def _cut(scores: Scores, episodes: int) -> Scores:
    return {seed: run[:episodes] for seed, run in scores.items()}


def contrast(sides: Sides, differences: Array | None = None) -> Contrast | None:
    """Return a contest's contrast; None where fewer than two seeds are shared.

    Of returns it is a share of the larger one of both mean returns, so that contests with other
    units can be averaged.

    Args:
        sides: the sides.
        differences: ``[n, E]``; None: those to the one other method that there is.
    """
    if differences is None:
        (theirs,) = sides.others.values()
        seeds = sorted(sides.ours.keys() & theirs.keys())
        differences = np.array([sides.ours[seed] - theirs[seed] for seed in seeds])
    if len(differences) < 2:
        return None
    own, level = (float(side.mean()) for side in (means_of(sides.ours), best_means(sides.others)))
    if not sides.rate:
        return paired(differences / (max(abs(own), abs(level)) or 1.0), task=sides.task)
    least = 0.0
    if differences.shape[1] > 1:
        least = sum(_binomial(rate, differences.size) for rate in (own, level))
    return paired(differences, least, sides.task)


def control_contrasts(sides: Sides) -> tuple[Contrast, Contrast] | None:
    """Return the contrasts to the best control, in hindsight and held out.

    Only controls count that share two seeds with the method; None where there is none.
    """
    usable = {
        name: scores
        for name, scores in sides.others.items()
        if len(scores.keys() & sides.ours.keys()) > 1
    }
    if not usable:
        return None
    sides = replace(sides, others=usable)
    below, above = (contrast(sides, read(sides.ours, usable)) for read in (hindsight, held_out))
    return None if below is None or above is None else (below, above)


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
