"""Diffusion Policy's stores, of which a part is lost, damaged, no vector, or of another version."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.io.zarr import describe_arrays, read_arrays
from trimtab.datasets.lint import check
from trimtab.types import TrimtabError

CODECS: dict[str, Any] = {
    "blosc-lz4": numcodecs.Blosc("lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE),
    "blosc-zstd": numcodecs.Blosc("zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
    "zstd": numcodecs.Zstd(level=1),
    "lz4": numcodecs.LZ4(),
}


def described(array: Path, **changes: Any) -> None:
    """Change the description of an array."""
    file = array / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", CODECS)
def test_what_is_compressed_is_read(name: str, foreign: Any, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 100, size=(150, 5))
    written = {
        "flag": numbers[:, 0] < 9, "byte": numbers.astype(np.uint8), "whole": numbers,
        "half": numbers.astype("<f2"), "single": numbers.astype("<f4"),
        "other_end_first": numbers.astype(">f8"), "deep": numbers.reshape(75, 5, 2) / 3,
    }  # fmt: skip
    for key, array in written.items():
        chunks = (64, *(min(size, 4) for size in array.shape[1:]))
        foreign.zarr_array(
            tmp_path / "x" / key, array, chunks, CODECS[name].get_config(),
            lambda data, kind=array.dtype: bytes(CODECS[name].encode(np.frombuffer(data, kind))),
        )  # fmt: skip
    (tmp_path / "x/.zgroup").write_text('{"zarr_format": 2}')
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "x")
    for place in (tmp_path / "x", tmp_path / "x.zip"):
        read = read_arrays(place, list(written))
        for key, array in written.items():
            assert read[key].dtype == array.dtype
            np.testing.assert_array_equal(read[key], array)


@pytest.mark.parametrize("top", ["", "top/x.zarr"])
@pytest.mark.parametrize("shards", [None, (4, 2)])
def test_version_3_is_read(top: str, shards: Any, foreign: Any, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "in" / top, mode="w", zarr_format=3)
    actions = np.arange(20.0).reshape(10, 2)
    group.create_array("data/action", data=actions, chunks=(2, 2), shards=shards)
    group.create_array("data/state", data=actions + 1, chunks=(2, 2))
    group.create_array("meta/episode_ends", data=np.array([4, 10]))
    shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "in")
    for place in (tmp_path / "in" / top, tmp_path / "y.zip"):
        one, two = recognise(place).load(place).episodes
        foreign.equal(one.actions, actions[:4])
        foreign.equal(two.observations[:-1], actions[4:] + 1)
    (tmp_path / "in" / top / "data/state/c/1/0").unlink()
    assert describe_arrays(tmp_path / "in" / top)["data/state"][1:] == ("f", 5, 1)


def test_a_missing_package_is_told_with_its_remedy(
    foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(TrimtabError, match=r"pip install 'trimtab\[zarr\]'"):
        recognise(tmp_path / "x").load(tmp_path / "x")


@pytest.mark.parametrize(
    ("lost", "where", "count"),
    [
        ("action/0.0", "data/action", "1 of its 2 chunks"),
        ("state/1.0", "data/state", "1 of its 6 chunks"),
        ("keypoint/1.0.0", "data/keypoint", "1 of its 2 chunks"),
        ("n_contacts/0.0", "data/n_contacts", "1 of its 1 chunks"),
    ],
)
def test_a_lost_chunk_is_told_and_found(
    lost: str, where: str, count: str, foreign: Any, tmp_path: Path, caplog: Any
) -> None:
    foreign.diffusion_policy(tmp_path / "x", fill_value=7)
    assert "missing-chunk" not in {
        f.code for f in check(recognise(tmp_path / "x").load(tmp_path / "x"))
    }
    (tmp_path / "x/data" / lost).unlink()
    shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "x")
    for place in (tmp_path / "x", tmp_path / "y.zip"):
        caplog.clear()
        dataset = recognise(place).load(place)
        assert where in caplog.text and count in caplog.text
        (found,) = (f for f in check(dataset) if f.code == "missing-chunk")
        assert found.level == "warning" and where in found.where and count in found.message
    if lost.startswith("n_contacts"):
        foreign.equal(dataset.episodes[0].infos["n_contacts"], np.full((3, 1), 7.0))


@pytest.mark.parametrize("lost", ["action", "state", "n_contacts"])
def test_an_array_that_is_lost_is_refused(lost: str, foreign: Any, tmp_path: Path) -> None:
    """Its description alone, which would leave it out; all of its chunks; or both."""
    foreign.diffusion_policy(tmp_path / "x")
    folder = tmp_path / "x/data" / lost
    description = (folder / ".zarray").read_text()
    (folder / ".zarray").unlink()
    with pytest.raises(TrimtabError, match=f"'data/{lost}': its description is missing"):
        recognise(tmp_path / "x").load(tmp_path / "x")
    for file in folder.iterdir():
        file.unlink()
    (folder / ".zarray").write_text(description)
    if lost != "n_contacts":
        with pytest.raises(TrimtabError, match=f"'data/{lost}': none of its chunks"):
            recognise(tmp_path / "x").load(tmp_path / "x")
    shutil.rmtree(folder)
    noted = {f"data/{lost}/.zarray": json.loads(description)}
    (tmp_path / "x/.zmetadata").write_text(json.dumps({"metadata": noted}))
    with pytest.raises(TrimtabError, match=f"'data/{lost}': its description is missing"):
        recognise(tmp_path / "x").load(tmp_path / "x")


def test_lost_ends_and_a_lost_chunk_of_nan_are_refused(foreign: Any, tmp_path: Path) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    ends = tmp_path / "x/meta/episode_ends"
    shutil.rmtree(ends)
    foreign.zarr_array(ends, np.array([3, 5]), (1,), None, bytes)
    for chunk in ("0", "1"):
        data = (ends / chunk).read_bytes()
        (ends / chunk).unlink()
        with pytest.raises(TrimtabError, match="'meta/episode_ends': 1 of its 2 chunks"):
            recognise(tmp_path / "x").load(tmp_path / "x")
        (ends / chunk).write_bytes(data)
    described(tmp_path / "x/data/state", fill_value="NaN")
    (tmp_path / "x/data/state/1.0").unlink()
    with pytest.raises(TrimtabError, match="'observations': NaN"):
        recognise(tmp_path / "x").load(tmp_path / "x")


@pytest.mark.parametrize("separator", [".", "/"])
def test_a_folder_may_be_packed_with_its_name(separator: str, foreign: Any, tmp_path: Path) -> None:
    arrays = foreign.diffusion_policy(tmp_path / "in/top/x", dimension_separator=separator)
    shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "in")
    dataset = recognise(tmp_path / "y.zip").load(tmp_path / "y.zip")
    foreign.equal(dataset.episodes[0].observations[:3], arrays["observations"][:3])


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("data/reward", np.ones((5, 3)), "'data/reward': 3 numbers a row"),
        ("data/reward", np.zeros((5, 0)), "'data/reward': shape"),
        ("data/action", np.zeros((5, 2), int), "'data/action': discrete actions"),
        ("meta/episode_ends", np.array([2.5, 5.0]), "'meta/episode_ends': not growing whole"),
        ("meta/episode_ends", np.array([3, 3, 5]), "'meta/episode_ends': not growing whole"),
        ("meta/episode_ends", np.array([3, 4]), "expected 4 rows"),
        ("meta/episode_ends", np.array([3.0, 5.0]), ""),
        ("meta/episode_ends", np.array([[3], [5]]), ""),
    ],
)
def test_arrays_that_contradict_are_refused(
    name: str, array: Any, message: str, foreign: Any, tmp_path: Path
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    shutil.rmtree(tmp_path / "x" / name, ignore_errors=True)
    chunks = tuple(max(1, size) for size in array.shape)
    foreign.zarr_array(tmp_path / "x" / name, array, chunks, None, bytes)
    if not message:  # whole floats, or a column
        assert [len(e) for e in recognise(tmp_path / "x").load(tmp_path / "x").episodes] == [3, 2]
        return
    with pytest.raises(TrimtabError, match=message):
        recognise(tmp_path / "x").load(tmp_path / "x")


def test_a_text_is_left_out_where_it_means_nothing(
    foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    for name in ("lang", "low/speed"):
        foreign.zarr_array(tmp_path / "x/data" / name, np.arange(5.0), (5,), None, bytes)
    for dtype in ("<U4", "|S3", "|O", "<M8[ns]", "<c16"):
        described(tmp_path / "x/data/lang", dtype=dtype, filters=[{"id": "vlen-utf8"}])
        dataset = get_format("diffusion_policy").load(tmp_path / "x")
        assert dataset.recipe["left_out"] == ["img", "lang", "low/speed"]
    assert "left out, as not vectors: img, lang, low/speed" in caplog.text
    for name in ("state", "action"):
        for dtype in ("|S3", "|O", "<c16"):
            described(tmp_path / "x/data" / name, dtype=dtype)
            with pytest.raises(TrimtabError, match=f"'data/{name}': "):
                get_format("diffusion_policy").load(tmp_path / "x")


class Mark:
    """Unpickled, it makes a file."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize("where", ["compressor", "filters"])
def test_nothing_is_unpickled(where: str, foreign: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    foreign.diffusion_policy(tmp_path / "x")
    codec: Any = {"id": "pickle", "protocol": 5}
    described(tmp_path / "x/data/action", **{where: codec if where == "compressor" else [codec]})
    for file in (tmp_path / "x/data/action").glob("[0-9]*"):
        file.write_bytes(pickle.dumps(Mark()))
    with pytest.raises(TrimtabError, match="'data/action': .*'pickle'"):
        recognise(tmp_path / "x").load(tmp_path / "x")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    "changes", [{"shape": [1 << 40, 2]}, {"chunks": [1 << 40, 2]}, {"compressor": {"id": "none"}}]
)
def test_what_a_description_claims_is_not_believed(
    changes: dict[str, Any], foreign: Any, tmp_path: Path
) -> None:
    foreign.diffusion_policy(tmp_path / "x")
    described(tmp_path / "x/data/action", **changes)
    with pytest.raises(TrimtabError, match="'data/action': not readable") as error:
        recognise(tmp_path / "x").load(tmp_path / "x")
    assert "\n" not in str(error.value)
