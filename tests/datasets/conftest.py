"""Small random datasets for the tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.io import sandbox as apart

MakeDataset = Callable[..., Dataset]


def random_episode(generator: np.random.Generator, steps: int, *, terminated: bool) -> Episode:
    """Return an episode of 3 observation and 2 action dimensions within [-1, 1]."""
    last = np.arange(steps) == steps - 1
    return Episode(
        observations=generator.normal(size=(steps + 1, 3)).astype(np.float32),
        actions=generator.uniform(-0.99, 0.99, size=(steps, 2)).astype(np.float32),
        rewards=generator.normal(size=steps).astype(np.float32),
        terminations=last & terminated,
        truncations=last & (not terminated),
        infos={"success": last & terminated, "pose/left": generator.normal(size=(steps, 2))},
        seed=int(generator.integers(1000)),
    )


@pytest.fixture
def make_dataset() -> MakeDataset:
    """Return a function of (lengths, seed) that makes a dataset of id ``test/random-v0``."""

    def make(lengths: Sequence[int] = (4, 1, 7), seed: int = 0) -> Dataset:
        generator = np.random.default_rng(seed)
        return Dataset(
            id="test/random-v0",
            env="test/env",
            env_options={"horizon": 7},
            episodes=tuple(
                random_episode(generator, steps, terminated=index % 2 == 0)
                for index, steps in enumerate(lengths)
            ),
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            control_rate=20.0,
            recipe={"name": "random", "seed": seed},
            fingerprint="0123456789ab",
        )

    return make


@pytest.fixture(scope="session")
def foreign() -> Any:
    """Return the module beside this one that writes files as other projects do."""
    return load_module(Path(__file__).with_name("foreign.py"))


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the module of what a separate process reads in tests; a new one can import it."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "io")
    apart.stop_reader()
    yield importlib.import_module("apart_readers")
    apart.stop_reader()
    del sys.modules["apart_readers"]
