"""What would tell a claim that is not told, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.arena.sides import Sides
from trimtab.benchmarks.board.intervals.contests import Contrast
from trimtab.benchmarks.board.verdicts import seeds_to_tell

__all__ = ["missing_contests", "missing_seeds"]


def missing_seeds(
    claim: Claim, sides: Sequence[Sides], below: Sequence[Contrast], above: Sequence[Contrast]
) -> tuple[int | None, str]:
    """Return how many seeds a contest would tell a claim, and in words what is missing to them.

    A claim with looks is read at these alone, each with its own boundary.
    """
    seeds = int(min(one.freedom for one in below)) + 1  # these have not told it
    needed = seeds_to_tell(below, above, claim.margin, more_than=seeds, looks=claim.looks)
    if needed is None:
        return None, (
            "no number of seeds that is worth it: the difference lies at the margin, seeds vary "
            "much, or the starts are too few"
        )
    hours = sum(one.missing_seconds(needed) for one in sides) / 3600
    names = claim.than or "its controls"
    beyond = claim.looks and needed > claim.looks[-1]
    budget = f", beyond its budget of {claim.looks[-1]} seeds" if beyond else ""
    of_whom = f"{needed} seeds a contest of {claim.method} and {names}"
    return needed, f"{of_whom}, {hours:.1f} core-hours more{budget}"


def missing_contests(share: float) -> str:
    """Return how many contests would tell such a share from one half with 80 percent power."""
    away = abs(share - 0.5)
    if away < 0.02:
        return "no number of contests: the share is one half"
    contests = int(np.ceil(((1.96 * 0.5 + 0.84 * np.sqrt(share * (1 - share))) / away) ** 2))
    return f"about {contests} contests in all: seeds do not help"
