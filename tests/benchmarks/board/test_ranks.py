"""Rank correlation of estimates and true returns, against orders that are counted by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.benchmarks.board import ranks
from trimtab.benchmarks.board.ranks import Judged, rank, spearman
from trimtab.errors import TrimtabError


def test_spearman_by_the_formula_and_with_ties() -> None:
    one, other = np.array([1.0, 5.0, 2.0, 9.0]), np.array([10.0, 20.0, 40.0, 30.0])
    # Differences of ranks 0, 1, -2, 1: 1 - 6 * 6 / (4 * 15).
    assert spearman(one, other) == pytest.approx(1 - 6 * 6 / 60)
    assert spearman(np.exp(one), other) == pytest.approx(0.4)
    # Ranks 1.5, 1.5, 3 against 1, 2, 3.
    assert spearman(np.array([4.0, 4.0, 7.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(
        1.5 / math.sqrt(1.5 * 2.0)
    )
    assert math.isnan(spearman(np.zeros(3), np.arange(3.0)))


def judged(truth: float, updates: int, **estimates: float) -> Judged:
    return Judged(f"runs/{truth:g}", "bc", updates, truth, estimates)


POLICIES = [
    judged(1.0, 30, good=10.0, turned=5.0, lacking=1.0),
    judged(2.0, 20, good=11.0, turned=4.0, lacking=1.0),
    judged(5.0, 10, good=12.0, turned=4.5),
]


def test_ranks_chances_and_regret_by_hand(tmp_path: Path) -> None:
    found = {one.estimator: one for one in rank(POLICIES)}
    assert list(found) == ["good", "turned", "later"]  # the best first
    assert vars(found["good"]) == {
        "estimator": "good", "correlation": 1.0, "p_value": pytest.approx(1 / 6), "regret": 0.0,
        "policies": 3,
    }  # fmt: skip
    # Ranks 3, 1, 2: correlation -1/2, which five of the six orders reach; the worst is taken.
    assert found["turned"].correlation == pytest.approx(-0.5)
    assert found["turned"].p_value == pytest.approx(5 / 6)
    assert found["turned"].regret == pytest.approx(1.0)
    assert found["later"].correlation == pytest.approx(-1.0)
    paths = ranks.write(POLICIES, tmp_path)
    assert "| good | +1.00 | 0.167 | 0.00 | 3 |" in paths["offline_ranks.md"].read_text()
    with paths["offline_estimates.csv"].open() as file:
        lines = list(csv.DictReader(file))
    assert [line["lacking"] for line in lines] == ["1.0", "1.0", ""]


def test_many_policies_and_no_order() -> None:
    many = [judged(float(n), 7, good=n**2) for n in range(9)]
    good, later = rank(many)
    assert good.correlation == pytest.approx(1.0) and 0 < good.p_value < 0.01
    assert math.isnan(later.correlation) and math.isnan(later.regret)
    assert "| later | – | – | – | 9 |" in ranks.to_markdown([good, later])
    with pytest.raises(TrimtabError, match="2 policies have no order"):
        rank(POLICIES[:2])


def test_an_estimator_without_a_finite_value_orders_nothing() -> None:
    found = rank([judged(1.0, 1, a=1.0), judged(2.0, 2, a=2.0), judged(3.0, 3, a=math.nan)])
    (own,) = [one for one in found if one.estimator == "a"]
    assert math.isnan(own.correlation) and math.isnan(own.p_value) and math.isnan(own.regret)
