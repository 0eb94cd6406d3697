"""Measure how often intervals hold the truth, and what few seeds can tell.

python scripts/interval_coverage.py                  # about eight minutes on one core
python scripts/interval_coverage.py --write          # and writes its results and docs/statistics.md
python scripts/interval_coverage.py --tables         # writes the pages anew from the committed rows

Every cell is a situation in which the truth is known. The interval of
``benchmarks/board/intervals.py`` (new) and the percentile bootstrap of
``benchmarks/board/stats.py`` (old) are computed for many draws of it; the coverage is the share of
draws whose interval holds the truth. The same command gives the same rows.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, nctdtr, ndtr, stdtrit

from trimtab.benchmarks.board import intervals, stats
from trimtab.benchmarks.board.stats import Interval
from trimtab.files import atomic_write_text

Array = NDArray[np.float64]
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "coverage"
DOCUMENT = ROOT / "docs" / "statistics.md"
NEW_DRAWS, OLD_DRAWS, RESAMPLES = 1000, 300, 400
RUNS, EPISODES = (2, 3, 5, 10), (10, 50)
RATES = (0.02, 0.1, 0.5, 0.9, 0.98, 1.0)
SPREADS = (0.0, 0.02, 0.1, 0.3)
"""Share of a success's variance that lies between seeds (intra-class correlation)."""
GAINS = ((0.5, 0.5), (0.97, 0.35), (0.98, 0.9), (1.0, 1.0), (0.02, 0.0))
ENVIRONMENTS = {
    "2 tasks": (0.9, 0.5),
    "5 tasks": (0.98, 0.9, 0.5, 0.3, 0.02),
    "5 solved tasks": (1.0, 1.0, 0.98, 0.98, 0.98),
}
POWER_SEEDS = (3, 5, 10, 20)
WORSE_BY = (1.0, 0.5, 0.0, -0.5, -1.0, -2.0)


@dataclass(frozen=True)
class Cell:
    """One situation: how data are drawn, the truth, and both intervals of the data."""

    situation: str
    setting: str
    runs: int
    episodes: int
    truth: float
    draw: Callable[[np.random.Generator], Any]
    new: Callable[[Any], Interval]
    old: Callable[[Any], Interval]


@dataclass(frozen=True)
class Row:
    """What was measured of a cell."""

    situation: str
    setting: str
    runs: int
    episodes: int
    truth: float
    coverage: float
    width: float
    old_coverage: float
    old_width: float
    draws: int
    old_draws: int


def measure(cell: Cell, draws: int, old_draws: int) -> Row:
    """Return the coverage and mean width of a cell's intervals, always from the same draws."""
    name = f"{cell.situation}, {cell.setting}, {cell.runs}, {cell.episodes}"
    found = []
    for make, count in ((cell.new, draws), (cell.old, old_draws)):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        made = [make(cell.draw(rng)) for _ in range(count)]
        # Where both ends are the truth up to rounding, the truth is held.
        held = [x.low - 1e-9 <= cell.truth <= x.high + 1e-9 for x in made]
        found += [float(np.mean(held)), float(np.mean([x.high - x.low for x in made]))]
    return Row(
        cell.situation, cell.setting, cell.runs, cell.episodes, round(cell.truth, 6),
        *(round(x, 4) for x in found), draws, old_draws,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Situations


def levels(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return what the seeds' expected returns are; standard deviations are about one."""
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "log-normal":
        return np.exp(rng.normal(size=shape))
    return 2.5 * (rng.random(shape) < 0.8) + rng.normal(0.0, 0.1, shape)


LEVEL_MEANS = {"normal": 0.0, "log-normal": math.exp(0.5), "one seed in five fails": 2.0}


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
                       intervals.mean_interval, two_level)  # fmt: skip
            if count > 3:
                yield Cell("interquartile mean of returns", kind, count, 10, middle, draw,
                           intervals.iqm_interval,
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
                        draw, lambda runs: intervals.mean_interval(runs, rate=True), two_level,
                    )  # fmt: skip


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
                    lambda data: intervals.difference_interval(*data),
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
                        lambda data: intervals.difference_interval(*data, rate=True),
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
                lambda data: intervals.improvement_interval(*data),
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
                        found: Interval = getattr(
                            intervals.aggregate_intervals(tasks, counts), what
                        )
                        return found

                    def old(tasks: Any, statistic: stats.Statistic = statistic) -> Interval:
                        return stats.stratified_bootstrap(tasks, statistic, repetitions=RESAMPLES)

                    yield Cell(f"{what} over environments", f"{name}, spread {spread:g}", count,
                               50, truth, draw, new, old)  # fmt: skip


def cells() -> list[Cell]:
    """Return every situation."""
    return [*return_cells(), *success_cells(), *difference_cells(), *improvement_cells(),
            *aggregate_cells()]  # fmt: skip


# ---------------------------------------------------------------------------------------------
# What few seeds can tell


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
        counts[intervals.verdict(intervals.improvement_interval(*pair))] += 1
        if number < old_draws:
            old += stats.improvement_bootstrap(*pair, repetitions=RESAMPLES).high >= 0.5
    return {name: count / draws for name, count in counts.items()} | {"old test": old / old_draws}


# ---------------------------------------------------------------------------------------------
# Tables


def table(lines: Iterable[Sequence[object]], words: int = 1) -> str:
    """Return lines of cells as Markdown; the first ``words`` columns are words."""
    heading, *rest = [[str(cell) for cell in line] for line in lines]
    rule = [":--" if number < words else "--:" for number in range(len(heading))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *rest))


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return for each situation and number of seeds the median and the least coverage."""
    lines: list[Sequence[object]] = [
        ("situation", "seeds", "settings", "new: median", "new: least", "old: median", "old: least")
    ]
    keys = list(dict.fromkeys((row["situation"], int(row["runs"])) for row in rows))
    for situation, runs in sorted(keys, key=lambda key: [k[0] for k in keys].index(key[0])):
        here = [r for r in rows if (r["situation"], int(r["runs"])) == (situation, runs)]
        cells_ = [
            f"{found:.2f}"
            for name in ("coverage", "old_coverage")
            for values in [[float(row[name]) for row in here]]
            for found in (np.median(values), min(values))
        ]
        lines.append((situation, runs, len(here), *cells_))
    return table(lines)


def seeds_table() -> str:
    """Return the smallest difference that is found with 80 percent power, by seeds."""
    lines: list[Sequence[object]] = [("seeds a side", "t quantile", "independent", "paired")]
    for seeds in POWER_SEEDS:
        quantile = float(stdtrit(seeds - 1, 0.975))
        lines.append(
            (seeds, f"{quantile:.2f}", *(f"{detectable(seeds, paired):.1f}" for paired in (0, 1)))
        )
    return table(lines, 0)


def verdict_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often each verdict is given."""
    names = ("behind", "cannot be told", "not behind", "old test")
    lines: list[Sequence[object]] = [
        ("ours is worse by", "seeds a side", *names[:3], "old test passed")
    ]
    for row in rows:
        cells_ = [f"{float(row[name]):.2f}" for name in names]
        lines.append((f"{float(row['worse_by']):g}", row["seeds"], *cells_))
    return table(lines, 0)


