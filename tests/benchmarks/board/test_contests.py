"""Paired differences over contests, their looks and verdicts, against counts and known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, ttest_1samp
from scipy.stats import t as student

from trimtab.benchmarks.board.arena.findings import holm
from trimtab.benchmarks.board.intervals.contests import (
    Contrast,
    contest_error,
    contest_interval,
    held_out,
    hindsight,
    paired,
    tasks_interval,
)
from trimtab.benchmarks.board.intervals.looks import confidence_at, shares_of
from trimtab.benchmarks.board.verdicts import seeds_to_tell, verdict_of
from trimtab.errors import TrimtabError

RNG = np.random.default_rng(0)


def test_one_contest_is_student_s_t_test() -> None:
    differences = RNG.normal(0.3, 1.0, 7)
    known = ttest_1samp(differences, 0.0).confidence_interval(0.95)
    found = contest_interval([paired(differences)])
    assert found == pytest.approx((differences.mean(), known.low, known.high))


def test_contests_are_summed_and_a_new_task_is_judged_by_their_means_alone() -> None:
    contests = [RNG.normal(mean, 0.1, seeds) for mean, seeds in ((0.1, 3), (0.4, 5), (0.2, 5))]
    found = contest_interval([paired(one) for one in contests])
    means = [one.mean() for one in contests]
    parts = [one.var(ddof=1) / len(one) for one in contests]
    # Satterthwaite's degrees of freedom, and Student's t with them.
    freedom = sum(parts) ** 2 / sum(part**2 / f for part, f in zip(parts, (2, 4, 4), strict=True))
    half = student.isf(0.025, freedom) * math.sqrt(sum(parts)) / 3
    assert (found.value, found.high - found.value) == pytest.approx((np.mean(means), half))
    new = tasks_interval([paired(one) for one in contests])
    known = ttest_1samp(means, 0.0).confidence_interval(0.95)
    assert (new.low, new.high) == pytest.approx((known.low, known.high))
    assert tasks_interval([paired(contests[0])]).high == math.inf
    with pytest.raises(TrimtabError, match="there is no contest"):
        contest_interval([])


def test_two_contests_of_a_task_are_one_draw_of_a_task() -> None:
    contests = [Contrast(value, 0.01, 2.0, task=task) for value, task in
                ((0.1, "a"), (0.3, "a"), (0.6, "b"), (0.4, "c"))]  # fmt: skip
    known = ttest_1samp([0.2, 0.6, 0.4], 0.0).confidence_interval(0.95)
    assert tasks_interval(contests) == pytest.approx((0.4, known.low, known.high))
    assert tasks_interval(contests[:2]).high == math.inf


def test_contests_that_vary_unequally_err_no_more_often_than_is_stated() -> None:
    """With the sum of all degrees of freedom, 12 of 100 would be told."""
    spreads, draws, told = np.array([[0.30], [0.02]]), 6000, 0
    drawn = np.random.default_rng(1).normal(0.0, spreads, (draws, 2, 3))
    for contests in drawn:
        found = contest_interval([paired(one) for one in contests])
        told += not found.low < 0.0 < found.high
    assert told / draws < 0.067  # 6 of 100, with two standard errors


def test_runs_that_are_all_alike_keep_the_width_of_their_episodes() -> None:
    found = contest_interval([paired(np.zeros(3), least_variance=0.01)])
    assert found.high == pytest.approx(4.302652729911275 * 0.1)  # t(0.975, 2)
    wide = contest_interval([Contrast(0.0, 4.0, 2.0, 0.01)])
    assert wide.high == pytest.approx(4.302652729911275 * 2)


def test_starts_that_two_contests_share_are_no_two_draws() -> None:
    """Each part has its own quantile; the errors of one task's starts are added, not squared."""
    one = Contrast(0.0, 0.01, 4.0, start_variance=0.04, starts=50)
    error, freedom = contest_error([one, one])
    ratio = 2.009575 / 2.306004  # t(0.975) of 49 and of 8
    assert freedom == 8.0
    assert error == pytest.approx(math.sqrt(0.02 + 2 * (ratio * 0.2) ** 2) / 2, rel=1e-5)
    shared = replace(one, task="x")
    error, _ = contest_error([shared, shared])
    assert error == pytest.approx(math.sqrt(0.02 + (2 * ratio * 0.2) ** 2) / 2, rel=1e-5)


def test_the_best_control_in_hindsight_and_by_the_other_seeds() -> None:
    ours = {0: 0.5, 1: 0.5, 2: 0.5}
    controls = {"steady": {0: 0.4, 1: 0.4, 2: 0.4}, "lucky": {0: 0.0, 1: 0.3, 2: 1.0}}
    # lucky has the higher mean by all seeds; without seed 2 steady has.
    assert hindsight(ours, controls).tolist() == pytest.approx([0.5, 0.2, -0.5])
    assert held_out(ours, controls).tolist() == pytest.approx([0.5, 0.2, 0.1])
    assert hindsight({1: 0.5}, controls).tolist() == pytest.approx([0.2])
    assert held_out({7: 0.5}, controls).tolist() == []
    with pytest.raises(TrimtabError, match="no control has a score"):
        hindsight(ours, {})


