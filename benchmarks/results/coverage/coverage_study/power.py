"""What few seeds can tell: the smallest difference found, and the verdicts that are given."""

from __future__ import annotations

import math

import numpy as np
from coverage_study.measuring import OLD_DRAWS, RESAMPLES
from scipy.special import nctdtr, stdtrit

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.improvement import improvement_interval, verdict

POWER_SEEDS = (3, 5, 10, 20)
WORSE_BY = (1.0, 0.5, 0.0, -0.5, -1.0, -2.0)


def detectable(seeds: int, paired: bool, power: float = 0.8) -> float:
    """Return the difference that the interval of normal returns finds with this power.

    In standard deviations between the seeds of a side (Welch; of equal spread; by simulation with
    fixed draws), or of the seeds' gains where paired (noncentral t).
    """
    ours, theirs = np.random.default_rng(seeds).normal(size=(2, 100_000, seeds))
    gap, parts = ours.mean(-1) - theirs.mean(-1), [x.var(-1, ddof=1) for x in (ours, theirs)]
    freedom = (seeds - 1.0) * (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 + parts[1] ** 2)
    reach = stdtrit(freedom, 0.975) * np.sqrt((parts[0] + parts[1]) / seeds)
    limit = float(stdtrit(seeds - 1.0, 0.975))

    def found(shift: float) -> float:
        if paired:
            return 1.0 - float(nctdtr(seeds - 1.0, shift * math.sqrt(seeds), limit))
        return float(np.mean(gap + shift > reach))

    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if found(middle) < power else (low, middle)
    return high


def verdicts(seeds: int, worse_by: float, draws: int) -> dict[str, float]:
    """Return how often each verdict is given, and how often the old test passed.

    Scores are normal; ours are worse by ``worse_by`` standard deviations of the seeds. The old
    test asked for the upper end of the bootstrap interval of P(better) to be at least one half.
    """
    rng = np.random.default_rng([seeds, round(10 * worse_by) % 1000])
    counts = dict.fromkeys(("behind", "cannot be told", "not behind"), 0)
    old, old_draws = 0, min(draws, 4 * OLD_DRAWS)
    for number in range(draws):
        pair = [rng.normal(-worse_by, 1.0, seeds)], [rng.normal(size=seeds)]
        counts[verdict(improvement_interval(*pair))] += 1
        if number < old_draws:
            old += stats.improvement_bootstrap(*pair, repetitions=RESAMPLES).high >= 0.5
    return {name: count / draws for name, count in counts.items()} | {"old test": old / old_draws}
