"""What a difference says: better, worse, no different, or not told yet; and what would tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from trimtab.benchmarks.board.intervals.contests import Contrast, contest_error
from trimtab.benchmarks.board.intervals.limits import student_quantile, summed_freedom
from trimtab.benchmarks.board.intervals.looks import confidence_at, shares_of

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
    more_than: int = 1,
    looks: Sequence[int] = (),
) -> int | None:
    """Return how many seeds a contest tell the difference with 80 percent power.

    It is taken to be as large as it looks now, and seeds to vary as they do now; all are judged in
    the same starts. A difference within the margin may be told as none, too.

    Args:
        below: the contrasts that *better* is read off.
        above: those that *worse* is read off; None: the same.
        margin: differences up to this are none.
        more_than: seeds a contest that have not told it.
        looks: the only numbers of seeds at which it will be read, each by its own boundary; what is
            beyond the last one would be a plan of its own, read once.

    Returns:
        The number of seeds, or None if not even ``MOST_SEEDS`` would, such as where the starts that
        all seeds share leave too much.
    """
    above = above or below
    lowest, highest = (sum(one.value for one in side) / len(side) for side in (below, above))
    spreads = [_seed_variances(side) for side in (below, above)]
    widest = max(spreads, key=sum)  # of the two readings, that whose seeds vary more
    of_starts = max(contest_error(_without_seeds(side))[0] for side in (below, above))
    readings = [(look, confidence_at(shares_of(looks, look))) for look in looks]
    readings += [(seeds, 0.95) for seeds in range(max([1, *looks]) + 1, MOST_SEEDS + 1)]
    for seeds, confidence in readings:
        freedom = summed_freedom([(one, seeds - 1.0) for one in widest])
        error = math.hypot(math.sqrt(sum(widest) / seeds) / len(below), of_starts)
        outer = student_quantile(confidence, freedom)
        told = max(lowest, -highest) >= (outer + student_quantile(2 * POWER - 1, freedom)) * error
        # To be told as none, both ends have to lie within: each may fail in a tenth of the cases.
        room = (outer + student_quantile(POWER, freedom)) * error
        if seeds > more_than and (told or max(-lowest, highest) <= margin - room):
            return seeds
    return None


def _without_seeds(contrasts: Sequence[Contrast]) -> list[Contrast]:
    return [replace(one, variance=0.0, least_variance=0.0) for one in contrasts]


def _seed_variances(contrasts: Sequence[Contrast]) -> list[float]:
    """Return the variance of one seed's difference in each contest, at least of its episodes."""
    return [max(one.variance, one.least_variance) * (one.freedom + 1) for one in contrasts]
