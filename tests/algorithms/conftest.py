"""The made-up task of the contracts, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.benchmarks.contracts import made_up
from trimtab.types import Batch, Statistics


@pytest.fixture(scope="session")
def statistics() -> Statistics:
    return made_up.statistics()


@pytest.fixture
def setup_of() -> Callable[..., Setup]:
    """Give an algorithm what it says that it uses, and nothing else."""
    return made_up.make_setup


@pytest.fixture
def data_of() -> Callable[..., Any]:
    """Draw what the harness would give to an algorithm's update."""

    def draw(algorithm: Algorithm, seed: int = 0) -> Any:
        return made_up.data_for(algorithm, seed)

    return draw


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    """Draw a batch as the harness would give it to an algorithm that replays."""
    return made_up.made_batch
