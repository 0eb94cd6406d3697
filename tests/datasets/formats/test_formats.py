"""Every format: found, told apart, kept exactly where it is written, and refused in one line."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.registry import (
    choose_output_format,
    get_format,
    list_formats,
    recognise,
)
from trimtab.datasets.io import hdf5
from trimtab.datasets.io import sandbox as apart
from trimtab.types import TrimtabError

WRITTEN = [format.name for format in list_formats() if format.save is not None]


def save(name: str, dataset: Dataset, folder: Path) -> Path:
    format = get_format(name)
    path = folder / f"{name}{format.suffixes[0]}"
    assert format.save is not None
    format.save(dataset, path)
    return path


def assert_same(one: Dataset, two: Dataset) -> None:
    for field in dataclasses.fields(Dataset):
        if field.name != "episodes":
            assert getattr(one, field.name) == getattr(two, field.name), field.name
    assert one.content_hash == two.content_hash
    for first, second in zip(one.episodes, two.episodes, strict=True):
        for key, array in first.arrays().items():
            np.testing.assert_array_equal(array, second.arrays()[key])


def harder(dataset: Dataset) -> Dataset:
    """Return ``dataset`` with everything that a layout is likely to have no place for."""
    generator = np.random.default_rng(3)

    def change(index: int, episode: Any) -> Any:
        steps = len(episode)
        infos = {
            **episode.infos,
            "empty": np.zeros((steps, 0)),
            "matrix": generator.integers(9, size=(steps, 2, 3)).astype(np.int16),
            "column": generator.normal(size=(steps, 1)).astype(np.float16),
            "big": generator.normal(size=steps).astype(">f8"),
            "pose.left": generator.normal(size=(steps, 2)),  # beside pose/left
            "states": generator.normal(size=(steps, 4)),
            "qpos": generator.normal(size=(steps, 2)),
        }
        return dataclasses.replace(
            episode,
            infos=infos,
            truncations=np.ones(steps, bool),  # with a termination, and inside the episode
            seed=None if index == 1 else episode.seed,
        )

    return dataclasses.replace(
        dataset,
        episodes=tuple(change(i, e) for i, e in enumerate(dataset.episodes)),
        action_low=(-np.inf, -1.0),
        action_high=(np.inf, 0.1),
        control_rate=1 / 0.03,
        recipe={"masks": {"train": [0, 2], "valid": [1]}, "text": "é\n"},
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_a_round_trip_keeps_everything(name: str, make_dataset: Any, tmp_path: Path) -> None:
    for dataset in (make_dataset(), harder(make_dataset())):
        path = save(name, dataset, tmp_path)  # the second replaces the first
        assert recognise(path) is get_format(name)
        assert get_format(name).loses(dataset) == []
        assert_same(get_format(name).load(path), dataset)
    first = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    save(name, harder(make_dataset()), tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == first


@pytest.mark.bits
def test_a_journey_through_the_formats_keeps_the_hash(make_dataset: Any, tmp_path: Path) -> None:
    dataset = harder(make_dataset())
    journey = ["minari", "robomimic", "lerobot", "d4rl", "ogbench", "minari"]
    assert set(journey) == set(WRITTEN)
    loaded = dataset
    for stop, name in enumerate(journey):
        loaded = get_format(name).load(save(name, loaded, tmp_path / str(stop)))
        assert_same(loaded, dataset)


@pytest.mark.parametrize("name", WRITTEN)
def test_hints_override_and_masks_choose(name: str, make_dataset: Any, tmp_path: Path) -> None:
    dataset = harder(make_dataset())
    path = save(name, dataset, tmp_path)
    load = get_format(name).load
    renamed = load(path, id="other/name-v3", env="other/Env-v0")
    assert (renamed.id, renamed.env, renamed.num_steps) == ("other/name-v3", "other/Env-v0", 12)
    assert [len(episode) for episode in load(path, mask="train").episodes] == [4, 7]
    assert [len(episode) for episode in load(path, mask="valid").episodes] == [1]
    with pytest.raises(
        TrimtabError, match="no mask 'test' of its episodes; there are train, valid"
    ):
        load(path, mask="test")
    plain = save(name, make_dataset(), tmp_path / "plain")
    with pytest.raises(TrimtabError, match="it has none"):
        load(plain, mask="train")


@pytest.mark.parametrize("name", ["d4rl", "lerobot", "ogbench"])
def test_what_is_lost_is_said(name: str, make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset()
    first = dataset.episodes[0]
    odd = dataclasses.replace(first, infos={**first.infos, "only here": np.zeros(len(first))})
    uneven = dataclasses.replace(dataset, episodes=(odd, *dataset.episodes[1:]))
    (line,) = get_format(name).loses(uneven)
    assert "info 'only here' is not in every episode" in line
    assert_same(get_format(name).load(save(name, uneven, tmp_path)), dataset)


def test_lerobot_has_no_long_double(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset()
    wide = [
        dataclasses.replace(e, infos={**e.infos, "wide": np.zeros(len(e), np.longdouble)})
        for e in dataset.episodes
    ]
    wider = dataclasses.replace(dataset, episodes=tuple(wide))
    (line,) = get_format("lerobot").loses(wider)
    assert "'wide'" in line
    assert_same(get_format("lerobot").load(save("lerobot", wider, tmp_path)), dataset)


@pytest.mark.parametrize("name", WRITTEN)
def test_nothing_else_is_replaced(
    name: str, foreign: Any, make_dataset: Any, tmp_path: Path
) -> None:
    file_name, write = foreign.WRITERS[name]
    path = tmp_path / file_name
    write(path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    other = tmp_path / f"other{path.suffix}"
    other.write_text("x")
    for place in (path, other):
        with pytest.raises(TrimtabError, match=f"^cannot write {place}"):
            format = get_format(name)
            assert format.save is not None
            format.save(make_dataset(), place)
    other.unlink()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", WRITTEN)
def test_an_invalid_dataset_is_not_written(name: str, make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset()
    for broken in (
        dataclasses.replace(dataset, episodes=()),
        dataclasses.replace(dataset, recipe={"f": object()}),
        dataclasses.replace(dataset, action_high=(1.0,)),
    ):
        with pytest.raises(TrimtabError, match="test/random-v0"):
            save(name, broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_formats_are_told_apart(foreign: Any, tmp_path: Path) -> None:
    for format in list_formats():
        file_name, write = foreign.WRITERS[format.name]
        folder = tmp_path / format.name
        folder.mkdir()
        write(folder / file_name)
        assert recognise(folder / file_name) is format
        assert recognise(folder / file_name).description
    (tmp_path / "notes.txt").write_text("x")
    for nothing in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(TrimtabError, match="in none of the formats d4rl, diffusion_policy"):
            recognise(nothing)
    with pytest.raises(TrimtabError, match="no such file or folder"):
        recognise(tmp_path / "nowhere")


def test_the_format_to_write_is_named_or_the_only_one() -> None:
    assert choose_output_format("x.npz").name == "ogbench"
    assert choose_output_format("x", "lerobot").name == "lerobot"
    for path, name, message in [
        ("x", "", "say as= which format to write: lerobot, minari"),
        ("x.hdf5", "", "say as= which format to write: d4rl, robomimic"),
        ("x.zarr", "", "say as= which format"),
        ("x.npz", "dppo", "dppo is only read here; write one of d4rl"),
        ("x.npz", "d4rl", "a d4rl file ends with .hdf5 or .h5; rename it"),
        ("x.npz", "pickle", "no such dataset format; there are d4rl"),
    ]:
        with pytest.raises(TrimtabError, match=message):
            choose_output_format(path, name)


def test_a_reader_that_crashes_hangs_or_fails_is_one_line(
    foreign: Any, readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.hdf5"
    foreign.d4rl(path)
    monkeypatch.setattr(apart, "_SECONDS", 1.0)
    monkeypatch.setattr(apart, "_MEMORY", 1 << 28)
    begin = time.monotonic()
    for read, message in [
        (readers.crashes, "damaged .its reader crashed"),
        (readers.spins, "damaged .its reader came to no end"),
        (readers.fails, "not readable .ZeroDivisionError"),
        (readers.asks_for_memory, "not a whole HDF5 file .*MemoryError"),
        (readers.is_killed, "its reader was killed, as happens where memory runs out"),
        (readers.sends_objects, "not a whole HDF5 file .TypeError: .*(object array|references)"),
    ]:
        with pytest.raises(TrimtabError, match=f"^dataset {path}: {message}"):
            hdf5.read_file(path, read)
    assert time.monotonic() - begin < 60
    values, arrays = hdf5.read_file(path, readers.hands_over_nothing, "é")
    assert (values, arrays["a/b"].shape) == ({"é": [1]}, (0, 2))


def test_what_is_neither_file_nor_folder_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TrimtabError, match=f"{path}: neither a file nor a folder"):
            recognise(path)


@pytest.mark.parametrize(
    ("writer", "name", "file"),
    [
        ("lerobot", "lerobot", "data/chunk-000/file-000.parquet"),
        ("lerobot", "lerobot", "data/chunk-000/file-001.parquet"),
        ("lerobot", "lerobot", "meta/info.json"),
        ("minari", "minari", "data/main_data.hdf5"),
        ("minari", "minari", "data/metadata.json"),
        ("zlib_diffusion_policy", "diffusion_policy", "meta/episode_ends/.zarray"),
        ("zlib_diffusion_policy", "diffusion_policy", "data/state/.zarray"),
        ("zlib_diffusion_policy", "diffusion_policy", "data/state/0.0"),
    ],
)
def test_a_pipe_inside_a_folder_is_not_waited_for(
    writer: str, name: str, file: str, foreign: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    getattr(foreign, writer)(folder)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(TrimtabError, match=str(folder)) as error:
        get_format(name).load(folder, env="gym/InvertedPendulum-v5")
    assert "\n" not in str(error.value)
