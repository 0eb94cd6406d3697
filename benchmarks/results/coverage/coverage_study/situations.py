"""Situations in which the truth is known.

They are returns, success rates, differences, P(better), and aggregates over environments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from coverage_study.measuring import RESAMPLES, Cell
from scipy.special import betaincinv, ndtr

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.aggregates import aggregate_intervals
from trimtab.benchmarks.board.intervals.improvement import improvement_interval
from trimtab.benchmarks.board.intervals.interquartile import iqm_interval
from trimtab.benchmarks.board.intervals.means import difference_interval, mean_interval
from trimtab.benchmarks.board.stats import Array, Interval

RUNS, EPISODES = (2, 3, 5, 10), (10, 50)
RATES = (0.02, 0.1, 0.5, 0.9, 0.98, 1.0)
SPREADS = (0.0, 0.02, 0.1, 0.3)
"""Share of a success's variance that lies between seeds (intra-class correlation)."""
START_SHARES = (0.0, 0.4, 0.7)
"""Share of the variance behind a success that belongs to the start of its episode."""
GAINS = ((0.5, 0.5), (0.97, 0.35), (0.98, 0.9), (1.0, 1.0), (0.02, 0.0))
ENVIRONMENTS = {
    "2 tasks": (0.9, 0.5),
    "5 tasks": (0.98, 0.9, 0.5, 0.3, 0.02),
    "5 solved tasks": (1.0, 1.0, 0.98, 0.98, 0.98),
}
LEVEL_MEANS = {"normal": 0.0, "log-normal": math.exp(0.5), "one seed in five fails": 2.0}


def cells() -> list[Cell]:
    """Return every situation."""
    return [*return_cells(), *success_cells(), *shared_start_cells(), *difference_cells(),
            *improvement_cells(), *aggregate_cells()]  # fmt: skip


def return_cells() -> Iterator[Cell]:
    """Yield means and interquartile means of returns, ten episodes a seed."""
    for kind, mean in LEVEL_MEANS.items():
        sample = levels(kind, (1_000_000,), np.random.default_rng(1))
        sample += np.random.default_rng(2).normal(0.0, 0.5 / math.sqrt(10), 1_000_000)
        sample.sort()
        middle = float(sample[250_000:750_000].mean())
        for count in RUNS:

            def draw(rng: np.random.Generator, kind: str = kind, count: int = count) -> Any:
                level = levels(kind, (count,), rng)
                return list(level[:, None] + rng.normal(0.0, 0.5, (count, 10)))

            yield Cell("mean of returns", kind, count, 10, mean, draw,
                       mean_interval, two_level)  # fmt: skip
            if count > 3:
                yield Cell("interquartile mean of returns", kind, count, 10, middle, draw,
                           iqm_interval,
                           lambda runs: two_level(runs, stats.aggregate_iqm))  # fmt: skip


def success_cells() -> Iterator[Cell]:
    """Yield mean success rates: all rates, spreads, seeds and episodes."""
    for rate in RATES:
        for spread in SPREADS if rate < 1.0 else (0.0,):
            for count in RUNS:
                for episodes in EPISODES:

                    def draw(
                        rng: np.random.Generator, rate: float = rate, spread: float = spread,
                        count: int = count, episodes: int = episodes,
                    ) -> Any:  # fmt: skip
                        return judged(rates(rate, spread, count, rng), episodes, rng)

                    yield Cell(
                        "success rate", f"rate {rate:g}, spread {spread:g}", count, episodes, rate,
                        draw, lambda runs: mean_interval(runs, rate=True), two_level,
                    )  # fmt: skip


def shared_start_cells() -> Iterator[Cell]:
    """Yield success rates of seeds that are judged in the same 50 starts, as committed runs are."""
    for rate in (0.1, 0.5, 0.9):
        for share in START_SHARES:
            for count in RUNS:

                def draw(
                    rng: np.random.Generator, rate: float = rate, share: float = share,
                    count: int = count,
                ) -> Any:  # fmt: skip
                    return list(in_shared_starts(rate, share, count, 50, rng))

                yield Cell(
                    "success rate, shared starts", f"rate {rate:g}, share of the start {share:g}",
                    count, 50, rate, draw, lambda runs: mean_interval(runs, rate=True), two_level,
                )  # fmt: skip


def in_shared_starts(
    rate: float, share: float, count: int, starts: int, rng: np.random.Generator
) -> Array:
    """Return successes ``[count, starts]``: where a normal variable lies above a threshold.

    ``share`` of its variance is the start's, and a tenth the seed's.
    """
    noise = math.sqrt(0.9 - share) * rng.normal(size=(count, starts))
    noise += math.sqrt(share) * rng.normal(size=starts)
    noise += math.sqrt(0.1) * rng.normal(size=(count, 1))
    return (noise > NormalDist().inv_cdf(1.0 - rate)).astype(np.float64)


