"""Intervals against scipy's tests, published examples and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.aggregates import aggregate_intervals
from trimtab.benchmarks.board.intervals.improvement import improvement_interval
from trimtab.benchmarks.board.intervals.interquartile import iqm_interval
from trimtab.benchmarks.board.intervals.kinds import KINDS, kind_of
from trimtab.benchmarks.board.intervals.means import difference_interval, mean_interval
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.board.intervals.runs import start_variance
from trimtab.benchmarks.board.stats import Interval
from trimtab.errors import TrimtabError


def runs_of(means: list[float]) -> list[np.ndarray]:
    """Runs with these means. Each has another number of episodes, so they share no starts."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=8 + number) for number in range(len(means))]
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
    runs = [*np.random.default_rng(0).normal(size=(3, 8))]
    left, right = {k: run + 0.5 for k, run in enumerate(runs)}, dict(enumerate(runs))
    value, low, high = difference_interval(left, right)
    noise = math.sqrt(sum(2 * run.var(ddof=1) / len(run) for run in runs)) / 3
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
    runs = [np.repeat([1.0, 0.0], [k, n - k]) for k, n in ((10, 50), (30, 60), (32, 40))]
    variance = np.var([0.2, 0.5, 0.8], ddof=1) / 3
    quantile, episodes = scipy.stats.t.ppf(0.975, 2), 0.25 / variance

    def outside(p: float) -> float:
        return (0.5 - p) ** 2 - quantile**2 * p * (1 - p) / episodes

    value, low, high = mean_interval(runs, rate=True)
    assert value == pytest.approx(0.5)
    assert low == pytest.approx(brentq(outside, 0.0, 0.5))
    assert high == pytest.approx(brentq(outside, 0.5, 1.0))


def test_the_variance_of_shared_starts_is_that_of_the_two_way_table() -> None:
    """By loops; and of runs in starts of their own it is none on average."""
    rng = np.random.default_rng(3)
    table = rng.normal(size=(4, 1)) + 2.0 * rng.normal(size=6) + rng.normal(size=(4, 6))
    grand = table.mean()
    of_starts = sum((table[:, e].mean() - grand) ** 2 for e in range(6)) * 4 / 5
    residual = sum(
        (table[r, e] - table[r].mean() - table[:, e].mean() + grand) ** 2
        for r in range(4)
        for e in range(6)
    ) / (3 * 5)  # fmt: skip
    known = (of_starts - residual) / 24
    assert start_variance([*table], freedom=5.0) == pytest.approx(known)
    quantiles = scipy.stats.t.ppf(0.975, [5, 3])
    assert start_variance([*table]) == pytest.approx(known * (quantiles[0] / quantiles[1]) ** 2)
    # A start's own variance is 4, and there are six of them.
    drawn = [
        start_variance([*(2.0 * rng.normal(size=6) + rng.normal(size=(4, 6)))], freedom=5.0)
        for _ in range(2000)
    ]
    assert np.mean(drawn) == pytest.approx(4 / 6, rel=0.06)
    assert start_variance([table[0], table[1, :5]]) == start_variance([table[0]]) == 0.0


def test_an_interval_counts_starts_that_all_runs_share() -> None:
    """Three runs that agree in every start know no more than one: t of the starts, not of runs."""
    scores = np.random.default_rng(4).normal(size=40)
    shifts = np.array([-1e-6, 0.0, 1e-6])
    value, low, high = mean_interval([scores + shift for shift in shifts])
    half = scipy.stats.t.ppf(0.975, 39) * scores.std(ddof=1) / math.sqrt(40)
    assert (value, high - value) == pytest.approx((scores.mean(), half), rel=1e-4)
    sides = [dict(enumerate([side + shift for shift in shifts])) for side in (scores, 0 * scores)]
    sides[1] = {seed: 0.5 * run for seed, run in sides[1].items()}
    value, low, high = difference_interval(*sides)
    assert high - value == pytest.approx(half, rel=1e-4)


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
    # An aggregate does not know the episodes, and so counts no starts; here they tell of none.
    starts = np.random.default_rng(1).permuted(np.tile(np.arange(50), (3, 1)), axis=1)
    runs = [(row < k).astype(np.float64) for row, k in zip(starts, (30, 41, 47), strict=True)]
    assert start_variance(runs) == 0.0
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
