"""Statistics against hand-computed cases, scipy, brute force, and known coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.errors import TrimtabError


def test_interquartile_mean_by_hand() -> None:
    assert stats.interquartile_mean(np.array([0.0, 1.0, 2.0, 100.0])) == 1.5
    assert stats.interquartile_mean(np.array([5.0, 1.0, 3.0])) == 3.0  # nothing is cut from three
    assert stats.interquartile_mean(np.arange(8.0)[::-1]) == 3.5


@pytest.mark.parametrize("shape", [(1,), (3,), (5,), (10,), (7, 3), (30, 4)])
def test_interquartile_mean_is_scipys_trimmed_mean(shape: tuple[int, ...]) -> None:
    scores = np.random.default_rng(0).normal(size=shape)
    expected = trim_mean(scores, 0.25, axis=None)
    assert stats.interquartile_mean(scores) == pytest.approx(expected, abs=1e-12)
    along = stats.interquartile_mean(scores, axis=-1)
    np.testing.assert_allclose(along, trim_mean(scores, 0.25, axis=-1), atol=1e-12)


def test_interquartile_mean_of_nothing_is_an_error() -> None:
    with pytest.raises(TrimtabError, match="no scores"):
        stats.interquartile_mean(np.array([]))


def test_aggregates_by_hand() -> None:
    tasks = [np.array([0.0, 0.2]), np.array([0.5, 0.5, 0.8]), np.array([1.0, 1.4])]
    assert stats.aggregate_mean(tasks) == pytest.approx((0.1 + 0.6 + 1.2) / 3)
    assert stats.aggregate_median(tasks) == pytest.approx(0.6)
    assert stats.optimality_gap(tasks) == pytest.approx(1 - (0.1 + 0.6 + 1.0) / 3)
    assert stats.aggregate_iqm(tasks) == pytest.approx(trim_mean(np.concatenate(tasks), 0.25))


def test_stratified_bootstrap_never_mixes_tasks() -> None:
    """Without variance inside tasks there is none at all, however far apart tasks are."""
    tasks = [np.full(4, 0.1), np.full(4, 0.9)]
    interval = stats.stratified_bootstrap(tasks, stats.aggregate_mean)
    assert interval == pytest.approx((0.5, 0.5, 0.5))


def test_stratified_interval_equals_a_plain_loop() -> None:
    scores = np.random.default_rng(1).random((6, 2))
    interval = stats.stratified_bootstrap([scores[:, 0], scores[:, 1]], repetitions=1500)
    rng = np.random.default_rng(2)
    drawn = [
        trim_mean(np.concatenate([rng.choice(scores[:, k], 6) for k in range(2)]), 0.25)
        for _ in range(1500)
    ]
    assert interval.value == pytest.approx(trim_mean(scores, 0.25, axis=None))
    assert interval[1:] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.02)


def test_two_level_interval_equals_a_plain_loop_with_runs_of_different_length() -> None:
    rng = np.random.default_rng(3)
    runs = [rng.normal(mean, 1.0, size) for mean, size in ((0.0, 5), (1.0, 20), (3.0, 9))]
    interval = stats.two_level_bootstrap(runs, repetitions=6000)
    drawn = [
        np.mean([rng.choice(runs[k], len(runs[k])).mean() for k in rng.integers(3, size=3)])
        for _ in range(6000)
    ]
    assert interval.value == pytest.approx(np.mean([run.mean() for run in runs]))
    assert interval[1:] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.12)


def test_intervals_are_the_same_each_time_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [np.random.default_rng(k).random(10) for k in range(4)]
    whole = stats.two_level_bootstrap(runs, repetitions=300)
    assert stats.two_level_bootstrap(runs, repetitions=300) == whole
    assert stats.two_level_bootstrap(runs, repetitions=300, seed=1) != whole
    monkeypatch.setattr(stats, "_CHUNK", 100)  # memory is bounded by drawing in pieces
    assert stats.two_level_bootstrap(runs, repetitions=300) == pytest.approx(whole)


def test_one_seed_gives_an_interval_over_episodes() -> None:
    run = np.array([0.0, 1.0] * 25)
    value, low, high = stats.two_level_bootstrap([run])
    assert value == 0.5
    assert low == pytest.approx(0.5 - 1.96 * 0.5 / np.sqrt(50), abs=0.03)
    assert high == pytest.approx(0.5 + 1.96 * 0.5 / np.sqrt(50), abs=0.03)


def test_no_variance_gives_no_width() -> None:
    runs = [np.ones(5), np.ones(5)]
    assert stats.two_level_bootstrap(runs) == pytest.approx((1, 1, 1))
    both = dict(enumerate(runs))
    assert stats.difference_bootstrap(both, both) == pytest.approx((0, 0, 0))


def test_two_level_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    truth, hits, trials = 0.6, 0, 300
    for trial in range(trials):
        rates = np.clip(truth + 0.1 * rng.standard_normal(10), 0, 1)
        runs = [(rng.random(30) < rate).astype(float) for rate in rates]
        _, low, high = stats.two_level_bootstrap(runs, repetitions=400, seed=trial)
        hits += low <= truth <= high
    assert 0.91 <= hits / trials <= 0.995


def test_difference_is_paired_where_seeds_are_the_same() -> None:
    """A method that gains the same in every seed has a sure gain, however seeds differ."""
    base = {seed: np.full(4, float(seed)) for seed in range(5)}
    method = {seed: scores + 0.5 for seed, scores in base.items()}
    assert stats.difference_bootstrap(method, base) == pytest.approx((0.5, 0.5, 0.5))
    elsewhere = {seed + 10: scores for seed, scores in base.items()}
    value, low, high = stats.difference_bootstrap(method, elsewhere)
    assert value == pytest.approx(0.5)
    assert low < -0.5 and high > 1.5


def test_difference_from_a_baseline_with_one_seed() -> None:
    method = {0: np.full(3, 1.0), 1: np.full(3, 3.0)}
    assert stats.difference_bootstrap(method, {0: np.full(3, 0.5)}) == pytest.approx(
        (1.5, 0.5, 2.5)
    )


def brute_force(method: list[np.ndarray], baseline: list[np.ndarray]) -> float:
    chances = []
    for ours, theirs in zip(method, baseline, strict=True):
        wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in ours for y in theirs]
        chances.append(sum(wins) / len(wins))
    return sum(chances) / len(chances)


def test_probability_of_improvement_by_hand() -> None:
    method, baseline = [np.array([1.0, 2.0])], [np.array([1.0, 0.0, 3.0])]
    # Pairs: 1>1 is half, 1>0, 1<3, 2>1, 2>0, 2<3.
    assert stats.improvement_bootstrap(method, baseline).value == pytest.approx(3.5 / 6)


def test_probability_of_improvement_and_its_bootstrap_equal_brute_force() -> None:
    rng = np.random.default_rng(5)
    method = [rng.integers(0, 4, size).astype(float) for size in (4, 7)]
    baseline = [rng.integers(0, 4, size).astype(float) for size in (5, 3)]
    interval = stats.improvement_bootstrap(method, baseline, repetitions=3000)
    assert interval.value == pytest.approx(brute_force(method, baseline))
    drawn = [
        brute_force(*([rng.choice(x, len(x)) for x in side] for side in (method, baseline)))
        for _ in range(3000)
    ]
    assert interval[1:] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.03)


def test_probability_of_improvement_is_symmetric() -> None:
    left, right = [np.array([0.1, 0.5, 0.5])], [np.array([0.5, 0.2])]
    there = stats.improvement_bootstrap(left, right).value
    back = stats.improvement_bootstrap(right, left).value
    assert there + back == pytest.approx(1.0)
    assert stats.improvement_bootstrap(left, left).value == pytest.approx(0.5)


def test_wilson_interval_known_values() -> None:
    # Newcombe (1998), table I: 81 of 263 and 0 of 20.
    assert wilson_interval(81, 263) == pytest.approx((0.3080, 0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)
    for successes, n in itertools.product((0, 1, 25, 50), (50, 400)):
        value, low, high = wilson_interval(successes, n)
        assert 0.0 <= low <= value <= high <= 1.0 and high > low


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(TrimtabError, match="cannot be"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("runs", [[], [np.array([])], [np.ones((2, 2))]])
def test_missing_scores_are_refused(runs: list[np.ndarray]) -> None:
    with pytest.raises(TrimtabError, match="at least one score"):
        stats.two_level_bootstrap(runs)


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(TrimtabError, match="NaN or infinite"):
        stats.stratified_bootstrap([np.array([0.0, np.nan])])


def test_interval_text() -> None:
    assert stats.Interval(0.834, 0.761, 0.899).text() == "0.83 [0.76, 0.90]"
    assert stats.Interval(0.2, -0.001, 0.3).text(signed=True) == "+0.20 [+0.00, +0.30]"
    assert stats.Interval(0.0, 0.0, 0.0).text() == "0.00"  # no interval can be given
    assert stats.Interval(1.0, 1.0, 1.0).text(1, signed=True) == "+1.0"
    assert stats.Interval(12345.6, 1.0, 2e6).text(0) == "12,346 [1, 2,000,000]"
