"""Listing datasets and summing one up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.catalog import find, is_dataset, list_datasets, summary
from trimtab.datasets.formats import minari
from trimtab.types import TrimtabError


def test_datasets_are_found_in_order_and_damage_is_reported(
    make_dataset: Any, tmp_path: Path
) -> None:
    for name in ("b", "deep/a", ".hidden", "deep/broken"):
        minari.save(make_dataset(), tmp_path / name)
    (tmp_path / "deep/broken/data/metadata.json").write_text("{")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "file.txt").write_text("x")
    rows = list_datasets(tmp_path)
    found = [Path(row["folder"]).relative_to(tmp_path).as_posix() for row in rows]
    assert found == ["b", "deep/a", "deep/broken"]
    assert rows[0] | {"megabytes": 0, "folder": ""} == {
        "id": "test/random-v0",
        "env": "test/env",
        "episodes": 3,
        "steps": 12,
        "megabytes": 0,
        "folder": "",
        "problem": None,
    }
    assert rows[2]["id"] is None
    assert "not readable JSON" in rows[2]["problem"]
    assert [path.name for path in find(tmp_path / "b")] == ["b"]
    assert is_dataset(tmp_path / "b")
    assert not is_dataset(tmp_path)


def test_a_missing_root_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="no such folder"):
        list_datasets(tmp_path / "nowhere")


def test_summary_is_json_and_right(make_dataset: Any) -> None:
    dataset = make_dataset((4, 1, 7))
    result = json.loads(json.dumps(summary(dataset), allow_nan=False))
    returns = [float(episode.rewards.sum()) for episode in dataset.episodes]
    assert result["episodes"] == 3
    assert result["steps"] == 12
    assert result["length"] == {"mean": 4.0, "min": 1.0, "max": 7.0}
    assert result["return"]["mean"] == pytest.approx(np.mean(returns), abs=1e-5)
    assert result["return"]["min"] == pytest.approx(min(returns), abs=1e-5)
    assert result["success_rate"] == pytest.approx(2 / 3)
    assert (result["terminated"], result["truncated"]) == (2, 1)
    assert len(result["obs_min"]) == result["obs_dim"] == 3
    assert len(result["action_max"]) == result["action_dim"] == 2
    assert result["infos"] == ["pose/left", "success"]