def details(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return every cell."""
    names = ("situation", "setting", "runs", "episodes", "coverage", "width", "old_coverage",
             "old_width")  # fmt: skip
    lines: list[Sequence[object]] = [
        ("situation", "setting", "seeds", "episodes", "coverage", "width", "old coverage",
         "old width")
    ]  # fmt: skip
    for row in rows:
        lines.append(
            [f"{float(row[n]):.3f}" if "wid" in n or "cov" in n else row[n] for n in names]
        )
    return table(lines, 2)


def page(rows: Sequence[Mapping[str, Any]], powers: Sequence[Mapping[str, Any]]) -> str:
    """Return ``coverage.md``."""
    parts = (
        "# Coverage of the 95 percent intervals, measured",
        f"New: {NEW_DRAWS:,} draws a cell (standard error 0.007 at 0.95). Old: percentile "
        f"bootstrap, {OLD_DRAWS} draws a cell (standard error 0.013 at 0.95), {RESAMPLES} "
        "resamples.",
        "## By situation and number of seeds", summary(rows),
        "## Verdicts on a method beside its peer, normal scores", verdict_table(powers),
        "## Smallest difference found with 80 percent power, in standard deviations", seeds_table(),
        "## Every cell", details(rows),
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def committed(name: str) -> list[dict[str, str]]:
    """Return committed rows, ``coverage`` or ``power``."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def document_tables() -> dict[str, str]:
    """Return the tables of ``docs/statistics.md`` by name, from the committed rows."""
    return {
        "coverage": summary(committed("coverage")),
        "seeds": seeds_table(),
        "verdict": verdict_table(committed("power")),
    }


def write_pages() -> None:
    """Write ``coverage.md`` and the tables in ``docs/statistics.md`` from the committed rows."""
    atomic_write_text(RESULTS / "coverage.md", page(committed("coverage"), committed("power")))
    text = DOCUMENT.read_text()
    for name, lines in document_tables().items():
        before, start, rest = text.partition(
            f"<!-- {name} table: written by scripts/interval_coverage.py -->"
        )
        _, end, after = rest.partition("<!-- end of table -->")
        if not end:
            sys.exit(f"{DOCUMENT.name} lacks the place of the table {name}")
        text = f"{before}{start}\n{lines}\n{end}{after}"
    atomic_write_text(DOCUMENT, text)


def main() -> None:
    """Measure every cell; print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tables", action="store_true")
    settings = parser.parse_args()
    if settings.tables:
        write_pages()
        return
    rows = []
    for cell in cells():
        rows.append(asdict(measure(cell, NEW_DRAWS, OLD_DRAWS)))
        sys.stderr.write(f"{rows[-1]}\n")
    powers = [
        {"seeds": seeds, "worse_by": worse_by, **verdicts(seeds, worse_by, 4 * NEW_DRAWS)}
        for worse_by in WORSE_BY
        for seeds in POWER_SEEDS
    ]
    if settings.write:
        RESULTS.mkdir(parents=True, exist_ok=True)
        atomic_write_text(RESULTS / "coverage.csv", as_csv(rows))
        atomic_write_text(RESULTS / "power.csv", as_csv(powers))
        write_pages()
    else:
        sys.stdout.write(page(rows, powers))


if __name__ == "__main__":
    main()
