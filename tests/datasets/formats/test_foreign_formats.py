"""Files of other projects, laid out by hand: every number lands where its format says."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.lint import check
from trimtab.types import TrimtabError

# ---- robomimic -----------------------------------------------------------------------------------


def test_robomimic(foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lift.hdf5"
    arrays = foreign.robomimic(path)
    with caplog.at_level("INFO"):
        dataset = get_format("robomimic").load(path)
    assert "images are left out: next_obs/agentview_image, obs/agentview_image" in caplog.text
    assert dataset.env == "Lift"
    assert dataset.recipe["masks"] == {"20_percent": [0, 1], "train": [1]}
    assert dataset.recipe["left_out"] == ["next_obs/agentview_image", "obs/agentview_image"]
    assert dataset.recipe["env_args"]["env_kwargs"] == {"robots": ["Panda"]}
    # Both demonstrations are done; only the first one's last reward says that it succeeded.
    assert foreign.ends(dataset) == [(3, True, False), (2, False, True)]
    seen = arrays["observations"]
    foreign.equal(dataset.episodes[0].observations, np.concatenate([seen[:3], seen[2:3] + 1]))
    foreign.equal(dataset.episodes[1].actions, arrays["actions"][3:])
    assert dataset.episodes[0].infos["states"].shape == (3, 4)
    (chosen,) = get_format("robomimic").load(path, mask="train", env="robosuite/lift").episodes
    foreign.equal(chosen.actions, arrays["actions"][3:])


def test_robomimic_keeps_its_masks_and_kwargs_on_the_way_back(foreign: Any, tmp_path: Path) -> None:
    format = get_format("robomimic")
    foreign.robomimic(tmp_path / "x.hdf5")
    dataset = format.load(tmp_path / "x.hdf5")
    assert format.save is not None
    format.save(dataset, tmp_path / "y.hdf5")
    with h5py.File(tmp_path / "x.hdf5") as one, h5py.File(tmp_path / "y.hdf5") as two:
        assert {k: v[()].tolist() for k, v in one["mask"].items()} == {
            k: v[()].tolist() for k, v in two["mask"].items()
        }
        assert two["mask/train"].dtype.kind == "S"
        assert json.loads(two["data"].attrs["env_args"]) == json.loads(
            one["data"].attrs["env_args"]
        )
        assert (two["data"].attrs["total"], two["data/demo_1"].attrs["num_samples"]) == (5, 2)
        foreign.equal(two["data/demo_0/states"][()], one["data/demo_0/states"][()])
        for key in ("actions", "rewards", "dones"):
            foreign.equal(two[f"data/demo_0/{key}"][()], one[f"data/demo_0/{key}"][()])
        for group, rows in (("obs", slice(None)), ("next_obs", slice(-1, None))):
            assert set(two[f"data/demo_0/{group}"]) == {"object", "robot0_eef_pos"}
            for key in ("object", "robot0_eef_pos"):
                stored, wanted = (file[f"data/demo_1/{group}/{key}"][rows] for file in (two, one))
                foreign.equal(stored, wanted)


def test_robomimic_without_next_obs_repeats_the_last(foreign: Any, tmp_path: Path) -> None:
    arrays = foreign.robomimic(tmp_path / "x.hdf5", following=False)
    dataset = get_format("robomimic").load(tmp_path / "x.hdf5")
    foreign.equal(dataset.episodes[0].observations, arrays["observations"][[0, 1, 2, 2]])
    assert [f.code for f in check(dataset) if f.code.endswith("-end")] == ["missing-end"]


# ---- OGBench -------------------------------------------------------------------------------------


def test_ogbench_ends_are_not_terminations(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "pointmaze-v0.npz"
    masks = np.array([1, 1, 0, 1, 1, 1, 1], np.float32)
    arrays = foreign.ogbench(path, masks=masks)
    dataset = get_format("ogbench").load(path)
    assert foreign.ends(dataset) == [(3, False, True), (2, False, True)]
    foreign.equal(dataset.episodes[1].observations, arrays["observations"][4:7])
    foreign.equal(dataset.episodes[1].actions, arrays["actions"][4:6])
    foreign.equal(dataset.episodes[0].infos["mask"], masks[:3])
    foreign.equal(dataset.episodes[0].infos["qpos"], arrays["qpos"][:3])
    assert not dataset.episodes[0].rewards.any()


def test_ogbench_takes_the_validation_file_beside_it(foreign: Any, tmp_path: Path) -> None:
    load = get_format("ogbench").load
    foreign.ogbench(tmp_path / "x.npz")
    arrays = foreign.ogbench(tmp_path / "x-val.npz", (4,), seed=1)
    dataset = load(tmp_path / "x.npz")
    assert dataset.recipe["masks"] == {"train": [0, 1], "valid": [2]}
    assert [len(episode) for episode in dataset.episodes] == [3, 2, 4]
    foreign.equal(dataset.episodes[2].observations, arrays["observations"])
    assert len(load(tmp_path / "x.npz", mask="train")) == 2
    assert len(load(tmp_path / "x-val.npz")) == 1


def test_what_ogbench_itself_reads_of_ours(foreign: Any, make_dataset: Any, tmp_path: Path) -> None:
    from ogbench import utils

    dataset = make_dataset()
    format = get_format("ogbench")
    assert format.save is not None
    format.save(dataset, tmp_path / "x.npz")
    read = utils.load_dataset(tmp_path / "x.npz")
    episodes = dataset.episodes
    foreign.equal(read["observations"], np.concatenate([e.observations[:-1] for e in episodes]))
    foreign.equal(read["next_observations"], np.concatenate([e.observations[1:] for e in episodes]))
    foreign.equal(read["actions"], np.concatenate([e.actions for e in episodes]))
    foreign.equal(np.flatnonzero(read["terminals"]), np.cumsum([len(e) for e in episodes]) - 1)


def test_ogbench_files_that_do_not_belong_together(make_dataset: Any, tmp_path: Path) -> None:
    format = get_format("ogbench")
    assert format.save is not None
    masks = {"recipe": {"masks": {"valid": [1]}}}
    for seed in (0, 1):
        format.save(dataclasses.replace(make_dataset(seed=seed), **masks), tmp_path / f"{seed}.npz")
    shutil.copy(tmp_path / "1-val.npz", tmp_path / "0-val.npz")
    with pytest.raises(TrimtabError, match="0-val.npz does not belong to it"):
        format.load(tmp_path / "0.npz")
    (tmp_path / "1-val.npz").unlink()
    with pytest.raises(TrimtabError, match="1-val.npz: the file is missing"):
        format.load(tmp_path / "1.npz")
    format.save(make_dataset(), tmp_path / "0.npz")  # without a mask there is no second file
    assert not (tmp_path / "0-val.npz").exists()


# ---- DPPO ----------------------------------------------------------------------------------------


def test_dppo_is_brought_back_to_raw_units(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    raw = foreign.dppo(path, terminals=np.array([0, 0, 1, 0, 0], bool), rewards=np.arange(5.0))
    dataset = get_format("dppo").load(path)
    assert dataset.recipe["left_out"] == ["images"]
    assert foreign.ends(dataset) == [(3, True, False), (2, False, True)]
    one = dataset.episodes[0]
    np.testing.assert_allclose(one.observations[:-1], raw["observations"][:3], atol=2e-6)
    np.testing.assert_allclose(one.actions, raw["actions"][:3], atol=2e-6)
    foreign.equal(one.observations[-1], one.observations[-2])
    foreign.equal(one.rewards, np.arange(3.0))
    path.with_name("normalization.npz").unlink()
    with pytest.raises(TrimtabError, match="there is no normalization.npz beside it"):
        get_format("dppo").load(path)


# ---- Diffusion Policy ----------------------------------------------------------------------------

COMPRESSORS: list[tuple[str, dict[str, Any] | None, Callable[[bytes], bytes], dict[str, Any]]] = [
    ("none", None, lambda data: data, {}),
    ("gzip", {"id": "gzip", "level": 1}, gzip.compress, {}),
    ("bz2", {"id": "bz2", "level": 1}, bz2.compress, {"order": "F"}),
    ("lzma", {"id": "lzma", "format": 1}, lzma.compress, {"dimension_separator": "/"}),
]


@pytest.mark.parametrize("case", COMPRESSORS, ids=[case[0] for case in COMPRESSORS])
def test_diffusion_policy(case: Any, foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "pusht.zarr"
    _, compressor, encode, further = case
    arrays = foreign.diffusion_policy(path, compressor, encode, **further)
    shutil.make_archive(str(tmp_path / "pusht.zarr"), "zip", path)
    for place in (path, tmp_path / "pusht.zarr.zip"):
        dataset = recognise(place).load(place)
        assert foreign.ends(dataset) == [(3, False, True), (2, False, True)]
        two = dataset.episodes[1]
        foreign.equal(two.observations, arrays["observations"][[3, 4, 4]])
        foreign.equal(two.actions, arrays["actions"][3:] * 512)
        foreign.equal(two.infos["n_contacts"], np.array([[3.0], [4.0]]))
        foreign.equal(two.infos["keypoint"], np.arange(54.0, 90.0).reshape(2, 18))
        assert set(two.infos) == {"n_contacts", "keypoint"}  # and no image
        assert dataset.action_high[0] > 1  # raw units


def test_points_are_vectors_and_pictures_are_not(
    foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x"
    foreign.diffusion_policy(path)
    shutil.rmtree(path / "data/state")
    shutil.rmtree(path / "data/n_contacts")
    for name, array in {
        "goal": np.arange(5.0) / 8,
        "grey": np.zeros((5, 4, 4), np.uint8),
        "depth": np.zeros((5, 4, 4), np.uint16),
        "rendered": np.zeros((5, 4, 4, 3), np.float32),
    }.items():
        foreign.zarr_array(path / "data" / name, array, array.shape, None, bytes)
    with caplog.at_level("INFO"):
        dataset = get_format("diffusion_policy").load(path)
    assert "left out, as not vectors: depth, grey, img, rendered" in caplog.text
    assert dataset.recipe["left_out"] == ["depth", "grey", "img", "rendered"]
    assert dataset.recipe["observation"] == ["goal", "keypoint"]
    rows = np.concatenate([np.arange(5.0)[:, None] / 8, np.arange(90.0).reshape(5, 18)], axis=1)
    foreign.equal(dataset.episodes[0].observations, rows[[0, 1, 2, 2]])


# ---- LeRobot -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot(
    version: str, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = foreign.lerobot(tmp_path / "x", version)
    with caplog.at_level("INFO"):
        dataset = recognise(tmp_path / "x").load(tmp_path / "x")
    assert "left out, as not vectors: observation.images.top" in caplog.text
    assert (dataset.control_rate, dataset.recipe["robot_type"]) == (10.0, "so100")
    assert dataset.recipe["left_out"] == ["observation.images.top"]
    assert foreign.ends(dataset) == [(3, True, False), (2, False, True)]
    foreign.equal(dataset.episodes[0].observations, arrays["observations"][[0, 1, 2, 2]])
    foreign.equal(dataset.episodes[1].rewards, arrays["rewards"][3:])
    foreign.equal(dataset.episodes[0].infos["success"], np.array([False, False, True]))
    assert set(dataset.episodes[0].infos) == {"success"}


def test_lerobot_done_alone_does_not_terminate(foreign: Any, tmp_path: Path) -> None:
    absent = {"next.success": None, "next.reward": None}
    foreign.lerobot(tmp_path / "x", **absent)
    dataset = get_format("lerobot").load(tmp_path / "x")
    assert foreign.ends(dataset) == [(3, False, True), (2, False, True)]
    assert not dataset.episodes[0].rewards.any()
    foreign.lerobot(tmp_path / "y", **{"next.truncated": np.array([0, 0, 0, 0, 1], bool)}, **absent)
    assert foreign.ends(get_format("lerobot").load(tmp_path / "y")) == [
        (3, True, False),
        (2, False, True),
    ]


def test_lerobot_frames_are_put_in_order(foreign: Any, tmp_path: Path) -> None:
    arrays = foreign.lerobot(tmp_path / "x")
    one, two = sorted((tmp_path / "x/data").rglob("*.parquet"))
    one.rename(one.with_name("file-002.parquet"))
    dataset = get_format("lerobot").load(tmp_path / "x")
    foreign.equal(dataset.episodes[1].actions, arrays["actions"][3:])


def test_what_lerobot_reads_of_ours(foreign: Any, make_dataset: Any, tmp_path: Path) -> None:
    """It reads with pandas, and with Hugging Face's datasets, whose note is checked."""
    import pandas

    dataset = make_dataset()
    format = get_format("lerobot")
    assert format.save is not None
    format.save(dataset, tmp_path / "x")
    info = json.loads((tmp_path / "x/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_frames"]) == ("v3.0", 20, 12)
    tasks = pandas.read_parquet(tmp_path / "x/meta/tasks.parquet")
    assert (list(tasks.index), tasks.index.name, list(tasks.columns)) == (
        ["test/env"], "task", ["task_index"],
    )  # fmt: skip
    template = info["data_path"].format(chunk_index=0, file_index=0)
    data = pandas.read_parquet(tmp_path / "x" / template)
    assert set(data.columns) == set(info["features"])
    assert not [name for name in info["features"] if "/" in name]
    foreign.equal(data["index"].to_numpy(), np.arange(12))
    np.testing.assert_allclose(data["timestamp"], data["frame_index"] / 20, rtol=1e-6)
    actions = np.concatenate([episode.actions for episode in dataset.episodes])
    foreign.equal(np.stack(data["action"]), actions)
    episodes = pandas.read_parquet(tmp_path / "x/meta/episodes/chunk-000/file-000.parquet")
    foreign.equal(episodes["length"].to_numpy(), np.array([4, 1, 7]))
    foreign.equal(episodes["dataset_to_index"].to_numpy(), np.array([4, 5, 12]))
    assert episodes["tasks"][0].tolist() == ["test/env"]
    np.testing.assert_allclose(episodes["stats/action/max"][2], actions[5:].max(0))
    stats = json.loads((tmp_path / "x/meta/stats.json").read_text())
    np.testing.assert_allclose(stats["action"]["std"], actions.astype(float).std(0))
    np.testing.assert_allclose(stats["action"]["q90"], np.quantile(actions, 0.9, axis=0), rtol=1e-5)
    assert stats["next.reward"]["count"] == [12]
    schema = pq.read_schema(tmp_path / "x" / template)
    noted = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert noted["action"] == {
        "feature": {"dtype": "float32", "_type": "Value"}, "length": 2, "_type": "List",
    }  # fmt: skip
    assert list(noted) == schema.names
