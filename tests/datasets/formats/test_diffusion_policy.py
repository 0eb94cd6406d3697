"""Diffusion Policy's stores of which a part was lost, is no vector, or is of another version."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.lint import check
from trimtab.types import TrimtabError


@pytest.mark.parametrize(
    ("lost", "where"),
    [
        ("data/action/0.0", "key 'data/action': 1 of its 2 chunks"),
        ("data/state/1.0", "key 'data/state': 1 of its 6 chunks .* rows 2 to 3"),
        ("data/keypoint/1.0.0", "key 'data/keypoint': 1 of its 2 chunks .* rows 3 to 4"),
    ],
)
def test_a_lost_chunk_is_told_and_found(
    lost: str, where: str, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    whole = get_format("diffusion_policy").load(tmp_path / "x")
    assert "missing-chunk" not in {finding.code for finding in check(whole)}
    assert "chunks" not in caplog.text
    (tmp_path / "x" / lost).unlink()
    shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "x")
    for place in (tmp_path / "x", tmp_path / "y.zip"):
        caplog.clear()
        dataset = recognise(place).load(place)
        assert re.search(where, caplog.text)
        (found,) = (f for f in check(dataset) if f.code == "missing-chunk")
        assert found.level == "warning" and re.search(where, f"{found.where}: {found.message}")


@pytest.mark.parametrize("lost", ["action", "state", "n_contacts"])
def test_an_array_that_is_lost_is_told(lost: str, foreign: Any, tmp_path: Path) -> None:
    """All of its chunks, or its description alone, which would leave it out."""
    foreign.diffusion_policy(tmp_path / "x")
    folder = tmp_path / "x/data" / lost
    description = (folder / ".zarray").read_text()
    (folder / ".zarray").unlink()
    with pytest.raises(TrimtabError, match=f"key 'data/{lost}': its .zarray is missing"):
        recognise(tmp_path / "x").load(tmp_path / "x")
    for file in folder.iterdir():
        file.unlink()
    (folder / ".zarray").write_text(description)
    if lost != "n_contacts":
        with pytest.raises(TrimtabError, match=f"'data/{lost}': none of its . chunks is stored"):
            recognise(tmp_path / "x").load(tmp_path / "x")
        return
    dataset = recognise(tmp_path / "x").load(tmp_path / "x")
    (found,) = (f for f in check(dataset) if f.code == "missing-chunk")
    assert found.where == f"key 'data/{lost}'" and "none of its" in found.message


@pytest.mark.parametrize("ends", [[3.0, 5.0], [[3], [5]]])
def test_ends_may_be_whole_floats_or_a_column(ends: Any, foreign: Any, tmp_path: Path) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    shutil.rmtree(tmp_path / "x/meta/episode_ends")
    array = np.array(ends)
    foreign.zarr_array(tmp_path / "x/meta/episode_ends", array, array.shape, None, bytes)
    dataset = recognise(tmp_path / "x").load(tmp_path / "x")
    assert [len(episode) for episode in dataset.episodes] == [3, 2]
    foreign.dppo(tmp_path / "train.npz", traj_lengths=np.diff(array, axis=0, prepend=0 * array[:1]))
    dataset = recognise(tmp_path / "train.npz").load(tmp_path / "train.npz")
    assert [len(episode) for episode in dataset.episodes] == [3, 2]


def test_a_lost_chunk_of_nan_is_named(foreign: Any, tmp_path: Path) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    described = tmp_path / "x/data/state/.zarray"
    described.write_text(json.dumps({**json.loads(described.read_text()), "fill_value": "NaN"}))
    (tmp_path / "x/data/state/1.0").unlink()
    with pytest.raises(TrimtabError, match="state': 1 of its 6 .* 2 to 3, and the fill .* NaN"):
        recognise(tmp_path / "x").load(tmp_path / "x")


@pytest.mark.parametrize("top", ["", "top/x.zarr", "x.zarr"])
@pytest.mark.parametrize("separator", [".", "/"])
def test_a_folder_may_be_packed_with_its_name(
    top: str, separator: str, foreign: Any, tmp_path: Path
) -> None:
    arrays = foreign.diffusion_policy(tmp_path / "in" / top, dimension_separator=separator)
    shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "in")
    dataset = recognise(tmp_path / "y.zip").load(tmp_path / "y.zip")
    foreign.equal(dataset.episodes[0].observations[:3], arrays["observations"][:3])


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("data/reward", np.ones((5, 3)), "'data/reward': 3 numbers a row; keep one"),
        ("data/action", np.zeros((5, 2), int), "'data/action': discrete actions"),
        ("meta/episode_ends", np.array([2.5, 5.0]), "'meta/episode_ends': not growing whole"),
        ("meta/episode_ends", np.array([3, 2]), "'meta/episode_ends': not growing whole"),
        (
            "meta/episode_ends",
            np.array([3, 3, 5]),
            "'meta/episode_ends': not growing whole",
        ),
        ("meta/episode_ends", np.array([3, 4]), "expected 4 rows"),
    ],
)
def test_arrays_that_contradict_are_refused(
    name: str, array: Any, message: str, foreign: Any, tmp_path: Path
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    shutil.rmtree(tmp_path / "x" / name, ignore_errors=True)
    foreign.zarr_array(tmp_path / "x" / name, array, array.shape, None, bytes)
    with pytest.raises(TrimtabError, match=message):
        recognise(tmp_path / "x").load(tmp_path / "x")


def test_lost_ends_are_refused(foreign: Any, tmp_path: Path) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    ends = tmp_path / "x/meta/episode_ends"
    shutil.rmtree(ends)
    foreign.zarr_array(ends, np.array([3, 5]), (1,), None, bytes)
    for chunk in ("0", "1"):
        data = (ends / chunk).read_bytes()
        (ends / chunk).unlink()
        with pytest.raises(TrimtabError, match="'meta/episode_ends': 1 of its 2 chunks"):
            get_format("diffusion_policy").load(tmp_path / "x")
        (ends / chunk).write_bytes(data)


@pytest.mark.parametrize("dtype", ["<U4", "|S3", "|O", "<M8[ns]", "<c16"])
def test_a_text_beside_the_numbers_is_left_out(
    dtype: str, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    for name in ("lang", "low/speed"):
        foreign.zarr_array(tmp_path / "x/data" / name, np.arange(5.0), (5,), None, bytes)
    description = json.loads((tmp_path / "x/data/lang/.zarray").read_text())
    text = json.dumps({**description, "dtype": dtype, "filters": [{"id": "vlen-utf8"}]})
    (tmp_path / "x/data/lang/.zarray").write_text(text)
    dataset = get_format("diffusion_policy").load(tmp_path / "x")
    assert dataset.recipe["left_out"] == ["img", "lang", "low/speed"]
    assert "left out, as not vectors: img, lang, low/speed" in caplog.text


@pytest.mark.parametrize("place", ["zarr.json", "meta/episode_ends/zarr.json", "data/a/zarr.json"])
def test_a_store_of_zarr_3_is_named(place: str, foreign: Any, tmp_path: Path) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    if not place.startswith("data"):
        shutil.rmtree(tmp_path / "x/meta/episode_ends")
    (tmp_path / "x" / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "x" / place).write_text('{"zarr_format": 3, "node_type": "group"}')
    shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "x")
    for store in (tmp_path / "x", tmp_path / "y.zip"):
        with pytest.raises(TrimtabError, match=r"of Zarr v3, .* zarr_format=2"):
            recognise(store).load(store)


@pytest.mark.parametrize("name", ["action", "state", "reward", "rewards"])
@pytest.mark.parametrize("dtype", ["|S3", "|O", "<c16"])
def test_a_text_with_a_meaning_is_refused(
    name: str, dtype: str, foreign: Any, tmp_path: Path
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    place = tmp_path / "x/data" / name
    if not place.exists():
        foreign.zarr_array(place, np.arange(5.0), (5,), None, bytes)
    described = json.loads((place / ".zarray").read_text())
    (place / ".zarray").write_text(json.dumps({**described, "dtype": dtype}))
    with pytest.raises(TrimtabError, match=f"'data/{name}': .*type .* is not a number"):
        get_format("diffusion_policy").load(tmp_path / "x")
