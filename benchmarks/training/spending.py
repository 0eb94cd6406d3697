"""What a run's budget goes to beside what it is given for: warm-ups, phases, searches cut short."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.phases import Phase, Trials, Unit
from trimtab.benchmarks.training.trials import TrialJudge

__all__ = ["planned", "spent"]

_WARM_UP, _PHASE = 0.25, 0.5
"""Shares of the budget from which it is said that a warm-up, or an earlier phase, takes so much."""


def planned(phases: Sequence[Phase], algorithm: Algorithm, trials: TrialJudge) -> list[str]:
    """Return what a run's user might not expect of its budget, a line each.

    A search that has come to its end, or whose number of trials is not known, has none.

    Args:
        phases: of the run.
        algorithm: its method, at any point of the run.
        trials: judges what the method proposes to try.
    """
    searches = [line for phase in phases for line in _search(phase, trials)]
    return _eaten(phases, algorithm.pace.warmup_steps) + searches


def spent(phases: Sequence[Phase], algorithm: Algorithm, trials: TrialJudge) -> dict[str, Any]:
    """Return what ``result.json`` says of a finished run's budget: searches, and lines on it.

    Args:
        phases: as :func:`planned`.
        algorithm: as :func:`planned`, at the end of the run.
        trials: as :func:`planned`.
    """
    feeds = [phase.feed for phase in phases if isinstance(phase.feed, Trials)]
    lines, found = _eaten(phases, algorithm.pace.warmup_steps), dict[str, Any]()
    if feeds:
        found["all_tried"] = all(feed.propose() is None for feed in feeds)
        sizes = [one for feed in feeds for one in feed.episodes]
        if sizes:
            done = sum(count <= trials.episodes for count in itertools.accumulate(sizes))
            found |= {"tried": done, "trials": len(sizes)}
        if not found["all_tried"]:
            after = f" after {found['tried']} of {found['trials']} trials," if sizes else ""
            lines.append(
                f"the steps were spent{after} before all was tried; online_steps= gives it more"
            )
    return found | ({"spending": lines} if lines else {})


def _eaten(phases: Sequence[Phase], warmup_steps: int) -> list[str]:
    """Return a line for each warm-up or earlier phase that takes much of the budget."""
    return [
        *_warm_up(phases, warmup_steps),
        *_earlier_phases(phases, "updates"),
        *_earlier_phases(phases, "steps"),
    ]


def _warm_up(phases: Sequence[Phase], warmup_steps: int) -> list[str]:
    gathered = sum(phase.length for phase in phases if phase.gathers)
    silent = sum(phase.length for phase in phases if phase.gathers and phase.update is None)
    takes = min(max(warmup_steps, silent), gathered)
    if not takes or takes < _WARM_UP * gathered:
        return []
    return [f"warm-up takes {takes:,} of {gathered:,} steps, and nothing is learned in it"]


def _earlier_phases(phases: Sequence[Phase], unit: Unit) -> list[str]:
    """Return a line for each phase that leaves the last one of its unit the smaller part."""
    learning = [one for one in phases if one.unit == unit and one.length and one.update is not None]
    total = sum(phase.length for phase in learning)
    return [
        f"the phase {phase.name} takes {phase.length:,} of {total:,} {unit}"
        for phase in learning[:-1]
        if phase.length > _PHASE * total
    ]


def _search(phase: Phase, trials: TrialJudge) -> list[str]:
    """Return a line on trials of which a phase may not hold all."""
    first = phase.feed.propose() if isinstance(phase.feed, Trials) else None
    if not isinstance(phase.feed, Trials) or first is None:
        return []
    longest = trials.most_steps(first) // first.episodes  # steps of an episode
    needed = [*itertools.accumulate(count * longest for count in phase.feed.episodes)]
    held = sum(steps <= phase.length for steps in needed)
    if held == len(needed):
        return []
    return [
        f"{phase.length:,} steps surely hold {held} of {len(needed)} trials; all of them take up "
        f"to {needed[-1]:,}"
    ]
