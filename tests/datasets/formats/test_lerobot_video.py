"""Camera frames in LeRobot's folders: they come back, and LeRobot finds them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pandas
import pytest
from loading import load_module

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.contents import contents_of
from trimtab.datasets.formats.lerobot import writer as lerobot_writer
from trimtab.datasets.formats.lerobot.cameras import Camera
from trimtab.datasets.formats.lerobot.video import Frames
from trimtab.datasets.formats.registry import get_format
from trimtab.datasets.io.video import shown_at
from trimtab.types import TrimtabError

squares = load_module(Path(__file__).with_name("squares.py"))
TOP, WRIST = squares.TOP, squares.WRIST
HEIGHT, WIDTH = squares.HEIGHT, squares.WIDTH
square, columns_of, save, load = squares.square, squares.columns_of, squares.save, squares.load


def filmed(dataset: Dataset, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Dataset:
    """Return ``dataset`` with two cameras; the squares go on from episode to episode."""
    begin, episodes = 0, []
    for episode in dataset.episodes:
        steps = len(episode)
        frames = {
            "top": square(steps, begin, (220, 40, 40), size),
            WRIST: square(steps, begin + 3, (240, 200, 30), (HEIGHT, WIDTH)),
        }
        episodes.append(dataclasses.replace(episode, infos={**episode.infos, **frames}))
        begin += steps
    return dataclasses.replace(dataset, episodes=tuple(episodes))


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (33, 47)])
def test_frames_come_back(
    size: tuple[int, int], make_dataset: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = make_dataset()
    dataset = filmed(plain, size)
    assert [line.split(" becomes")[0] for line in get_format("lerobot").loses(dataset)] == [
        f"info '{WRIST}'", "info 'top'",
    ]  # fmt: skip
    path = save(dataset, tmp_path / "x")
    # Odd sizes are made even, which is all that other readers see.
    shape = json.loads((path / "meta/info.json").read_text())["features"][TOP]["shape"]
    assert shape == [34, 48, 3] if size == (33, 47) else [HEIGHT, WIDTH, 3]
    unseen = load(path)
    assert f"left out, as not vectors: {TOP}, {WRIST} (frames=all, or" in caplog.text
    assert unseen.content_hash == plain.content_hash  # nothing else is changed
    caplog.clear()
    read = load(path, frames="all")
    assert caplog.text == ""
    for name in ("top", WRIST):
        for one, two in zip(dataset.episodes, read.episodes, strict=True):
            assert (two.infos[name].shape, two.infos[name].dtype) == (one.infos[name].shape, "u1")
            error = np.abs(one.infos[name].astype(int) - two.infos[name])
            # Chroma has half the pixels: beside the square's border little is changed.
            assert error.mean() < 3 and np.median(error) <= 3
            assert columns_of(two.infos[name]) == columns_of(one.infos[name])
    assert set(read.episodes[0].infos) == set(dataset.episodes[0].infos)
    assert load(path, frames="true").content_hash == read.content_hash != plain.content_hash
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    save(dataset, path)  # what Trimtab wrote is replaced, by the same
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_what_lerobot_finds_of_ours(make_dataset: Any, tmp_path: Path) -> None:
    dataset = filmed(make_dataset())
    path = save(dataset, tmp_path / "x")
    info = json.loads((path / "meta/info.json").read_text())
    assert info["features"][TOP] == {
        "dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"],
        "info": {
            "video.height": HEIGHT, "video.width": WIDTH, "video.codec": "h264",
            "video.pix_fmt": "yuv420p", "video.is_depth_map": False, "video.fps": 20,
            "video.channels": 3, "has_audio": False,
        },
    }  # fmt: skip
    file = info["video_path"].format(video_key=TOP, chunk_index=0, file_index=0)
    assert file == f"videos/{TOP}/chunk-000/file-000.mp4"
    assert sorted(p.name for p in path.iterdir()) == ["data", "meta", "videos"]
    times = shown_at(path / file, WIDTH, HEIGHT, 100, "x")
    np.testing.assert_allclose(times, np.arange(12) / 20)
    keys = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-skip_frame", "nokey", "-i"]
    shown = ["-fps_mode", "passthrough", "-pix_fmt", "gray", "-f", "rawvideo", "pipe:1"]
    found = subprocess.run([*keys, path / file, *shown], capture_output=True, check=True).stdout
    assert len(found) == 6 * HEIGHT * WIDTH  # every second frame is whole
    table = pandas.read_parquet(path / "meta/episodes/chunk-000/file-000.parquet")
    for key, values in {
        "chunk_index": [0, 0, 0], "file_index": [0, 0, 0],
        "from_timestamp": [0, 0.2, 0.25], "to_timestamp": [0.2, 0.25, 0.6],
    }.items():  # fmt: skip
        np.testing.assert_allclose(table[f"videos/{TOP}/{key}"], values)
    assert table[f"videos/{TOP}/file_index"].dtype == np.int64
    data = pandas.read_parquet(path / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(data.columns) == set(info["features"]) - {TOP, WRIST}
    stats = json.loads((path / "meta/stats.json").read_text())[TOP]
    frames = np.concatenate([episode.infos["top"] for episode in dataset.episodes]) / 255
    last = np.array(table[f"stats/{TOP}/mean"][2].tolist())
    assert [list(map(len, x)) for x in last] == [[1], [1], [1]]
    expected = dataset.episodes[2].infos["top"].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose([x[0][0] for x in last], expected)
    for name, function in {
        "min": np.min, "max": np.max, "mean": np.mean, "std": np.std,
        "q10": lambda x, axis: np.quantile(x, 0.1, axis=axis),
        "q90": lambda x, axis: np.quantile(x, 0.9, axis=axis),
    }.items():  # fmt: skip
        answer = function(frames, axis=(0, 1, 2)).reshape(3, 1, 1)
        np.testing.assert_allclose(stats[name], answer, atol=1e-12, err_msg=name)
    assert stats["count"] == [12]


def test_a_long_video_is_split(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lerobot_writer, "_VIDEO_MEGABYTES", 0)
    monkeypatch.setattr(lerobot_writer, "_CHUNK_FILES", 2)
    dataset = filmed(make_dataset())
    path = save(dataset, tmp_path / "x")
    files = sorted(str(p.relative_to(path / "videos" / TOP)) for p in path.rglob(f"{TOP}/*/*.mp4"))
    assert files == [
        "chunk-000/file-000.mp4", "chunk-000/file-001.mp4", "chunk-001/file-000.mp4",
    ]  # fmt: skip
    read = load(path, frames="top")
    assert [columns_of(e.infos["top"]) for e in read.episodes] == [
        [0, 2, 4, 6], [8], [10, 12, 14, 16, 18, 20, 22],
    ]  # fmt: skip
    assert WRIST not in read.episodes[0].infos


def test_frames_of_a_mask(make_dataset: Any, tmp_path: Path) -> None:
    dataset = dataclasses.replace(filmed(make_dataset()), recipe={"masks": {"last": [2]}})
    (episode,) = load(save(dataset, tmp_path / "x"), frames="top", mask="last").episodes
    assert columns_of(episode.infos["top"]) == [10, 12, 14, 16, 18, 20, 22]


def test_nothing_is_noted_of_videos_without_frames(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset()
    path = save(dataset, tmp_path / "x")
    assert not (path / "videos").exists()
    assert "videos" not in json.loads((path / "meta/trimtab.json").read_text())
    assert json.loads((path / "meta/info.json").read_text())["video_path"] is None
    with pytest.raises(TrimtabError, match="frames=all: there are no colour frames in it"):
        load(path, frames="all")
    assert load(path, frames="none").content_hash == dataset.content_hash


def test_frames_need_pyav(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(filmed(make_dataset()), tmp_path / "x")
    monkeypatch.setitem(sys.modules, "av", None)
    assert load(path).num_steps == 12
    for attempt in (
        lambda: load(path, frames="all"),
        lambda: save(filmed(make_dataset()), tmp_path / "y"),
    ):
        with pytest.raises(TrimtabError, match=r"need PyAV: pip install 'trimtab\[video\]'"):
            attempt()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x"]


def test_frames_that_memory_does_not_hold(make_dataset: Any, tmp_path: Path) -> None:
    """It is told before any file is opened."""
    dataset = make_dataset((100_000,))
    camera = Camera(TOP, False, 1 << 14, 1 << 14)  # 805 MB a frame
    frames = Frames(tmp_path, {"fps": 10, "major": 2}, [camera], [0], None)
    contents = contents_of(tmp_path, dataset.episodes, None)
    with pytest.raises(TrimtabError, match="frames of 75000.0 GiB, more than this machine's"):
        frames.assemble(contents, {})
