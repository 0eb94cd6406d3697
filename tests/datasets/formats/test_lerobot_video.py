"""Camera frames of LeRobot's folders: written, read by the published layout, and damaged."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.contents import contents_of
from trimtab.datasets.formats.lerobot import writer as lerobot_writer
from trimtab.datasets.formats.lerobot.cameras import Camera
from trimtab.datasets.formats.lerobot.video import Frames
from trimtab.datasets.formats.registry import get_format
from trimtab.datasets.io.ffmpeg import inspect
from trimtab.datasets.sources import streaming
from trimtab.types import TrimtabError

Picture = npt.NDArray[np.uint8]

TOP, WRIST = "observation.images.top", "observation.images.wrist"
HEIGHT, WIDTH, SQUARE = 32, 48, 12
GREY = (60, 90, 120)


def square(steps: int, begin: int, colour: Sequence[int], size: tuple[int, int]) -> Picture:
    """Return frames in which a square is at column 2 * (begin + t)."""
    frames = np.full((steps, *size, 3), GREY, np.uint8)
    for step in range(steps):
        left = 2 * (begin + step)
        frames[step, 8 : 8 + SQUARE, left : left + SQUARE] = colour
    return frames


def columns_of(frames: Picture) -> list[int]:
    """Return the column at which the square of each frame begins, by its reds."""
    return [int(np.flatnonzero(frame[14, :, 0] > 130)[0]) for frame in frames]


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


def save(dataset: Dataset, path: Path) -> Path:
    format = get_format("lerobot")
    assert format.save is not None
    format.save(dataset, path)
    return path


load = get_format("lerobot").load


# ---- Written -------------------------------------------------------------------------------------


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
    stream = inspect(path / file, 100, "x")
    assert (stream.width, stream.height, len(stream.times)) == (WIDTH, HEIGHT, 12)
    np.testing.assert_allclose(stream.times, np.arange(12) / 20)
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


def test_frames_need_ffmpeg(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(filmed(make_dataset()), tmp_path / "x")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert load(path).num_steps == 12
    for attempt in (
        lambda: load(path, frames="all"),
        lambda: save(filmed(make_dataset()), tmp_path / "y"),
    ):
        with pytest.raises(TrimtabError, match=r"need ffmpeg: pip install 'trimtab\[video\]'"):
            attempt()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x"]


# ---- Of others -----------------------------------------------------------------------------------


EXACT = ("-c:v", "libx264", "-bf", "2", "-crf", "4", "-pix_fmt", "yuv444p")
LEROBOT = ("-c:v", "libsvtav1", "-g", "2", "-crf", "30", "-pix_fmt", "yuv420p")


def encode(path: Path, frames: Picture, fps: int = 10, codec: Sequence[str] = EXACT) -> None:
    """Write a video as another program would; nearly exact, with pictures that look ahead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = f"{frames.shape[2]}x{frames.shape[1]}"
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", "-f", "rawvideo",
        "-pixel_format", "rgb24", "-video_size", size, "-framerate", str(fps), "-i", "pipe:0",
        *codec, str(path),
    ]  # fmt: skip
    subprocess.run(command, input=frames.tobytes(), check=True, stderr=subprocess.DEVNULL)


def stated(folder: Path, **changes: Any) -> None:
    """Change what info.json says of the camera."""
    place = folder / "meta/info.json"
    info = json.loads(place.read_text())
    info["features"][TOP].update(changes)
    place.write_text(json.dumps(info))


def v21(foreign: Any, folder: Path) -> Path:
    foreign.lerobot(folder, "v2.1")
    axes = ["channels", "height", "width"]
    stated(folder, shape=[3, HEIGHT, WIDTH], names=axes)
    for index, (steps, begin) in enumerate(((3, 0), (2, 3))):
        frames = square(steps, begin, (220, 40, 40), (HEIGHT, WIDTH))
        encode(folder / f"videos/chunk-000/{TOP}/episode_{index:06d}.mp4", frames)
    return folder


def episodes_table(folder: Path, **changes: Any) -> None:
    """Write when each episode is in the one video: the second comes first, then a removed one."""
    columns = {
        "episode_index": [0, 1], "length": [3, 2],
        f"videos/{TOP}/chunk_index": [0, 0], f"videos/{TOP}/file_index": [0, 0],
        f"videos/{TOP}/from_timestamp": [0.6, 0.0], f"videos/{TOP}/to_timestamp": [0.9, 0.2],
    }  # fmt: skip
    columns.update({f"videos/{TOP}/{name}": values for name, values in changes.items()})
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)


def v30(foreign: Any, folder: Path) -> Path:
    foreign.lerobot(folder, "v3.0")
    stated(folder, shape=[HEIGHT, WIDTH, 3], names=["height", "width", "channels"])
    parts = [square(n, b, (220, 40, 40), (HEIGHT, WIDTH)) for n, b in ((2, 3), (4, 10), (3, 0))]
    encode(folder / f"videos/{TOP}/chunk-000/file-000.mp4", np.concatenate(parts))
    episodes_table(folder)
    return folder


