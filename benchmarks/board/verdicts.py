"""What a difference says: better, worse, no different, or not told yet; and what would tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from trimtab.benchmarks.board.intervals.contests import Contrast, contest_error
from trimtab.benchmarks.board.intervals.limits import student_quantile

__all__ = ["MARGIN", "MOST_SEEDS", "POWER", "Verdict", "seeds_to_tell", "verdict_of"]

Verdict = Literal["better", "worse", "no different", "not told yet"]

MARGIN = 0.05
"""Differences that nobody would choose a method for: of success, or as a share of a return."""
POWER = 0.8
"""Chance with which so many seeds tell a difference that is as large as it looks now."""
MOST_SEEDS = 1000
"""A difference that needs more seeds than this in each contest is not worth telling."""


def verdict_of(low: float, high: float, margin: float = MARGIN) -> Verdict:
    """Return what an interval says of a method beside another.

    Args:
        low: lower end of the difference.
        high: upper end.
        margin: differences up to this are none; above 0.
    """
    if not low < high:  # all equal, as returns of one seed copied: that tells of no spread
        return "not told yet"
    if low > 0.0:
        return "better"
    if high < 0.0:
        return "worse"
    return "no different" if -margin < low and high < margin else "not told yet"


def seeds_to_tell(
    below: Sequence[Contrast],
    above: Sequence[Contrast] | None = None,
    margin: float = MARGIN,
    *,
    confidence: float = 0.95,
) -> int | None:
    """Return how many seeds a contest tell the difference with 80 percent power.

    It is taken to be as large as it looks now, and seeds to vary as they do now; all are judged in
    the same starts. A difference within the margin may be told as none, too.

    Args:
        below: the contrasts that *better* is read off.
        above: those that *worse* is read off; None: the same.
        margin: differences up to this are none.
        confidence: of the interval that will be read.

    Returns:
        The number of seeds, or None if not even ``MOST_SEEDS`` would, such as where the starts that
        all seeds share leave too much.
    """
    contests = len(below)
    above = above or below
    lowest, highest = (sum(one.value for one in side) / contests for side in (below, above))
    # The spread of one seed's difference, of the readings' the larger one.
    spread = math.sqrt(max(_seed_variance(side) for side in (below, above)))
    of_starts = max(contest_error(_without_seeds(side))[0] for side in (below, above))
    for seeds in range(2, MOST_SEEDS + 1):
        freedom = contests * (seeds - 1.0)
        error = math.hypot(spread / math.sqrt(contests * seeds), of_starts)
        outer = student_quantile(confidence, freedom)
        inner = student_quantile(2 * POWER - 1, freedom)
        if max(lowest, -highest) >= (outer + inner) * error:
            return seeds
        # To be told as none, both ends have to lie within: each may fail in a tenth of the cases.
        inner = student_quantile(POWER, freedom)
        if max(-lowest, highest) <= margin - (outer + inner) * error:
            return seeds
    return None


def _without_seeds(contrasts: Sequence[Contrast]) -> list[Contrast]:
    return [replace(one, variance=0.0, least_variance=0.0) for one in contrasts]


def _seed_variance(contrasts: Sequence[Contrast]) -> float:
    """Return the variance of one seed's difference, at least that of its episodes."""
    found = sum(one.variance * (one.freedom + 1) for one in contrasts)
    least = sum(one.least_variance * (one.freedom + 1) for one in contrasts)
    return max(found, least) / len(contrasts)
