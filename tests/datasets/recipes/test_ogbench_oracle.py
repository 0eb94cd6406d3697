"""OGBench's oracles solve the tasks that need an order, and draw from nobody else's generator."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.training.data.recording import Stage, dataset_of
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.datasets.recipes.lights_out import presses, turned_by
from trimtab.datasets.recipes.ogbench_oracle import OgbenchOracle
from trimtab.envs.registry import make
from trimtab.types import TrimtabError


def recipe(name: str, **changes: Any) -> dict[str, Any]:
    return {**load_group("dataset", name), **changes}


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (3, 3), (4, 4)])
def test_the_fewest_presses_are_those_of_all_ways(rows: int, columns: int) -> None:
    size = rows * columns
    every = np.array(list(itertools.product((0, 1), repeat=size)))
    turned = every @ turned_by(rows, columns).astype(int) % 2
    fewest: dict[bytes, int] = {}
    for pattern, way in zip(turned.astype(bool), every, strict=True):
        key = pattern.tobytes()
        fewest[key] = min(int(way.sum()), fewest.get(key, size))
    patterns = np.random.default_rng(0).random((60, size)) < 0.5
    reached = turned[np.random.default_rng(1).integers(len(turned), size=60)].astype(bool)
    unsolved = 0
    for pattern in (*patterns, *reached):
        way = presses(rows, columns, pattern)
        if way is None:
            unsolved += 1
            assert pattern.tobytes() not in fewest
            continue
        np.testing.assert_array_equal(way @ turned_by(rows, columns).astype(int) % 2, pattern)
        assert way.sum() == fewest[pattern.tobytes()]
    assert (unsolved > 0) == (len(fewest) < len(every))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("ogbench_cube", "cube-double-singletask-task4-v0"),  # swapped: one is put aside first
        ("ogbench_cube", "cube-double-singletask-task5-v0"),  # stacked: the lower goal first
        ("ogbench_scene", "scene-singletask-task4-v0"),  # into the drawer, which is locked
    ],
)
def test_what_needs_an_order_is_solved(name: str, task: str) -> None:
    with contextlib.closing(Stage(recipe(name, env=f"ogbench/{task}"))) as stage:
        # Nearly every attempt succeeds; on a machine that rounds otherwise, the first one may not.
        assert any(stage.play(attempt).success for attempt in range(2))


def test_the_global_generator_neither_decides_nor_moves() -> None:
    wanted, hashes = recipe("ogbench_puzzle", env_options={"horizon": 40}), []
    with contextlib.closing(Stage(wanted)) as stage:
        before = np.random.get_state(legacy=False)
        try:
            for seed in (1, 2):
                np.random.seed(seed)
                hashes.append(dataset_of(wanted, [stage.play(0)]).content_hash)
                drawn = np.random.random()
                assert drawn == np.random.RandomState(seed).random()
        finally:
            np.random.set_state(before)
    assert hashes[0] == hashes[1]


def test_the_noise_of_the_oracle_has_its_size() -> None:
    env = make("ogbench/cube-single-singletask-v0")
    obs, _ = env.reset(seed=0)
    oracles = [OgbenchOracle("", np.random.default_rng(0), noise=noise) for noise in (0.0, 0.3)]
    for oracle in oracles:
        oracle.watch(env)
    exact = oracles[0].act(obs)
    errors = np.array([oracles[1].act(obs) - exact for _ in range(190)])
    env.close()
    assert 0 < np.abs(exact).max() <= 1
    assert errors.std() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("env", ["ogbench/pointmaze-medium-v0", "robotics/PointMaze-TwoRoutes-v0"])
def test_a_task_without_an_oracle_is_one_line(env: str) -> None:
    with (
        contextlib.closing(Stage(recipe("ogbench_cube", env=env))) as stage,
        pytest.raises(TrimtabError, match=r"oracles cannot act in .*dataset\.env") as error,
    ):
        stage.play(0)
    assert "\n" not in str(error.value)