@pytest.mark.parametrize("write", [v21, v30])
@pytest.mark.parametrize("frames", ["all", "top", TOP])
def test_the_published_layouts(
    write: Callable[..., Path], frames: str, foreign: Any, tmp_path: Path
) -> None:
    path = write(foreign, tmp_path / "x")
    assert all(set(episode.infos) == {"success"} for episode in load(path).episodes)
    dataset = load(path, frames=frames)
    assert [columns_of(episode.infos[TOP]) for episode in dataset.episodes] == [[0, 2, 4], [6, 8]]
    for episode, begin in zip(dataset.episodes, (0, 3), strict=True):
        expected = square(len(episode), begin, (220, 40, 40), (HEIGHT, WIDTH))
        assert np.abs(episode.infos[TOP].astype(int) - expected).max() <= 8
    again = load(save(dataset, tmp_path / "y"), frames="all")  # its name stays
    assert columns_of(again.episodes[1].infos[TOP]) == [6, 8]


def test_episodes_that_lerobot_joined(foreign: Any, tmp_path: Path) -> None:
    """It encodes each episode in AV1 and joins the files without encoding them again."""
    path = v30(foreign, tmp_path / "x")
    file = next(path.rglob("*.mp4"))
    for name, steps, begin in (("one", 3, 0), ("two", 2, 3)):
        frames = square(steps, begin, (220, 40, 40), (64, 96))
        encode(tmp_path / f"{name}.mp4", frames, codec=LEROBOT)
    (tmp_path / "list").write_text("file one.mp4\nfile two.mp4\n")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", "-f", "concat", "-i"]
    subprocess.run([*command, tmp_path / "list", "-c", "copy", file], check=True)
    episodes_table(path, from_timestamp=[0.0, 0.3], to_timestamp=[0.3, 0.5])
    stated(path, shape=[64, 96, 3])
    dataset = load(path, frames="all")
    assert [columns_of(episode.infos[TOP]) for episode in dataset.episodes] == [[0, 2, 4], [6, 8]]


def test_videos_are_not_opened_unasked(foreign: Any, tmp_path: Path) -> None:
    for write in (v21, v30):
        path = write(foreign, tmp_path / write.__name__)
        for file in path.rglob("*.mp4"):
            file.write_bytes(b"damaged")
        assert load(path).num_steps == load(path, frames="false").num_steps == 5


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])


def front(file: Path) -> None:
    """Put the index first and cut the end: the index is whole, the frames are not."""
    moved = file.with_name("moved.mp4")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", file, "-c", "copy"]
    subprocess.run([*command, "-movflags", "+faststart", moved], check=True)
    file.write_bytes(moved.read_bytes()[:-40])
    moved.unlink()


def playlist(file: Path) -> None:
    other = file.with_name("other.mp4")
    file.rename(other)
    file.write_text(f"ffconcat version 1.0\nfile {other.name}\n")


