"""LeRobot's camera frames in the published layouts: whole, joined, damaged and not there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loading import load_module

from trimtab.datasets.sources import streaming
from trimtab.types import TrimtabError

squares = load_module(Path(__file__).with_name("squares.py"))
Picture, TOP = squares.Picture, squares.TOP
HEIGHT, WIDTH = squares.HEIGHT, squares.WIDTH
square, columns_of, save, load = squares.square, squares.columns_of, squares.save, squares.load

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
    "cut": (cut, "not a readable video"),
    "cut behind its index": (front, "not a readable video"),
    "empty": (lambda file: file.write_bytes(b""), "not a readable video"),
    "missing": (lambda file: file.unlink(), "there is no such video"),
    "fast": (remade(fps=20), "it shows 20 frames a second, but info.json says 10"),
    "slow": (remade(fps=5), "it shows 5 frames a second, but info.json says 10"),
    "small": (remade(size=(24, 40)), "40 wide and 24 high, but info.json says 48 and 32"),
    "large": (remade(size=(320, 480)), "480 wide and 320 high, but info.json says 48 and 32"),
    "a playlist": (playlist, "not a readable video"),
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


def test_frames_are_not_streamed(foreign: Any, tmp_path: Path) -> None:
    path = v21(foreign, tmp_path / "x")
    assert streaming.load(path, tmp_path / "streams").num_steps == 5
    with pytest.raises(TrimtabError, match="frames= is for data in memory; raise stream_above"):
        streaming.load(path, tmp_path / "streams", frames="all")
