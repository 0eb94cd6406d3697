"""How often the four verdicts err: beside several controls, at looks, in shared starts.

A seed's difference has the spread of the committed rows of the arena: 0.15 between seeds and 0.15
between tasks, of success. Contests that vary unequally, and tasks that come with two clones each,
have rows of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.benchmarks.board.intervals.contests import (
    Contrast,
    contest_interval,
    held_out,
    hindsight,
    paired,
    tasks_interval,
)
from trimtab.benchmarks.board.intervals.limits import student_quantile
from trimtab.benchmarks.board.intervals.looks import confidence_at, shares_of
from trimtab.benchmarks.board.stats import Array
from trimtab.benchmarks.board.verdicts import verdict_of

PAIR_SPREAD = BETWEEN_TASKS = 0.15
CONTROLS = {
    "one": (0.0,),
    "three, equal": (0.0, 0.0, 0.0),
    "three, near": (0.0, -0.03, -0.06),
    "three, apart": (0.0, -0.15, -0.3),
    "five, equal": (0.0,) * 5,
}
UNEQUAL = (0.30, 0.02)
"""Spreads of the differences of seeds, in turn, as of returns beside success."""
LOOKS = (3, 6, 10)
STARTS = 50
NAMES = ("better", "worse", "no different", "not told yet")

Row = dict[str, Any]


def verdict_rows(draws: int) -> Iterator[Row]:
    """Yield :func:`verdict_row` of every situation."""
    for contests, seeds in ((5, 3), (10, 3), (10, 5)):
        for controls in CONTROLS:
            for difference in (-0.1, 0.0, 0.1):
                yield verdict_row(contests, seeds, controls, difference, draws)


def verdict_row(contests: int, seeds: int, controls: str, difference: float, draws: int) -> Row:
    """Return how often each verdict is given, and how often the interval over tasks holds.

    ``difference`` is that to the truly best control, the same on every task; for the interval over
    tasks, they differ around it. ``better held out`` and ``worse in hindsight`` are what the
    other reading of the controls would have given.
    """
    rng = np.random.default_rng([contests, seeds, len(controls), round(100 * difference + 50)])
    counts = dict.fromkeys((*NAMES, "better held out", "worse in hindsight", "over tasks"), 0)
    for _ in range(draws):
        both = drawn(rng, contests, seeds, CONTROLS[controls], difference)
        below, above = (contest_interval(side) for side in both)
        counts[verdict_of(below.low, above.high)] += 1
        counts["better held out"] += above.low > 0
        counts["worse in hindsight"] += below.high < 0
        tasks = rng.normal(0.0, BETWEEN_TASKS, contests)
        moved = [
            Contrast(one.value + task, one.variance, one.freedom)
            for one, task in zip(both[1], tasks, strict=True)
        ]
        new = tasks_interval(moved)
        counts["over tasks"] += new.low <= difference <= new.high
    return {
        "contests": contests, "seeds": seeds, "controls": controls, "difference": difference,
        **shares(counts, draws),
    }  # fmt: skip


def look_rows(draws: int) -> Iterator[Row]:
    """Yield :func:`look_row` of every situation."""
    for controls in CONTROLS:
        for difference in (0.0, 0.1):
            yield look_row(controls, difference, draws)


def look_row(controls: str, difference: float, draws: int) -> Row:
    """Return how often a plan of several looks ends with each verdict.

    ``told at 95 percent each`` is how often one of the looks would have told a difference at that
    confidence, ``first at 95 percent`` how often the plan does if its first look asks for no more.
    """
    rng = np.random.default_rng([len(controls), round(100 * difference)])
    counts = dict.fromkeys((*NAMES, "told at 95 percent each", "first at 95 percent"), 0)
    seeds_used = 0
    for _ in range(draws):
        every = runs(rng, 5, LOOKS[-1], CONTROLS[controls], difference)
        told, loose, before = "not told yet", [], 0
        for look in LOOKS:
            both = contrasts(every, look)
            strict = confidence_at(shares_of(LOOKS, look))
            found = {
                confidence: verdict_of(
                    contest_interval(both[0], confidence).low,
                    contest_interval(both[1], confidence).high,
                )
                for confidence in (0.95, strict)
            }
            loose.append(found[0.95] in ("better", "worse"))
            if told == "not told yet":
                told = found[strict]
                seeds_used += look - before
            before = look
        counts[told] += 1
        counts["told at 95 percent each"] += any(loose)
        counts["first at 95 percent"] += loose[0] or told in ("better", "worse")
    return {
        "controls": controls, "difference": difference, **shares(counts, draws),
        "mean seeds": seeds_used / draws,
    }  # fmt: skip


def start_rows(draws: int) -> Iterator[Row]:
    """Yield :func:`start_row` of every situation."""
    for share in (0.0, 0.2, 0.4, 0.7):
        for contests, seeds in ((1, 3), (1, 10), (5, 3), (10, 5)):
            yield start_row(share, contests, seeds, draws)


def start_row(share: float, contests: int, seeds: int, draws: int) -> Row:
    """Return how often a difference that is none is told, where all runs share their starts.

    A success is that of a normal variable above 0. ``share`` of its variance belongs to the start,
    half of that to both methods alike; 0.1 belongs to the seed, half of that to both, too. ``told
    by seeds alone`` is without the variance of the starts.
    """
    rng = np.random.default_rng([round(10 * share), contests, seeds])
    counts = {"told": 0, "told by seeds alone": 0}
    for _ in range(draws):
        every = [started(rng, seeds, share) for _ in range(contests)]
        for name, scores in (
            ("told", every),
            ("told by seeds alone", [one.mean(1) for one in every]),
        ):
            found = contest_interval([paired(one) for one in scores])
            counts[name] += verdict_of(found.low, found.high) in ("better", "worse")
    return {"share": share, "contests": contests, "seeds": seeds, **shares(counts, draws)}


def unequal_rows(draws: int) -> Iterator[Row]:
    """Yield :func:`unequal_row` of every situation."""
    for contests, seeds in ((2, 3), (2, 5), (2, 10), (6, 3), (6, 10)):
        yield unequal_row(contests, seeds, draws)


def unequal_row(contests: int, seeds: int, draws: int) -> Row:
    """Return how often a difference that is none is told where contests vary unequally.

    ``told by all degrees`` is with the sum of all contests' degrees of freedom, ``told at looks``
    at any of the looks up to these seeds, each with its own confidence.
    """
    rng = np.random.default_rng([contests, seeds])
    spreads = np.resize(UNEQUAL, contests)[:, None]
    looks = [look for look in LOOKS if look < seeds] + [seeds]
    counts = dict.fromkeys(("told", "told by all degrees", "told at looks"), 0)
    for _ in range(draws):
        every = rng.normal(0.0, spreads, (contests, seeds))
        found = contest_interval([paired(one) for one in every])
        counts["told"] += not found.low <= 0.0 <= found.high
        error = math.sqrt((every.var(axis=1, ddof=1) / seeds).sum()) / contests
        half = student_quantile(0.95, contests * (seeds - 1.0)) * error
        counts["told by all degrees"] += abs(float(every.mean())) > half
        for look in looks:
            confidence = confidence_at(shares_of(looks, look))
            found = contest_interval([paired(one[:look]) for one in every], confidence)
            if not found.low <= 0.0 <= found.high:
                counts["told at looks"] += 1
                break
    return {"contests": contests, "seeds": seeds, **shares(counts, draws)}


def task_rows(draws: int) -> Iterator[Row]:
    """Yield :func:`task_row` of every situation."""
    for share in (0.0, 0.5, 0.9):
        yield task_row(share, draws)


def task_row(share: float, draws: int) -> Row:
    """Return how often the interval over tasks holds, of five tasks with two clones each.

    ``share`` of the variance between contests belongs to the task, the rest to the clone. ``clones
    as draws`` takes each contest as a draw of its own.
    """
    rng = np.random.default_rng([round(10 * share)])
    counts = {"tasks as draws": 0, "clones as draws": 0}
    for _ in range(draws):
        of_task = np.repeat(rng.normal(size=5), 2) * math.sqrt(share)
        means = BETWEEN_TASKS * (of_task + rng.normal(size=10) * math.sqrt(1 - share))
        values = means + rng.normal(0.0, PAIR_SPREAD / math.sqrt(3), 10)
        for name, tasks in (("tasks as draws", "aabbccddee"), ("clones as draws", "abcdefghij")):
            pairs = zip(values, tasks, strict=True)
            found = tasks_interval([Contrast(value, 0.0, 2.0, task=task) for value, task in pairs])
            counts[name] += found.low <= 0.0 <= found.high
    return {"share": share, **shares(counts, draws)}


def started(rng: np.random.Generator, seeds: int, share: float) -> Array:
    """Return the differences ``[seeds, STARTS]`` of two methods that succeed equally often."""

    def of_both(part: float, shape: tuple[int, ...]) -> Array:
        alike, apart = rng.normal(size=shape), rng.normal(size=(2, *shape))
        return math.sqrt(part / 2) * (alike + apart)

    own = of_both(share, (1, STARTS)) + of_both(0.1, (seeds, 1))
    noise = math.sqrt(max(0.9 - share, 0.0)) * rng.normal(size=(2, seeds, STARTS))
    ours, theirs = ((own + noise) > 0).astype(np.float64)
    return np.asarray(ours - theirs, np.float64)


def drawn(
    rng: np.random.Generator, contests: int, seeds: int, levels: Sequence[float], difference: float
) -> tuple[list[Contrast], list[Contrast]]:
    """Return contrasts in hindsight and held out."""
    return contrasts(runs(rng, contests, seeds, levels, difference), seeds)


def runs(
    rng: np.random.Generator, contests: int, seeds: int, levels: Sequence[float], difference: float
) -> list[Array]:
    """Return for each contest the scores ``[1 + controls, seeds]``, the method's first."""
    means = np.array([difference, *levels])[:, None]
    spread = PAIR_SPREAD / math.sqrt(2)
    return [means + rng.normal(0.0, spread, (len(means), seeds)) for _ in range(contests)]


def contrasts(every: Sequence[Array], seeds: int) -> tuple[list[Contrast], list[Contrast]]:
    """Return the contrasts of the first seeds, in hindsight and held out."""
    below, above = [], []
    for scores in every:
        ours, *others = ({seed: float(row[seed]) for seed in range(seeds)} for row in scores)
        controls = {str(number): row for number, row in enumerate(others)}
        below.append(paired(hindsight(ours, controls)))
        above.append(paired(held_out(ours, controls)))
    return below, above


def shares(counts: Mapping[str, int], draws: int) -> dict[str, float]:
    """Return counts as shares of the draws."""
    return {name: count / draws for name, count in counts.items()}
