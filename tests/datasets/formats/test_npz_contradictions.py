"""Parts of DPPO's and OGBench's files that contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.formats.registry import get_format
from trimtab.types import TrimtabError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terminals": np.array([0, 1, 0, 0, 0])}, "'terminals': episode 0: set at step 1 of 3"),
        ({"terminals": np.array([0, 0, 1, 1, 0])}, "'terminals': episode 1: set at step 0 of 2"),
        ({"terminals": np.array([0, 0, 1, 0])}, "'terminals': .* do not fit"),
        ({"traj_lengths": np.array([3, 3])}, "'traj_lengths': their sum is not 5"),
        ({"traj_lengths": np.array([5, 0])}, "'traj_lengths': not whole numbers from 1"),
        ({"states": np.full((5, 3), 3.0)}, "'states': values of up to 3, which the scaling"),
        ({"actions": np.full((5, 2), -1.5)}, "'actions': values of up to 1.5, which the scaling"),
        ({"states": np.zeros(5)}, r"'states': shape \(5,\) is not \(N, D\)"),
        ({"traj_lengths": np.array([3.5, 1.5])}, "'traj_lengths': not whole numbers from 1"),
        ({"states": np.zeros((5, 4))}, "normalization.npz: 'obs_min' and 'obs_max' of shapes"),
    ],
)
def test_dppo(change: Any, message: str, foreign: Any, tmp_path: Path) -> None:
    foreign.dppo(tmp_path / "train.npz", **change)
    with pytest.raises(TrimtabError, match=message):
        get_format("dppo").load(tmp_path / "train.npz")


def test_dppos_limits_in_the_wrong_order(foreign: Any, tmp_path: Path) -> None:
    foreign.dppo(tmp_path / "train.npz")
    limits = dict(np.load(tmp_path / "normalization.npz"))
    limits["obs_min"], limits["obs_max"] = limits["obs_max"], limits["obs_min"]
    np.savez(tmp_path / "normalization.npz", **limits)
    with pytest.raises(TrimtabError, match="normalization.npz: 'obs_min' exceeds 'obs_max'"):
        get_format("dppo").load(tmp_path / "train.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["obs_min", "action_max"])
def test_dppos_limits_that_are_no_numbers(
    name: str, value: float, foreign: Any, tmp_path: Path
) -> None:
    foreign.dppo(tmp_path / "train.npz")
    limits = dict(np.load(tmp_path / "normalization.npz"))
    limits[name] = np.full_like(limits[name], value)
    np.savez(tmp_path / "normalization.npz", **limits)
    with pytest.raises(TrimtabError, match=f"normalization.npz: NaN or infinity in .*'{name}'"):
        get_format("dppo").load(tmp_path / "train.npz")


@pytest.mark.parametrize("value", [np.array(["pick"] * 7), np.array(3), np.array([{}, None])])
def test_what_ogbench_does_not_know_is_left_out(
    value: Any, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.ogbench(tmp_path / "x.npz", note=value)
    dataset = get_format("ogbench").load(tmp_path / "x.npz")
    assert [len(episode) for episode in dataset.episodes] == [3, 2]
    assert dataset.recipe["left_out"] == ["note"]
    assert "left out, as no arrays of OGBench: note" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"next_observations": np.zeros((7, 3))},
            "'next_observations': only what OGBench's loader",
        ),
        ({"valids": np.ones(7)}, "'valids': only what OGBench's loader"),
        ({"actions": np.zeros(7, np.int32)}, "'actions': discrete actions"),
        ({"actions": np.zeros((6, 2))}, "'actions': shape .* expected 7 rows"),
        ({"terminals": np.array([0, 0, 1, 0, 0, 0, 0])}, "its last row ends no trajectory"),
        ({"terminals": np.array([0, 0, 0, 1, 1, 0, 1])}, "episode 1, key 'actions'"),
    ],
)
def test_ogbench(change: Any, message: str, foreign: Any, tmp_path: Path) -> None:
    foreign.ogbench(tmp_path / "x.npz", **change)
    with pytest.raises(TrimtabError, match=message):
        get_format("ogbench").load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((5, 4), np.float32)}, "its obs_dim is 3, and x-val.npz has 4"),
        ({"actions": np.zeros((5, 1), np.float32)}, "its action_dim is 2, and x-val.npz has 1"),
        ({"terminals": np.zeros(5)}, "x-val.npz, key 'terminals': its last row"),
    ],
)
def test_ogbenchs_validation_file(change: Any, message: str, foreign: Any, tmp_path: Path) -> None:
    foreign.ogbench(tmp_path / "x.npz")
    foreign.ogbench(tmp_path / "x-val.npz", (4,), **change)
    with pytest.raises(TrimtabError, match=message):
        get_format("ogbench").load(tmp_path / "x.npz")
