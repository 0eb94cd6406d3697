"""How many threads torch has, for a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trimtab.benchmarks.core.threads import one_thread


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_there_is_one_inside_and_as_many_as_before_after_it() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 2