def difference_cells() -> Iterator[Cell]:
    """Yield differences: paired and not, of returns and of success rates."""
    for count in RUNS:
        for paired in (True, False):
            for kind, scale in (("normal", 1.0), ("normal", 3.0), ("log-normal", 1.0)):

                def returns(
                    rng: np.random.Generator, count: int = count, paired: bool = paired,
                    kind: str = kind, scale: float = scale,
                ) -> Any:  # fmt: skip
                    both = levels(kind, (2, count), rng) * np.array([[scale], [1.0]])
                    both += paired * rng.normal(size=count)
                    noise = rng.normal(0.0, 0.5, (2, count, 10))
                    ours, theirs = both[:, :, None] + noise
                    return keyed(ours), keyed(theirs, 0 if paired else 100)

                yield Cell(
                    "difference of returns, " + ("paired" if paired else "independent"),
                    f"{kind}, ours {scale:g} times as spread", count, 10,
                    (scale - 1.0) * LEVEL_MEANS[kind], returns,
                    lambda data: difference_interval(*data),
                    lambda data: stats.difference_bootstrap(*data, repetitions=RESAMPLES),
                )  # fmt: skip
            for means in GAINS:
                for spread in (0.0, 0.02, 0.1):

                    def successes(
                        rng: np.random.Generator, count: int = count, paired: bool = paired,
                        means: tuple[float, float] = means, spread: float = spread,
                    ) -> Any:  # fmt: skip
                        if paired:
                            ours, theirs = paired_rates(means, spread, count, rng)
                        else:
                            ours, theirs = (rates(mean, spread, count, rng) for mean in means)
                        return (keyed(judged(ours, 50, rng)),
                                keyed(judged(theirs, 50, rng), 0 if paired else 100))  # fmt: skip

                    yield Cell(
                        "difference of success, " + ("paired" if paired else "independent"),
                        f"rates {means[0]:g} and {means[1]:g}, spread {spread:g}", count, 50,
                        means[0] - means[1], successes,
                        lambda data: difference_interval(*data, rate=True),
                        lambda data: stats.difference_bootstrap(*data, repetitions=RESAMPLES),
                    )  # fmt: skip


def improvement_cells() -> Iterator[Cell]:
    """Yield probabilities of improvement of normal scores, equally spread and not."""
    for ours, theirs in ((2, 2), (3, 3), (5, 5), (10, 10), (3, 10)):
        for shift, scale in (
            (0.0, 1.0),
            (0.5, 1.0),
            (1.0, 1.0),
            (2.0, 1.0),
            (0.0, 3.0),
            (1.0, 3.0),
        ):

            def draw(
                rng: np.random.Generator, ours: int = ours, theirs: int = theirs,
                shift: float = shift, scale: float = scale,
            ) -> Any:  # fmt: skip
                return [rng.normal(shift, scale, ours)], [rng.normal(size=theirs)]

            yield Cell(
                "P(better)", f"better by {shift:g}, {scale:g} times as spread"
                + (f", {theirs} runs of the baseline" if ours != theirs else ""), ours, 0,
                NormalDist().cdf(shift / math.hypot(1.0, scale)), draw,
                lambda data: improvement_interval(*data),
                lambda data: stats.improvement_bootstrap(*data, repetitions=RESAMPLES),
            )  # fmt: skip


def aggregate_cells() -> Iterator[Cell]:
    """Yield aggregates of success rates over environments, 50 episodes a run."""
    for name, means in ENVIRONMENTS.items():
        for spread in (0.0, 0.02, 0.1):
            rng = np.random.default_rng(3)
            many = [rng.binomial(50, rates(mean, spread, 200_000, rng)) / 50 for mean in means]
            truths = {"mean": float(np.mean(means)), "median": float(np.median(means)),
                      "iqm": float(stats.aggregate_iqm(many))}  # fmt: skip
            for count in RUNS:

                def draw(
                    rng: np.random.Generator, means: tuple[float, ...] = means,
                    spread: float = spread, count: int = count,
                ) -> Any:  # fmt: skip
                    return [rng.binomial(50, rates(m, spread, count, rng)) / 50 for m in means]

                for what, truth in truths.items():
                    statistic = getattr(stats, f"aggregate_{what}")

                    def new(tasks: Any, what: str = what, count: int = count) -> Interval:
                        counts = [[50] * count] * len(tasks)
                        found: Interval = getattr(aggregate_intervals(tasks, counts), what)
                        return found

                    def old(tasks: Any, statistic: stats.Statistic = statistic) -> Interval:
                        return stats.stratified_bootstrap(tasks, statistic, repetitions=RESAMPLES)

                    yield Cell(f"{what} over environments", f"{name}, spread {spread:g}", count,
                               50, truth, draw, new, old)  # fmt: skip


def levels(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return what the seeds' expected returns are; standard deviations are about one."""
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "log-normal":
        return np.exp(rng.normal(size=shape))
    return 2.5 * (rng.random(shape) < 0.8) + rng.normal(0.0, 0.1, shape)


def rates(rate: float, spread: float, count: int, rng: np.random.Generator) -> Array:
    """Return success rates of seeds, beta distributed."""
    if spread == 0.0 or rate in (0.0, 1.0):
        return np.full(count, rate)
    size = 1.0 / spread - 1.0
    return rng.beta(rate * size, (1.0 - rate) * size, count)


def paired_rates(
    means: Sequence[float], spread: float, count: int, rng: np.random.Generator
) -> list[Array]:
    """Return two sides' rates of the same seeds: beta, with a normal copula of correlation 0.5."""
    first, second = rng.normal(size=(2, count))
    normal = (first, 0.5 * first + math.sqrt(0.75) * second)
    if spread == 0.0:
        return [np.full(count, mean) for mean in means]
    size = 1.0 / spread - 1.0
    return [
        betaincinv(mean * size, (1.0 - mean) * size, ndtr(x)) if 0.0 < mean < 1.0
        else np.full(count, mean)
        for mean, x in zip(means, normal, strict=True)
    ]  # fmt: skip


def judged(found: Array, episodes: int, rng: np.random.Generator) -> list[Array]:
    """Return the successes of each seed's episodes."""
    return list((rng.random((len(found), episodes)) < found[:, None]).astype(np.float64))


def keyed(runs: Iterable[Array], first: int = 0) -> dict[int, Array]:
    """Return runs by seed."""
    return dict(enumerate(runs, first))


def two_level(runs: Any, statistic: stats.Statistic = stats.aggregate_mean) -> Interval:
    """Return the old interval of a mean."""
    return stats.two_level_bootstrap(runs, statistic, repetitions=RESAMPLES)
