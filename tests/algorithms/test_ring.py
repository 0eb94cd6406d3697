"""The ring of rows that methods keep: the newest ones stay, however many come at once."""

from __future__ import annotations

import pytest
import torch

from trimtab.algorithms.common.ring import Ring


@pytest.mark.parametrize("at_once", [1, 3, 4, 7])
def test_the_newest_rows_are_kept_together(at_once: int) -> None:
    ring, rows = Ring(4, number=(), pair=(2,)), torch.arange(21.0)
    for first in range(0, 21, at_once):
        part = rows[first : first + at_once]
        ring.keep(part, torch.stack([part, -part], 1))
        written = min(first + at_once, 21)
        assert ring.written == written and ring.size == min(written, 4)
        number, pair = ring.get_buffer("number"), ring.get_buffer("pair")
        kept = number[: ring.size]
        assert sorted(kept.tolist()) == [*range(max(written - 4, 0), written)]
        assert torch.equal(pair[: ring.size], torch.stack([kept, -kept], 1))


def test_more_rows_than_fit_do_not_race_for_their_places() -> None:
    """Several threads, as a GPU, write the rows of one call in any order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        ring = Ring(1000, number=())
        ring.keep(torch.arange(400_000.0))
    finally:
        torch.set_num_threads(threads)
    assert sorted(ring.get_buffer("number").tolist()) == [*range(399_000, 400_000)]
