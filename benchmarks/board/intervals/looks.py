"""Reading a result more than once at a stated rate of error: a group-sequential boundary.

Lan and DeMets, "Discrete sequential boundaries for clinical trials" (Biometrika 1983), with their
spending function of the kind of O'Brien and Fleming for either side,
``2 - 2 Phi(z_{1 - alpha / 4} / sqrt(t))``: so much of the error may have been spent after a share t
of all the runs that a plan allows for. A reading before the last one asks for much more than 95
percent, and the last one for hardly more. The bounds are found as by Armitage, McPherson and Rowe
(1969): the density of what has crossed no bound so far is carried from one reading to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import roots_legendre
from scipy.stats import norm

from trimtab.benchmarks.board.stats import Array

__all__ = ["MOST_LOOKS", "confidence_at", "shares_of"]

MOST_LOOKS = 4
"""Readings that a plan may have."""
ERROR_RATE = 0.05
"""How often a plan finds a difference that is none, over all of its readings."""
_NODES, _WEIGHTS = roots_legendre(120)
_FARTHEST = 10.0  # standard errors: so far out nothing is ever found


def shares_of(looks: Sequence[int], now: int) -> tuple[float, ...]:
    """Return the shares of a plan's runs after which it was read, up to a look.

    Args:
        looks: numbers of seeds at which it is planned to be read, rising.
        now: one of them.
    """
    return tuple(look / looks[-1] for look in looks if look <= now)


@lru_cache(maxsize=1024)
def confidence_at(shares: tuple[float, ...], error_rate: float = ERROR_RATE) -> float:
    """Return the confidence that an interval needs at the last of some readings.

    With it, a difference that is none is found at any of the readings in ``error_rate`` of all
    cases, once the whole plan is carried out.

    Args:
        shares: shares of all runs, rising, each in (0, 1], at which it is read.
        error_rate: of the whole plan, two-sided.
    """
    # Sums of independent parts: where they may be, with the density of what crossed no bound yet.
    places, density = np.zeros(1), np.ones(1)
    spent = before = bound = 0.0
    for share in shares:
        step = math.sqrt(share - before)
        may_be_spent = 4 * norm.sf(norm.isf(error_rate / 4) / math.sqrt(share))
        chance = max(may_be_spent - spent, 0.0)
        given = (math.sqrt(share), step, places, density, chance)
        bound = _FARTHEST
        if _surplus(_FARTHEST, *given) < 0.0:
            bound = brentq(_surplus, 0.0, _FARTHEST, args=given, xtol=1e-9)
        end = bound * math.sqrt(share)
        following = _NODES * end
        law = norm.pdf((following[:, None] - places) / step) / step
        places, density = following, (law @ density) * _WEIGHTS * end
        spent, before = may_be_spent, share
    return min(float(1 - 2 * norm.sf(bound)), 1 - 1e-12)  # a quantile of 1 would be infinite


def _surplus(
    bound: float, deviation: float, step: float, places: Array, density: Array, chance: float
) -> float:
    """Return by how much the chance to cross a bound now is above what may be spent."""
    end = bound * deviation
    beyond = norm.sf((end - places) / step) + norm.cdf((-end - places) / step)
    return float(density @ beyond) - chance