@pytest.mark.parametrize(
    ("shares", "bounds"),
    [  # of Lan and DeMets' boundary of the kind of O'Brien and Fleming, 5 percent on both sides
        ((1.0,), [1.9600]),
        ((0.5, 1.0), [2.9626, 1.9686]),
        ((1 / 3, 2 / 3, 1.0), [3.7103, 2.5114, 1.9930]),
        ((0.25, 0.5, 0.75, 1.0), [4.3326, 2.9631, 2.3590, 2.0141]),
    ],
)
def test_the_bounds_of_several_looks_are_the_published_ones(
    shares: tuple[float, ...], bounds: list[float]
) -> None:
    found = [norm.isf((1 - confidence_at(shares[: look + 1])) / 2) for look in range(len(shares))]
    assert found == pytest.approx(bounds, abs=1e-3)


def test_several_looks_err_no_more_often_than_one() -> None:
    """200,000 plans of three looks on normal noise; read at 95 percent each, 11 in 100 err."""
    shares = (0.3, 0.6, 1.0)
    sums = np.cumsum(RNG.normal(size=(200_000, 3)) * np.sqrt(np.diff((0.0, *shares))), axis=1)
    z = np.abs(sums) / np.sqrt(shares)
    bounds = [norm.isf((1 - confidence_at(shares[: look + 1])) / 2) for look in range(3)]
    assert (z > bounds).any(1).mean() == pytest.approx(0.05, abs=0.002)
    assert (z > 1.96).any(1).mean() > 0.09


def test_shares_are_those_of_the_looks_so_far() -> None:
    assert shares_of([3, 6, 10], 3) == (0.3,)
    assert shares_of([3, 6, 10], 6) == (0.3, 0.6)
    assert shares_of([3, 6, 10], 10) == (0.3, 0.6, 1.0)
    assert 1 - 1e-9 < confidence_at((0.04,)) < 1.0  # of a first look at two seeds in fifty


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.01, 0.3, "better"), (-0.3, -0.01, "worse"), (-0.04, 0.04, "no different"),
        (-0.04, 0.06, "not told yet"), (-0.06, 0.04, "not told yet"), (0.01, 0.04, "better"),
        (0.3, 0.3, "not told yet"),
    ],
)  # fmt: skip
def test_the_four_verdicts(low: float, high: float, told: str) -> None:
    assert verdict_of(low, high, 0.05) == told


@pytest.mark.parametrize(
    ("true", "told"), [(0.1, "better"), (-0.1, "worse"), (0.0, "no different")]
)
def test_so_many_seeds_tell_a_difference_in_four_of_five_cases(true: float, told: str) -> None:
    spread, contests = 0.15, 3
    now = [Contrast(true, spread**2 / 5, 4.0)] * contests
    seeds = seeds_to_tell(now)
    assert seeds is not None
    verdicts = []
    for _ in range(2000):
        drawn = RNG.normal(true, spread, (contests, seeds))
        found = contest_interval([paired(one) for one in drawn])
        verdicts.append(verdict_of(found.low, found.high))
    assert 0.77 < verdicts.count(told) / 2000 < 0.93


def test_a_forecast_names_the_first_look_whose_own_boundary_is_likely_to_be_crossed() -> None:
    """At 95 percent six seeds would do; the look at six asks for more, the one at ten does."""
    looks, spread, contests = (3, 6, 10), 0.15, 5
    now = [Contrast(0.08, spread**2 / 3, 2.0)] * contests
    assert seeds_to_tell(now, more_than=3) == 6
    assert seeds_to_tell(now, more_than=3, looks=looks) == 10
    power = {}
    for look in looks[1:]:
        confidence = confidence_at(shares_of(looks, look))
        drawn = [RNG.normal(0.08, spread, (contests, look)) for _ in range(2000)]
        ends = [contest_interval([paired(one) for one in each], confidence).low for each in drawn]
        power[look] = np.mean(np.array(ends) > 0.0)
    assert power[6] < 0.7 and power[10] > 0.78
    # What no look tells is a plan of its own, read once.
    alone = [Contrast(0.1, 0.4**2 / 3, 2.0)]
    assert seeds_to_tell(alone, looks=(3, 6)) == seeds_to_tell(alone) == 128


def test_a_difference_at_the_margin_is_told_by_no_number_of_seeds_that_is_worth_it() -> None:
    assert seeds_to_tell([Contrast(0.03, 1.0, 4.0)]) is None


def test_holm_s_correction() -> None:
    # By hand: 0.01 x 3; 0.02 x 2, the largest so far; 0.04 x 1 would be lower than 0.04.
    assert holm([0.04, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
