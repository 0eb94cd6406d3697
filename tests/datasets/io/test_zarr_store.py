"""Zarr's compressors that are not of the standard library, in chunks laid out by hand."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest

from trimtab.datasets.io.zarr import opened_store
from trimtab.errors import TrimtabError

CODECS: dict[str, Any] = {
    "blosc-lz4": numcodecs.Blosc("lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE),
    "blosc-zstd": numcodecs.Blosc("zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
    "blosc-zlib": numcodecs.Blosc("zlib", clevel=1, shuffle=numcodecs.Blosc.NOSHUFFLE),
    "zstd": numcodecs.Zstd(level=1),
    "lz4": numcodecs.LZ4(),
}
ROWS = 150  # of chunks of 64: the last one is filled in part


def arrays() -> dict[str, npt.NDArray[Any]]:
    generator = np.random.default_rng(0)
    numbers = generator.integers(0, 100, size=(ROWS, 5))
    return {
        "flag": generator.random(ROWS) < 0.1,
        "byte": numbers.astype(np.uint8),
        "whole": np.arange(5 * ROWS).reshape(ROWS, 5) - 50,
        "half": numbers.astype("<f2"),
        "single": generator.normal(size=(ROWS, 5)).astype("<f4"),
        "double": np.cumsum(generator.normal(size=(ROWS, 5)), axis=0).astype("<f8"),
        "other_end_first": numbers.astype(">f8"),
        "deep": generator.normal(size=(ROWS, 9, 2)).astype("<f4"),
    }


def encoder(codec: Any, dtype: npt.DTypeLike) -> Callable[[bytes], bytes]:
    """Compress as Zarr does: the codec is handed an array, whose type Blosc shuffles by."""
    return lambda data: bytes(codec.encode(np.frombuffer(data, dtype)))


@pytest.mark.parametrize("name", CODECS)
def test_what_numcodecs_compressed_is_read(name: str, foreign: Any, tmp_path: Path) -> None:
    codec, written = CODECS[name], arrays()
    for key, array in written.items():
        chunks = (64, *(min(size, 4) for size in array.shape[1:]))
        encode = encoder(codec, array.dtype)
        folder = tmp_path / "x.zarr" / "data" / key
        foreign.zarr_array(folder, array, chunks, codec.get_config(), encode)
    stored = [p for p in (tmp_path / "x.zarr/data/whole").iterdir() if p.name != ".zarray"]
    assert sum(p.stat().st_size for p in stored) < written["whole"].nbytes
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "x.zarr")
    for place in (tmp_path / "x.zarr", tmp_path / "x.zip"):
        with opened_store(place) as store:
            for key, array in written.items():
                read = store.read(f"data/{key}")
                assert read.dtype == array.dtype
                np.testing.assert_array_equal(read, array)


def spoilt(place: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + value + data[place + len(value) :]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "blosc-lz4",
            spoilt(4, b"\xf0\xff\xff\xff"),
            "header states 4294967280 bytes, expected 64",
        ),
        ("blosc-lz4", spoilt(12, b"\xff\xff\xff\x7f"), "states 2147483647 stored bytes, there are"),
        ("blosc-zstd", lambda data: data[:-3], "stored bytes, there are"),
        ("blosc-zstd", lambda data: data[:9], "without its header of 16 bytes"),
        ("blosc-zstd", spoilt(2, b"\xff"), "RuntimeError"),
        ("lz4", spoilt(0, b"\xff\xff\xff\x7f"), "header states 2147483647 bytes, expected 64"),
        ("lz4", lambda data: data[:-20], "RuntimeError"),
        ("zstd", lambda data: data[:-3], "RuntimeError"),
        ("zstd", lambda data: bytes(numcodecs.Zstd().encode(bytes(1 << 20))), "ValueError"),
        ("zstd", lambda data: b"", "Error"),
    ],
)
def test_a_damaged_chunk_is_one_line(
    name: str, change: Callable[[bytes], bytes], message: str, foreign: Any, tmp_path: Path
) -> None:
    codec, array = CODECS[name], arrays()["whole"]
    encode = encoder(codec, array.dtype)
    foreign.zarr_array(
        tmp_path / "x/a", array, (16, 5), codec.get_config(), lambda data: change(encode(data))
    )
    with opened_store(tmp_path / "x") as store, pytest.raises(TrimtabError) as error:
        store.read("a")
    assert message in str(error.value)
    assert "key 'a': not readable" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", CODECS)
def test_a_chunk_that_claims_terabytes_is_refused(name: str, foreign: Any, tmp_path: Path) -> None:
    codec, array = CODECS[name], arrays()["whole"]
    encode = encoder(codec, array.dtype)
    config = codec.get_config()
    foreign.zarr_array(tmp_path / "x/a", array, (16, 5), config, encode)
    description = json.loads((tmp_path / "x/a/.zarray").read_text())
    for rest in (tmp_path / "x/a").glob("[1-9].0"):
        rest.unlink()
    text = json.dumps({**description, "chunks": [1 << 40, 5]})
    (tmp_path / "x/a/.zarray").write_text(text)
    with opened_store(tmp_path / "x") as store, pytest.raises(TrimtabError) as error:
        store.read("a")
    assert f"a chunk of {40 << 40} bytes cannot be compressed with" in str(error.value)


def test_a_missing_numcodecs_is_told_with_its_remedy(
    foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.blosc_diffusion_policy(tmp_path / "x")
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    with opened_store(tmp_path / "x") as store, pytest.raises(TrimtabError) as error:
        store.read("data/action")
    assert "key 'data/action': compressed with blosc" in str(error.value)
    assert str(error.value).endswith("which needs numcodecs: pip install 'trimtab[zarr]'")


@pytest.mark.parametrize(
    ("lost", "count", "rows"),
    [
        (["0.0"], 1, (0, 63)),
        (["1.0", "1.1"], 2, (64, 127)),
        (["2.1"], 1, (128, 149)),
        ([], 0, None),
    ],
)
def test_chunks_that_are_not_stored_are_counted(
    lost: list[str], count: int, rows: Any, foreign: Any, tmp_path: Path
) -> None:
    foreign.zarr_array(tmp_path / "x/a", arrays()["double"], (64, 4), None, bytes)
    for chunk in lost:
        (tmp_path / "x/a" / chunk).unlink()
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "x")
    for place in (tmp_path / "x", tmp_path / "x.zip"):
        with opened_store(place) as store:
            missing = store.missing("a")
        assert (missing.count, missing.whole) == (count, 6)
        assert rows is None or missing.rows == rows


def test_a_chunk_outside_of_the_shape_is_refused(foreign: Any, tmp_path: Path) -> None:
    for shape in ((100, 5), (150, 4), (10, 5)):
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        foreign.zarr_array(tmp_path / "x/a", arrays()["double"], (64, 4), None, bytes)
        description = json.loads((tmp_path / "x/a/.zarray").read_text())
        (tmp_path / "x/a/.zarray").write_text(json.dumps({**description, "shape": shape}))
        refused = pytest.raises(TrimtabError, match="lies outside of the shape")
        with opened_store(tmp_path / "x") as store, refused:
            store.read("a")


def test_what_the_root_says_of_an_array_is_compared(foreign: Any, tmp_path: Path) -> None:
    """A copied ``.zmetadata`` tells of an array that was lost, or was another one."""
    foreign.zarr_array(tmp_path / "x/data/a", arrays()["double"], (64, 4), None, bytes)
    noted = json.loads((tmp_path / "x/data/a/.zarray").read_text())

    def read(metadata: Any) -> None:
        (tmp_path / "x/.zmetadata").write_text(json.dumps({"metadata": metadata}))
        with opened_store(tmp_path / "x") as store:
            assert list(store.arrays("data")) == ["a"]
            store.read("data/a")

    read({"data/a/.zarray": noted, "data/.zattrs": {}, "meta/b/.zarray": noted})
    for other in ({"shape": [160, 5]}, {"dtype": "<f4"}, {"fill_value": 1}):
        with pytest.raises(TrimtabError, match=r"'data/a': .*\.zmetadata describes it otherwise"):
            read({"data/a/.zarray": {**noted, **other}})
    with pytest.raises(TrimtabError, match=r"'data/b/\.zarray': missing, but \.zmetadata"):
        read({"data/a/.zarray": noted, "data/b/.zarray": noted})
