"""Listing datasets and summing one up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets import catalog
from trimtab.datasets.catalog import find, is_dataset, list_datasets, success_sentence, summary
from trimtab.datasets.formats.minari.writer import check_id
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.envs.registry import list_tasks
from trimtab.types import TrimtabError


def test_datasets_are_found_in_order_and_damage_is_reported(
    make_dataset: Any, tmp_path: Path
) -> None:
    for name in ("b", "deep/a", ".hidden", "deep/broken"):
        save_minari(make_dataset(), tmp_path / name)
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


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5])
def test_without_rewards_there_is_no_return(make_dataset: Any, reward: float) -> None:
    made = make_dataset((4, 1))
    flat = [replace(e, rewards=np.full_like(e.rewards, reward)) for e in made.episodes]
    result = summary(replace(made, episodes=tuple(flat)))
    assert (result["return"], result["only_reward"]) == (None, reward)
    assert success_sentence(made) == "success: 1 of 2 episodes (50%)"


@pytest.mark.parametrize("id", catalog.external_datasets())
def test_what_is_known_of_others_fits_together(id: str) -> None:
    entry = catalog.external_datasets()[id]
    check_id(id)
    task = list_tasks()[entry.env]
    assert entry.references is None or entry.references in task.score_references
    assert entry.source.startswith("https://") and entry.licence


def test_a_dataset_of_others_says_which_file_it_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(catalog.PLACE, str(tmp_path))
    with pytest.raises(TrimtabError, match="is not on disk") as error:
        catalog.load_external("d4rl/hopper-medium-v2")
    assert str(tmp_path / "d4rl" / "hopper_medium-v2.hdf5") in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(TrimtabError, match="did you mean d4rl/hopper-medium-v2"):
        catalog.load_file("d4rl/hopper-mediun-v2")


def test_given_its_file_a_dataset_of_others_is_used(
    foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(catalog.PLACE, str(tmp_path))
    entry = catalog.external_datasets()["d4rl/hopper-medium-v2"]
    entry.path.parent.mkdir(parents=True)
    foreign.d4rl(entry.path)
    loaded = catalog.load_external(entry.id)
    assert (loaded.id, loaded.env) == ("d4rl/hopper-medium-v2", "gym/Hopper-v5")
    entry = catalog.external_datasets()["robomimic/lift-ph-v0"]
    entry.path.parent.mkdir(parents=True)
    foreign.robomimic(entry.path)  # has fewer keys than the task observes
    with pytest.raises(TrimtabError, match="there is no key 'obs/robot0_eef_quat'"):
        catalog.load_external(entry.id)


def test_observation_keys_are_taken_in_the_order_that_is_asked_for(
    foreign: Any, tmp_path: Path
) -> None:
    arrays = foreign.robomimic(tmp_path / "a.hdf5")
    steps = foreign.LENGTHS[0]
    for keys, columns in (
        ("robot0_eef_pos, object", [1, 2, 0]),
        ("object,robot0_eef_pos", [0, 1, 2]),
        ("object", [0]),
    ):
        loaded = catalog.load_file(tmp_path / "a.hdf5", keys=keys)
        seen = loaded.episodes[0].observations[:steps]
        np.testing.assert_array_equal(seen, arrays["observations"][:steps, columns])
