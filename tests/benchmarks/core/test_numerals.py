"""Numbers with the digits that tell them apart."""

from __future__ import annotations

import pytest

from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.core.numerals import lone_number, score_words, time_text


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ((0.83, 0.76, 0.9), "0.83 [0.76, 0.90]"),
        ((1234.5, 1200.0, 1300.0), "1,234.50 [1,200.00, 1,300.00]"),
        ((0.5002, 0.5, 0.5004), "0.50020 [0.50000, 0.50040]"),
        ((1.8e-8, 1.7e-8, 1.95e-8), "1.80e-08 [1.70e-08, 1.95e-08]"),
        ((0.0, -2e-9, 2e-9), "0 [-2.0e-09, 2.0e-09]"),
        ((-3e-4, -3e-4, -3e-4), "-0.000300"),
        ((0.0, 0.0, 0.0), "0.00"),
        ((123456789.1, 123456789.1, 123456789.1), "123,456,789.10"),
        ((1e-7, 1e-7, 1e-7), "1.00e-07"),
        ((1e6, 1e6 - 1e-4, 1e6 + 1e-4), "1,000,000.00000 [999,999.99990, 1,000,000.00010]"),
        ((0.001, -0.2, 0.2), "0.00 [-0.20, 0.20]"),  # its interval says that it is nothing
        ((float("nan"),) * 3, "nan"),
    ],
)
def test_an_interval_has_digits_by_its_width(interval: tuple[float, ...], shown: str) -> None:
    assert Interval(*interval).text() == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1591.4812, "-1591.48"), (0.004, "0.00400"), (-2.5e-5, "-2.50e-05"),
        (1.673e-7, "1.67e-07"), (0.0, "0.00"), (-0.0, "0.00"), (1e-300, "1.00e-300"),
    ],
)  # fmt: skip
def test_a_number_alone_is_never_shown_as_zero(value: float, shown: str) -> None:
    assert lone_number(value) == shown
    assert score_words(value, None) == f"return {shown}"
    assert score_words(value, 0.5) == "success 0.50"


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (0.0, "0.00"), (0.002, "0.00200"), (0.01, "0.01"), (1 / 3, "0.33"), (0.99, "0.99"),
        (0.996, "0.99600"), (0.9996, "0.999600"), (1.0, "1.00"),
    ],
)  # fmt: skip
def test_a_rate_is_never_shown_as_none_or_all(rate: float, shown: str) -> None:
    assert score_words(3.0, rate) == f"success {shown}"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"), (0.2, "less than 1 s"), (12.4, "12 s"), (360.0, "6 min"),
        (9000.0, "2.5 h"), (7.2e6, "2,000.0 h"),
    ],
)  # fmt: skip
def test_a_time_has_a_unit_that_shows_it(seconds: float, shown: str) -> None:
    assert time_text(seconds) == shown
