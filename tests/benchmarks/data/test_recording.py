"""What a recipe's recording decides before it begins."""

from __future__ import annotations

import pytest

from trimtab.benchmarks.data.recording import _is_small
from trimtab.datasets.recording import Wanted


@pytest.mark.parametrize(
    ("wanted", "small"),
    [
        (Wanted(16, None, False), True),
        (Wanted(17, None, False), False),
        (Wanted(8, None, True), True),
        (Wanted(9, None, True), False),  # nobody knows how many episodes come before nine successes
        (Wanted(None, 1000, False), True),
        (Wanted(None, 1001, False), False),
    ],
)
def test_a_few_episodes_are_recorded_without_further_processes(wanted: Wanted, small: bool) -> None:
    assert _is_small(wanted) == small
