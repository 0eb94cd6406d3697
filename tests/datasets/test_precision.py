"""What float32 rounds away of float64 is told and found, whatever format it was stored in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.lint import check
from trimtab.datasets.precision import losses
from trimtab.datasets.sources import streaming


def lost(dataset: Dataset) -> list[str]:
    return [finding.where for finding in check(dataset) if finding.code == "lost-precision"]


def stamps(rows: int) -> Any:
    """Return float64 observations of which the second dimension is a clock in seconds."""
    seen = np.random.default_rng(0).normal(size=(rows, 3))
    seen[:, 1] = 1.7e9 + 0.05 * np.arange(rows)
    return seen


def write_d4rl(foreign: Any, path: Path) -> Path:
    foreign.d4rl(path / "x.hdf5", observations=stamps(6))
    return path / "x.hdf5"


def write_minari(foreign: Any, path: Path) -> Path:
    foreign.minari(path / "x")
    with h5py.File(path / "x/data/main_data.hdf5", "a") as file:
        for episode in (file["episode_0"], file["episode_1"]):
            rows = len(episode["observations"])
            del episode["observations"]
            episode["observations"] = stamps(rows)
    return path / "x"


def write_ogbench(foreign: Any, path: Path) -> Path:
    foreign.ogbench(path / "x.npz", observations=stamps(7))
    return path / "x.npz"


def write_dppo(foreign: Any, path: Path) -> Path:
    foreign.dppo(path / "train.npz")
    limits = dict(np.load(path / "normalization.npz"))
    limits["obs_min"][1], limits["obs_max"][1] = 0, 0
    offset = np.array([0, 1.7e9, 0])
    limits["obs_min"] = limits["obs_min"].astype(np.float64) + offset
    limits["obs_max"] = limits["obs_max"].astype(np.float64) + offset + [0, 0.2, 0]
    np.savez(path / "normalization.npz", **limits)
    return path / "train.npz"


def write_diffusion_policy(foreign: Any, path: Path) -> Path:
    foreign.diffusion_policy(path / "x.zarr")
    foreign.zarr_array(path / "x.zarr/data/obs", stamps(5), (5, 3), None, bytes)
    return path / "x.zarr"


WRITERS = [write_d4rl, write_minari, write_ogbench, write_dppo, write_diffusion_policy]


@pytest.mark.parametrize("write", WRITERS)
def test_a_clock_among_the_observations(
    write: Any, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(foreign, tmp_path)
    format = recognise(path)
    dataset = format.load(path)
    assert lost(dataset) == ["observation 1"]
    assert "observation 1: its values range over" in caplog.text
    if format.open is not None:
        for _ in range(2):  # converted, and read back
            caplog.clear()
            assert lost(streaming.load(path, tmp_path / "cache")) == ["observation 1"]
            assert "observation 1: its values range over" in caplog.text
    save = get_format("minari").save
    assert save is not None
    save(dataset, tmp_path / "copy")  # it stays lost
    assert lost(get_format("minari").load(tmp_path / "copy")) == ["observation 1"]


def of(*episodes: Any) -> list[tuple[str, str]]:
    """Return what is lost of one dimension of observations; an array for each episode."""
    built = []
    for rows in episodes:
        seen, steps = np.asarray(rows)[:, None], len(rows) - 1
        flags = np.zeros(steps, bool)
        built.append(Episode(seen, np.zeros((steps, 1)), np.zeros(steps), flags, flags))
    return losses(episode.roundings for episode in built)


NORMAL = np.random.default_rng(0).normal(size=50)


@pytest.mark.parametrize(
    "episodes",
    [
        [1.7e9 + 0.02 * np.arange(50)],
        [1.7e9 + 1e5 * day + 0.1 * np.arange(50) for day in range(4)],  # days apart
        [1e8 + NORMAL, 1e8 - NORMAL],
        [(10**12 + np.arange(50)).astype(np.int64)],  # milliseconds as whole numbers
        [52.5 + 1e-6 * NORMAL],  # degrees, a few centimetres apart
    ],
)
def test_what_is_lost_is_found(episodes: Any) -> None:
    assert [where for where, _ in of(*episodes)] == ["observation 0"]


@pytest.mark.parametrize(
    "episodes",
    [
        [NORMAL],
        [np.full(9, 0.1), np.full(9, 0.3)],  # a goal of each episode
        [np.full(9, 1.7e9 + 0.1)],  # never changes: nothing to lose
        [500_000 + 50 * NORMAL],
        [(1e9 + np.float32(64) * np.arange(50)).astype(np.float32)],  # was no finer
        [np.arange(50)],
        [1 + 1e-9 * NORMAL],  # a simulator's one
        [0.8 + 1e-12 * NORMAL, 0.2 + 1e-12 * NORMAL],  # rests in different places
    ],
)
def test_what_is_not_lost_is_not_found(episodes: Any) -> None:
    assert of(*episodes) == []


def test_only_the_first_of_many_are_told(
    foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = np.repeat(stamps(6)[:, 1:2], 9, axis=1)
    foreign.d4rl(tmp_path / "x.hdf5", observations=seen)
    dataset = get_format("d4rl").load(tmp_path / "x.hdf5")
    assert len(lost(dataset)) == 9
    assert caplog.text.count("its values range over") == 5
    assert "4 more of these; trimtab dataset check shows them" in caplog.text
    assert json.loads(json.dumps(dataset.recipe)) == dataset.recipe
