"""Intervals against scipy's tests, published examples, brute force, and measured coverage."""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.aggregates import aggregate_intervals
from trimtab.benchmarks.board.intervals.improvement import BEHIND_BY, improvement_interval, verdict
from trimtab.benchmarks.board.intervals.interquartile import iqm_interval
from trimtab.benchmarks.board.intervals.kinds import KINDS, kind_of
from trimtab.benchmarks.board.intervals.means import difference_interval, mean_interval
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.board.stats import Interval
from trimtab.errors import TrimtabError


@dataclass(frozen=True)
class Coverage:
    """The script that measures coverage, and the modules of its folder."""

    script: ModuleType
    measuring: ModuleType
    situations: ModuleType
    power: ModuleType


@pytest.fixture(scope="module")
def coverage(root: Path) -> Iterator[Coverage]:
    """The script, with its folder on the path of imports as when it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "scripts")
        yield Coverage(
            script=importlib.import_module("interval_coverage"),
            measuring=importlib.import_module("coverage_study.measuring"),
            situations=importlib.import_module("coverage_study.situations"),
            power=importlib.import_module("coverage_study.power"),
        )


def runs_of(means: list[float], episodes: int = 8) -> list[np.ndarray]:
    noise = np.random.default_rng(0).normal(size=(len(means), episodes))
    return [mean + row - row.mean() for mean, row in zip(means, noise, strict=True)]


# ---------------------------------------------------------------------------------------------
# Known answers


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_a_mean_return_has_students_interval_over_seeds(count: int) -> None:
    means = np.random.default_rng(count).normal(5.0, 2.0, count)
    expected = scipy.stats.ttest_1samp(means, 0.0).confidence_interval()
    value, low, high = mean_interval(runs_of(list(means)))
    assert (value, low, high) == pytest.approx((means.mean(), *expected))


def test_one_seed_has_students_interval_over_its_episodes() -> None:
    scores = np.random.default_rng(0).normal(size=12)
    expected = scipy.stats.ttest_1samp(scores, 0.0).confidence_interval()
    assert mean_interval([scores])[1:] == pytest.approx(tuple(expected))


def test_differences_are_those_of_the_paired_and_of_welchs_test() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(3.0, 2.0, 5), rng.normal(0.0, 1.0, 5)
    left, right = dict(enumerate(runs_of(list(ours)))), runs_of(list(theirs))
    paired = scipy.stats.ttest_rel(ours, theirs).confidence_interval()
    found = difference_interval(left, dict(enumerate(right)))
    assert found[1:] == pytest.approx(tuple(paired))
    welch = scipy.stats.ttest_ind(ours, theirs[:3], equal_var=False).confidence_interval()
    found = difference_interval(left, dict(enumerate(right[:3], 7)))
    assert found[1:] == pytest.approx(tuple(welch))


def test_a_difference_from_one_seed_takes_that_seeds_episodes() -> None:
    """As if the baseline's episodes were seeds: Welch's test on means and episodes."""
    ours, episodes = np.array([3.0, 4.5, 5.0]), np.random.default_rng(2).normal(size=20)
    welch = scipy.stats.ttest_ind(ours, episodes, equal_var=False).confidence_interval()
    found = difference_interval(dict(enumerate(runs_of(list(ours)))), {0: episodes})
    assert found[1:] == pytest.approx(tuple(welch))


def test_equal_gains_leave_the_episodes_to_be_unsure_of() -> None:
    runs = runs_of([1.0, 2.0, 3.0])
    left, right = {k: run + 0.5 for k, run in enumerate(runs)}, dict(enumerate(runs))
    value, low, high = difference_interval(left, right)
    noise = math.sqrt(sum(2 * run.var(ddof=1) / 8 for run in runs)) / 3
    assert value == pytest.approx(0.5)
    assert high - value == pytest.approx(value - low) == pytest.approx(4.302653 * noise, rel=1e-5)


def test_one_seeds_success_has_wilsons_interval() -> None:
    for successes in (0, 7, 20):
        run = np.array([1.0] * successes + [0.0] * (20 - successes))
        expected = wilson_interval(successes, 20)
        assert mean_interval([run], rate=True) == pytest.approx(expected)


def test_seeds_that_all_succeed_leave_a_width() -> None:
    """Wilson's lower limit of N successes in N is N / (N + q^2), here with t's 4.30."""
    value, low, high = mean_interval([np.ones(50)] * 3, rate=True)
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(150 / (150 + scipy.stats.t.ppf(0.975, 2) ** 2))
    both = dict(enumerate([np.ones(50)] * 3))
    value, low, high = difference_interval(both, both, rate=True)
    assert value == 0.0 and low == pytest.approx(-high) and 0.05 < high < 0.2


def test_a_success_rate_counts_as_many_episodes_as_its_seeds_vary() -> None:
    """Seeds at 0.2, 0.5 and 0.8: Wilson with p (1 - p) / v episodes, solved by brute force."""
    runs = [np.repeat([1.0, 0.0], [k, 50 - k]) for k in (10, 25, 40)]
    variance = np.var([0.2, 0.5, 0.8], ddof=1) / 3
    quantile, episodes = scipy.stats.t.ppf(0.975, 2), 0.25 / variance

    def outside(p: float) -> float:
        return (0.5 - p) ** 2 - quantile**2 * p * (1 - p) / episodes

    value, low, high = mean_interval(runs, rate=True)
    assert value == pytest.approx(0.5)
    assert low == pytest.approx(brentq(outside, 0.0, 0.5))
    assert high == pytest.approx(brentq(outside, 0.5, 1.0))


def test_a_difference_of_rates_is_newcombes_published_example() -> None:
    """Newcombe (1998, Statistics in Medicine 17, 873), method 10: 56 of 70 less 48 of 80."""
    ours, theirs = np.repeat([1.0, 0.0], [56, 14]), np.repeat([1.0, 0.0], [48, 32])
    found = difference_interval({0: ours}, {1: theirs}, rate=True)
    assert found == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize("count", [8, 10, 13])
def test_an_interquartile_mean_of_eight_seeds_and_more_has_yuens_interval(count: int) -> None:
    means = np.random.default_rng(count).normal(size=count)
    # The mirrored sample has the same variance, so scipy's two-sample test gives it away.
    test = scipy.stats.ttest_ind(means, -means, trim=0.25, equal_var=False)
    value, low, high = iqm_interval(runs_of(list(means)))
    error = abs(2 * value / test.statistic) / math.sqrt(2)
    quantile = scipy.stats.t.ppf(0.975, count - 2 * (count // 4) - 1)
    assert value == pytest.approx(scipy.stats.trim_mean(means, 0.25))
    assert high - value == pytest.approx(value - low) == pytest.approx(quantile * error)


def test_an_interquartile_mean_of_three_seeds_is_their_mean() -> None:
    runs = runs_of([1.0, 4.0, 2.0])
    assert iqm_interval(runs) == mean_interval(runs)


def test_probability_of_improvement_solves_newcombes_equation() -> None:
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(0.7, 1.0, 5), rng.normal(0.0, 1.0, 7)
    value, low, high = improvement_interval([ours], [theirs])
    assert value == pytest.approx(np.mean(ours[:, None] > theirs[None, :]))

    def outside(t: float) -> float:
        extra = (5 + 7) / 2 - 1
        variance = t * (1 - t) * (1 + extra * ((1 - t) / (2 - t) + t / (1 + t))) / 35
        return float((t - value) ** 2 - scipy.stats.t.ppf(0.975, 10) ** 2 * variance)

    assert low == pytest.approx(brentq(outside, 1e-9, value))
    assert high == pytest.approx(brentq(outside, value, 1 - 1e-9))


def test_winning_every_pair_is_not_certainty() -> None:
    """Three against three win all by chance once in twenty times, so one half is in it."""
    for count, least in ((3, 0.3), (5, 0.5), (10, 0.7)):
        found = improvement_interval([np.arange(count) + 100.0], [np.arange(count) * 1.0])
        assert found.value == found.high == 1.0 and least < found.low < least + 0.1


def test_sides_exchanged_mirror_the_probability() -> None:
    left, right = [np.array([0.1, 0.5, 0.5])], [np.array([0.5, 0.2])]
    there, back = (improvement_interval(*x) for x in ((left, right), (right, left)))
    assert there == pytest.approx((1 - back.value, 1 - back.high, 1 - back.low))


# ---------------------------------------------------------------------------------------------
# Aggregates


def test_one_environment_is_its_own_aggregate() -> None:
    runs = [np.repeat([1.0, 0.0], [k, 50 - k]) for k in (30, 41, 47)]
    found = aggregate_intervals([np.array([0.6, 0.82, 0.94])], [[50] * 3])
    assert found.mean == pytest.approx(mean_interval(runs, rate=True))
    assert found.mean == found.median == found.iqm
    value, low, high = found.mean
    assert found.optimality_gap == pytest.approx((1 - value, 1 - high, 1 - low))


def test_solved_and_hopeless_environments_leave_a_width() -> None:
    found = aggregate_intervals([np.ones(3), np.zeros(3), np.ones(3)], [[20] * 3] * 3)
    for interval in (found.iqm, found.median, found.mean, found.optimality_gap):
        assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0
        assert interval.high - interval.low > 0.02
    assert found.median.value == 1.0 and found.mean.value == pytest.approx(2 / 3)


def test_single_seeds_in_several_environments_are_binomial() -> None:
    found = aggregate_intervals([np.array([0.5]), np.array([0.9])], [[20], [30]])
    parts = [wilson_interval(10, 20), wilson_interval(27, 30)]
    below = math.hypot(*(part.value - part.low for part in parts)) / 2
    assert found.mean.value - found.mean.low == pytest.approx(below)


# ---------------------------------------------------------------------------------------------
# What always holds

SUCCESSES = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1,
                     max_size=9)  # fmt: skip
RETURNS = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=5), min_size=1, max_size=9)


def holds(interval: Interval, low: float = -math.inf, high: float = math.inf) -> bool:
    slack = 1e-9 * max(1.0, *(abs(x) for x in interval))
    return (
        all(math.isfinite(x) for x in interval)
        and interval.low - slack <= interval.value <= interval.high + slack
        and low - slack <= interval.low
        and interval.high <= high + slack
    )


@settings(max_examples=150, deadline=None)
@given(SUCCESSES, SUCCESSES)
def test_rates_stay_in_bounds_and_hold_their_estimate(
    left: list[list[float]], right: list[list[float]]
) -> None:
    ours, theirs = [np.array(run) for run in left], [np.array(run) for run in right]
    for found in (
        mean_interval(ours, rate=True),
        iqm_interval(ours, rate=True),
    ):
        assert holds(found, 0.0, 1.0) and found.high > found.low
    pair = dict(enumerate(ours)), dict(enumerate(theirs))
    difference = difference_interval(*pair, rate=True)
    assert holds(difference, -1.0, 1.0) and difference.high > difference.low
    tasks = [np.array([run.mean() for run in side]) for side in (ours, theirs)]
    improvement = improvement_interval(tasks[:1], tasks[1:])
    assert holds(improvement, 0.0, 1.0) and improvement.high > improvement.low
    together = aggregate_intervals(tasks, [[len(run) for run in side] for side in (ours, theirs)])
    for found in (together.iqm, together.median, together.mean, together.optimality_gap):
        assert holds(found, 0.0, 1.0) and found.high > found.low


@settings(max_examples=100, deadline=None)
@given(RETURNS, RETURNS)
def test_returns_hold_their_estimate_and_do_not_hang_on_the_seeds_order(
    left: list[list[float]], right: list[list[float]]
) -> None:
    ours, theirs = [np.array(run) for run in left], [np.array(run) for run in right]
    found = mean_interval(ours)
    assert holds(found) and holds(iqm_interval(ours))
    assert mean_interval(ours[::-1]) == pytest.approx(found, rel=1e-6, abs=1e-3)
    assert holds(difference_interval(dict(enumerate(ours)), dict(enumerate(theirs))))


def test_returns_without_any_variance_have_no_interval() -> None:
    """Nothing is known of a spread that never showed; the leaderboard has a note on it."""
    assert mean_interval([np.full(4, 7.0)] * 3) == (7.0, 7.0, 7.0)


def test_bad_scores_are_refused() -> None:
    with pytest.raises(TrimtabError, match="at least one score"):
        mean_interval([])
    with pytest.raises(TrimtabError, match="NaN or infinite"):
        iqm_interval([np.array([np.nan])])
    with pytest.raises(TrimtabError, match="not between 0 and 1"):
        mean_interval([np.array([2.0])], rate=True)
    with pytest.raises(TrimtabError, match="number of episodes"):
        aggregate_intervals([np.ones(3)], [[50, 50]])
    with pytest.raises(TrimtabError, match="1 tasks of the method and 2"):
        improvement_interval([np.ones(3)], [np.ones(1)] * 2)


def test_kinds_of_interval() -> None:
    runs = runs_of([1.0, 4.0, 2.0])
    assert kind_of(KINDS[0]).mean(runs, False) == mean_interval(runs)
    field = kind_of("bootstrap", repetitions=100, seed=1)
    assert field.mean(runs, False) == stats.two_level_bootstrap(runs, repetitions=100, seed=1)
    with pytest.raises(TrimtabError, match="intervals=exact is unknown; there are student_t"):
        kind_of("exact")


# ---------------------------------------------------------------------------------------------
# Coverage and power


@pytest.mark.parametrize(
    ("situation", "setting", "runs", "least", "most"),
    [
        ("mean of returns", "normal", 3, 0.93, 0.97),
        ("mean of returns", "normal", 5, 0.93, 0.97),
        ("mean of returns", "normal", 10, 0.93, 0.97),
        ("interquartile mean of returns", "normal", 10, 0.92, 0.97),
        ("success rate", "rate 0.5, spread 0.1", 3, 0.93, 0.995),
        ("success rate", "rate 0.9, spread 0.1", 3, 0.93, 1.0),
        ("success rate", "rate 0.98, spread 0.02", 3, 0.93, 1.0),
        ("difference of returns, paired", "normal, ours 1 times as spread", 3, 0.93, 0.97),
        ("difference of success, paired", "rates 0.97 and 0.35, spread 0.02", 3, 0.93, 1.0),
        ("P(better)", "better by 1, 1 times as spread", 3, 0.93, 1.0),
        ("P(better)", "better by 1, 1 times as spread", 5, 0.93, 1.0),
        ("mean over environments", "5 tasks, spread 0.02", 3, 0.93, 1.0),
    ],
)
def test_intervals_hold_their_level(
    coverage: Coverage, situation: str, setting: str, runs: int, least: float, most: float
) -> None:
    """Three standard errors of 1,000 draws at 0.95 are 0.02."""
    cell = next(
        cell
        for cell in coverage.situations.cells()
        if (cell.situation, cell.setting, cell.runs) == (situation, setting, runs)
        and (cell.episodes != 10 or situation != "success rate")
    )
    row = coverage.measuring.measure(cell, 1000, 30)
    assert least <= row.coverage <= most
    committed = next(
        found
        for found in coverage.script.committed("coverage")
        if (found["situation"], found["setting"]) == (situation, setting)
        and (int(found["runs"]), int(found["episodes"])) == (runs, cell.episodes)
    )
    assert row.coverage == pytest.approx(float(committed["coverage"]), abs=0.005)
    assert row.width == pytest.approx(float(committed["width"]), rel=0.01)


def test_the_old_intervals_do_not_hold_it(coverage: Coverage) -> None:
    cell = next(
        c for c in coverage.situations.return_cells() if (c.setting, c.runs) == ("normal", 3)
    )
    assert 0.65 <= coverage.measuring.measure(cell, 1, 300).old_coverage <= 0.81


def test_the_smallest_difference_is_found_with_the_power_it_says(coverage: Coverage) -> None:
    rng = np.random.default_rng(5)
    shift, found = coverage.power.detectable(3, paired=False), 0
    for _ in range(2000):
        ours, theirs = rng.normal(shift, 1.0, (3, 1)), rng.normal(0.0, 1.0, (3, 1))
        sides = dict(enumerate(ours)), dict(enumerate(theirs, 10))
        found += difference_interval(*sides).low > 0.0
    assert 0.77 <= found / 2000 <= 0.83  # three standard errors are 0.027


def test_verdicts() -> None:
    assert verdict(Interval(0.3, 0.1, 0.49)) == "behind"
    assert verdict(Interval(0.5, 0.2, 0.8)) == "cannot be told"
    assert verdict(Interval(0.6, 0.25, 0.8)) == "not behind"
    assert pytest.approx(scipy.stats.norm.cdf(-1 / math.sqrt(2)), abs=5e-3) == BEHIND_BY


def test_what_is_worse_by_a_standard_deviation_does_not_pass_as_not_behind(
    coverage: Coverage,
) -> None:
    """The old test passed most of such methods at five seeds a side; the verdict errs rarely."""
    worse = coverage.power.verdicts(5, 1.0, 1000)
    assert worse["old test"] > 0.55 and worse["not behind"] <= 0.04
    assert coverage.power.verdicts(5, 0.0, 1000)["behind"] <= 0.04
    committed = next(
        row
        for row in coverage.script.committed("power")
        if (row["seeds"], float(row["worse_by"])) == ("5", 1.0)
    )
    assert worse["behind"] == pytest.approx(float(committed["behind"]), abs=0.04)


def test_the_pages_have_the_committed_rows(coverage: Coverage, root: Path) -> None:
    rows, powers = coverage.script.committed("coverage"), coverage.script.committed("power")
    assert (coverage.script.RESULTS / "coverage.md").read_text() == coverage.script.page(
        rows, powers
    )
    document = (root / "docs" / "statistics.md").read_text()
    for name, lines in coverage.script.document_tables().items():
        assert lines in document, name
    with (coverage.script.RESULTS / "coverage.csv").open(newline="") as file:
        found = {(r["situation"], r["setting"], r["runs"], r["episodes"])
                 for r in csv.DictReader(file)}  # fmt: skip
    assert found == {
        (c.situation, c.setting, str(c.runs), str(c.episodes)) for c in coverage.situations.cells()
    }


def test_what_the_document_says_of_coverage_is_what_was_measured(
    coverage: Coverage, root: Path
) -> None:
    rows = coverage.script.committed("coverage")
    text = " ".join((root / "docs" / "statistics.md").read_text().split())

    def found(name: str = "coverage", **wanted: str) -> list[str]:
        here = [r for r in rows if all(r[key] == value for key, value in wanted.items())]
        assert here, wanted
        return [f"{float(row[name]):.2f}" for row in here]

    (bootstrap,) = found(
        "old_coverage", situation="mean of returns", setting="normal", runs="3", episodes="10"
    )
    percent = f"{100 * float(bootstrap):.0f} percent of the time"
    assert f"holds the truth about {percent}" in text
    assert percent in " ".join(str(stats.__doc__).split())
    least = [min(found(situation="success rate", runs=runs)) for runs in ("2", "3", "5", "10")]
    assert f"{least[0]}, {least[1]}, {least[2]} and {least[3]} with 2, 3, 5 and 10" in text
    rare = {"situation": "success rate", "setting": "rate 0.98, spread 0.3", "runs": "10"}
    assert found(**rare, episodes="50") == [least[-1]]
    assert f"The {least[-1]} belongs to a rate of 0.98" in text
    assert f"is wider, and the coverage is {found(**rare, episodes='10')[0]}" in text
    solved = {"setting": "5 solved tasks, spread 0.1", "runs": "10"}
    for name, told in (("median", "of {}"), ("mean", "the mean one of {}")):
        (one,) = found(situation=f"{name} over environments", **solved)
        assert one == min(found(situation=f"{name} over environments", runs="10"))
        assert told.format(one) in text
    paired, independent = (
        min(found(situation=f"difference of success, {kind}", runs="10"))
        for kind in ("paired", "independent")
    )
    assert f"at least {paired} (paired) and {independent} (independent) with ten seeds" in text