def remade(steps: int = 9, **changes: Any) -> Callable[[Path], None]:
    size = changes.pop("size", (HEIGHT, WIDTH))
    return lambda file: encode(file, square(steps, 0, (220, 40, 40), size), **changes)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "ffmpeg failed"),
    "cut behind its index": (front, "ffmpeg failed"),
    "empty": (lambda file: file.write_bytes(b""), "ffmpeg failed"),
    "missing": (lambda file: file.unlink(), "there is no such video"),
    "fast": (remade(fps=20), "it shows 20 frames a second, but info.json says 10"),
    "slow": (remade(fps=5), "it shows 5 frames a second, but info.json says 10"),
    "small": (remade(size=(24, 40)), "40 wide and 24 high, but info.json says 48 and 32"),
    "large": (remade(size=(320, 480)), "480 wide and 320 high, but info.json says 48 and 32"),
    "a playlist": (playlist, "ffmpeg failed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("write", [v21, v30])
def test_damages(write: Callable[..., Path], damage: str, foreign: Any, tmp_path: Path) -> None:
    path = write(foreign, tmp_path / "x")
    file = sorted(path.rglob("*.mp4"))[0]
    change, message = DAMAGES[damage]
    change(file)
    with pytest.raises(TrimtabError) as raised:
        load(path, frames="all")
    said = str(raised.value)
    assert said.startswith(f"dataset {file}, key '{TOP}': ") and message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("write", [v21, v30])
def test_random_damages(write: Callable[..., Path], foreign: Any, tmp_path: Path) -> None:
    """Each ends in one line that names file and feature, or in as many frames as rows."""
    path = write(foreign, tmp_path / "x")
    file = sorted(path.rglob("*.mp4"))[0]
    whole, generator, read = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(30):
        changed = bytearray(whole)
        place = int(generator.integers(len(changed)))
        match int(generator.integers(3)):
            case 0:
                del changed[place : place + int(generator.integers(1, 50))]
            case 1:
                changed[place : place + 4] = b"\x7f\xff\xff\xff"
            case _:
                for other in generator.integers(len(changed), size=10):
                    changed[other] = int(generator.integers(256))
        file.write_bytes(changed)
        try:
            dataset = load(path, frames="all")
        except TrimtabError as error:
            assert str(error).startswith(f"dataset {file}, key '{TOP}': ")
            assert len(str(error).splitlines()) == 1
        else:
            read += 1
            assert [e.infos[TOP].shape[0] for e in dataset.episodes] == [3, 2]
    assert read < 30


def test_videos_of_another_length(foreign: Any, tmp_path: Path) -> None:
    one, several = v21(foreign, tmp_path / "one"), v30(foreign, tmp_path / "several")
    first = sorted(one.rglob("*.mp4"))[0]
    for steps, message in ((2, "2 frames of episode 0, which has 3 rows"), (4, "4 frames, but")):
        remade(steps)(first)
        with pytest.raises(TrimtabError, match=message):
            load(one, frames="all")
    remade(8)(next(several.rglob("*.mp4")))
    with pytest.raises(TrimtabError, match="2 frames of episode 0, which has 3 rows"):
        load(several, frames="all")
    remade(5000)(first)
    with pytest.raises(TrimtabError, match="it holds more than 1010 frames"):
        load(one, frames="all")


TABLES: list[tuple[dict[str, Any], str]] = [
    ({"to_timestamp": [0.8, 0.2]}, "from 0.6 s to 0.8 s, which is not 3 frames at 10 a second"),
    ({"from_timestamp": [-0.1, 0.0]}, "which is not 3 frames"),
    ({"from_timestamp": [0.9, 0.0], "to_timestamp": [1.2, 0.2]}, "no frame at the time of row 0"),
    ({"from_timestamp": [0.65, 0.0], "to_timestamp": [0.95, 0.2]}, "no frame at the time of row 0"),
    ({"from_timestamp": [0.1, 0.0], "to_timestamp": [0.4, 0.2]}, "begins before the one before"),
    ({"from_timestamp": [np.nan, 0.0]}, "which is not 3 frames"),
    ({"file_index": [7, 0]}, "file-007.mp4.*: there is no such video"),
    ({"file_index": None}, "file_index': missing"),
    ({"file_index": [None, 0]}, "values are missing"),
    ({"file_index": ["../..", "0"]}, "not a number"),
]


@pytest.mark.parametrize("changes, message", TABLES)
def test_wrong_tables(changes: dict[str, Any], message: str, foreign: Any, tmp_path: Path) -> None:
    path = v30(foreign, tmp_path / "x")
    episodes_table(path, **changes)
    with pytest.raises(TrimtabError, match=message) as raised:
        load(path, frames="all")
    assert len(str(raised.value).splitlines()) == 1
    (path / "meta/episodes/chunk-000/file-000.parquet").unlink()
    with pytest.raises(TrimtabError, match="there is no table of episodes"):
        load(path, frames="all")


def test_a_camera_that_is_not_there(foreign: Any, tmp_path: Path) -> None:
    path = v21(foreign, tmp_path / "x")
    with pytest.raises(TrimtabError, match=f"no colour frames 'side' in it; there are {TOP}"):
        load(path, frames="top,side")
    # What is stated is not believed: no room is made for it.
    stated(path, shape=[3, 16000, 16000])
    with pytest.raises(TrimtabError, match="48 wide and 32 high, but info.json says 16000"):
        load(path, frames="all")
    for shape in ([1, HEIGHT, WIDTH], [3, 10**9, 10**9], "wide", [3, -1, 5], None):
        stated(path, shape=shape)
        assert load(path).num_steps == 5
        with pytest.raises(TrimtabError, match="there are no colour frames in it"):
            load(path, frames="all")


def test_a_camera_lies_nowhere_else(foreign: Any, tmp_path: Path) -> None:
    path = v21(foreign, tmp_path / "x")
    place = path / "meta/info.json"
    for name in ("../../outside", "..", "two\nlines"):
        info = json.loads(place.read_text())
        info["features"] = {**info["features"], name: info["features"][TOP]}
        place.write_text(json.dumps(info))
    assert set(load(path, frames="all").episodes[0].infos) == {"success", TOP}


def test_frames_that_memory_does_not_hold(make_dataset: Any, tmp_path: Path) -> None:
    """It is told before any file is opened."""
    dataset = make_dataset((100_000,))
    camera = Camera(TOP, False, 1 << 14, 1 << 14)  # 805 MB a frame
    frames = Frames(tmp_path, {"fps": 10, "major": 2}, [camera], [0], None)
    contents = contents_of(tmp_path, dataset.episodes, None)
    with pytest.raises(TrimtabError, match="frames of 75000.0 GiB, more than this machine's"):
        frames.assemble(contents, {})


def test_frames_are_not_streamed(foreign: Any, tmp_path: Path) -> None:
    path = v21(foreign, tmp_path / "x")
    assert streaming.load(path, tmp_path / "streams").num_steps == 5
    with pytest.raises(TrimtabError, match="frames= is for data in memory; raise stream_above"):
        streaming.load(path, tmp_path / "streams", frames="all")
