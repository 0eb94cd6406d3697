"""A dataset on disk is the dataset in memory, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from trimtab.datasets.episodes import Dataset, validate
from trimtab.datasets.formats.minari.metadata import read_metadata
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.formats.registry import get_format, list_formats
from trimtab.datasets.io import hdf5
from trimtab.datasets.io import sandbox as apart
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.datasets.sources.streaming import StreamedDataset, load
from trimtab.datasets.sources.weighting import episode_weights
from trimtab.types import Batch, TrimtabError

LENGTHS = (4, 1, 7, 5, 1, 9)


@pytest.fixture
def pair(make_dataset: Any, tmp_path: Path) -> tuple[Dataset, StreamedDataset]:
    """A dataset in memory and the same one on disk."""
    folder = tmp_path / "dataset"
    save_minari(make_dataset(LENGTHS), folder)
    return load_minari(folder), load(folder, tmp_path / "streams")


def assert_equal(ours: Batch, theirs: Batch) -> None:
    for field in dataclasses.fields(Batch):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and one.shape == other.shape, field.name
            assert torch.equal(one, other), field.name
        else:
            assert one == other, field.name


@pytest.mark.bits
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("window", "chunked"), [(1, False), (1, True), (3, False), (4, True)])
def test_batches_and_states_are_those_of_memory(
    window: int, chunked: bool, weighted: bool, pair: tuple[Dataset, StreamedDataset]
) -> None:
    in_memory, streamed = pair
    weights = episode_weights(streamed, "advantage", 0.2) if weighted else None
    settings: Any = {"window": window, "chunked": chunked, "discount": 0.9, "weights": weights}
    ours = StreamedBuffer(streamed, seed=7, **settings)
    theirs = ReplayBuffer.from_dataset(in_memory, seed=7, **settings)
    assert len(ours) == len(theirs) == sum(LENGTHS)
    for size in (1, 64, 300):
        assert_equal(ours.sample(size), theirs.sample(size))
    # A run that was begun in memory goes on from disk, and the other way round.
    assert ours.state_dict() == theirs.state_dict()
    back, forth = (
        StreamedBuffer(streamed, **settings),
        ReplayBuffer.from_dataset(in_memory, **settings),
    )
    back.load_state_dict(theirs.state_dict())
    forth.load_state_dict(ours.state_dict())
    expected = theirs.sample(100)
    for source in (back, forth, ours):
        assert_equal(source.sample(100), expected)


@pytest.mark.parametrize(("least", "most"), [(1, 2), (1, 40), (16, 17), (30, 300)])
def test_every_step_is_found_in_its_episode(
    least: int, most: int, make_dataset: Any, tmp_path: Path
) -> None:
    generator = np.random.default_rng(least + most)
    save_minari(make_dataset(generator.integers(least, most, size=120)), tmp_path / "dataset")
    ours = StreamedBuffer(load(tmp_path / "dataset", tmp_path / "streams"))
    theirs = ReplayBuffer.from_dataset(load_minari(tmp_path / "dataset"))
    every = np.arange(len(ours))
    for values in ("obs", "next_obs"):
        np.testing.assert_array_equal(
            ours._storage.take(values, every), theirs._storage.take(values, every)
        )


def test_the_dataset_is_that_of_memory(pair: tuple[Dataset, StreamedDataset]) -> None:
    in_memory, streamed = pair
    assert (len(streamed), streamed.num_steps) == (len(in_memory), in_memory.num_steps)
    assert (streamed.obs_dim, streamed.action_dim) == (3, 2)
    assert streamed.content_hash == in_memory.content_hash
    assert Dataset.content_hash.func(streamed) == in_memory.content_hash  # what it is gathered from
    validate(streamed, "here")
    for field in dataclasses.fields(Dataset):
        if field.name != "episodes":
            assert getattr(streamed, field.name) == getattr(in_memory, field.name)
    for ours, theirs in zip(streamed.episodes, in_memory.episodes, strict=True):
        assert ours.seed == theirs.seed
        for name, array in theirs.arrays().items():
            stored = ours.arrays()[name]
            assert stored.dtype == array.dtype and not stored.flags.writeable
            np.testing.assert_array_equal(stored, array)
    assert [len(e) for e in streamed.episodes[-2:]] == [1, 9]
    with pytest.raises(IndexError):
        streamed.episodes[len(LENGTHS)]
    for only in (False, True):
        one, other = (data.statistics(transitions_only=only) for data in (streamed, in_memory))
        for field in dataclasses.fields(one):
            ours, theirs = (torch.as_tensor(getattr(x, field.name)) for x in (one, other))
            assert torch.equal(ours, theirs)


def test_it_is_converted_once_and_again_if_it_is_damaged(make_dataset: Any, tmp_path: Path) -> None:
    folder, cache = tmp_path / "dataset", tmp_path / "streams"
    save_minari(make_dataset(LENGTHS), folder)
    shares: list[float] = []
    first = load(folder, cache, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and 0.1 < shares[-2] < 1.0
    StreamedBuffer(first, discount=0.9)
    files = {path: path.stat().st_mtime_ns for path in sorted(cache.rglob("*.bin"))}
    StreamedBuffer(load(folder, cache), discount=0.9)
    assert {path: path.stat().st_mtime_ns for path in sorted(cache.rglob("*.bin"))} == files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    again = StreamedBuffer(load(folder, cache), discount=0.9)
    expected = ReplayBuffer.from_dataset(load_minari(folder), discount=0.9)
    assert_equal(again.sample(200), expected.sample(200))
    (cut, *_) = files
    cut.write_bytes(cut.read_bytes()[:-4])
    assert load(folder, cache).content_hash == first.content_hash
    assert not list(cache.rglob("*.tmp"))


def test_another_dataset_is_kept_apart(make_dataset: Any, tmp_path: Path) -> None:
    for seed in (0, 1):
        save_minari(make_dataset(LENGTHS, seed=seed), tmp_path / f"{seed}")
    one, other = (load(tmp_path / f"{seed}", tmp_path / "streams") for seed in (0, 1))
    assert one.folder != other.folder and one.content_hash != other.content_hash


def strangers(folder: Path) -> Path:
    """Take away what ``save`` sealed the dataset with, so that it may be changed."""
    path = folder / "data" / "metadata.json"
    kept = {k: v for k, v in read_metadata(folder).items() if not k.startswith("trimtab_")}
    path.write_text(json.dumps(kept))
    return folder / "data" / "main_data.hdf5"


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("observations", lambda x: np.where(np.arange(len(x))[:, None] == 2, np.nan, x), "NaN"),
        ("actions", lambda x: x[:-1], "key 'observations': shape"),
        ("actions", lambda x: x[:, :1], "key 'actions': shape"),
        ("infos/success", lambda x: x.astype(np.int32), "raise stream_above"),
        ("infos/success", None, "raise stream_above"),
    ],
)
def test_wrong_episodes_are_named_and_nothing_is_left(
    key: str, change: Any, message: str, make_dataset: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "dataset"
    save_minari(make_dataset(LENGTHS), folder)
    with h5py.File(strangers(folder), "r+") as file:
        array = file["episode_2"][key][()]
        del file["episode_2"][key]
        if change is not None:
            file["episode_2"][key] = change(array)
    with pytest.raises(TrimtabError, match=message) as error:
        load(folder, tmp_path / "streams")
    assert "episode 2" in str(error.value) and str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "streams").iterdir())


def test_a_changed_file_is_refused_also_where_columns_are_kept(
    make_dataset: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "dataset"
    save_minari(make_dataset(LENGTHS), folder)
    load(folder, tmp_path / "streams")
    path = folder / "data" / "main_data.hdf5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(TrimtabError, match="truncated or changed"):
        load(folder, tmp_path / "streams")
    shutil.rmtree(folder)
    with pytest.raises(TrimtabError, match="there is no such file"):
        load(folder, tmp_path / "streams")


STREAMED = [format.name for format in list_formats() if format.open is not None]


def assert_same(streamed: StreamedDataset, whole: Dataset) -> None:
    for field in dataclasses.fields(Dataset):
        if field.name != "episodes":
            assert getattr(streamed, field.name) == getattr(whole, field.name), field.name
    assert streamed.content_hash == whole.content_hash
    assert Dataset.content_hash.func(streamed) == whole.content_hash
    validate(streamed, "here")


@pytest.mark.parametrize("name", STREAMED)
def test_every_format_of_hdf5_and_parquet_is_streamed(
    name: str, foreign: Any, make_dataset: Any, tmp_path: Path
) -> None:
    """Others' files and our own give on disk what they give in memory, masks and hints included."""
    format = get_format(name)
    file_name, write = foreign.WRITERS[name]
    theirs, ours = tmp_path / "theirs" / file_name, tmp_path / "ours" / file_name
    for path in (theirs, ours):
        path.parent.mkdir()
    write(theirs)
    masks = {"masks": {"valid": [4, 1]}}
    assert format.save is not None
    format.save(dataclasses.replace(make_dataset(LENGTHS), recipe=masks), ours)
    given: dict[str, str] = {"id": "mine/renamed-v0", "env": "gym/Hopper-v5"}
    for path, hints in [(theirs, {}), (ours, {}), (theirs, given), (ours, {"mask": "valid"})]:
        cache = tmp_path / "streams" / f"{path.parent.name}-{len(hints)}"
        streamed = load(path, cache, **hints)
        assert_same(streamed, format.load(path, **hints))
        assert {file.suffix for file in cache.rglob("*") if file.is_file()} == {".bin", ".json"}
        again = load(path, cache, **hints)  # from the columns alone
        assert again.folder == streamed.folder
        assert_same(again, format.load(path, **hints))
    # Another hint is another dataset, also in the same cache.
    assert load(ours, cache).content_hash != streamed.content_hash
    with pytest.raises(TrimtabError, match="no mask 'none' of its episodes; there are valid"):
        load(ours, cache, mask="none")


def test_what_is_read_whole_is_not_streamed(foreign: Any, tmp_path: Path) -> None:
    file_name, write = foreign.WRITERS["ogbench"]
    write(tmp_path / file_name)
    with pytest.raises(TrimtabError, match="ogbench data is read whole; convert it to minari"):
        load(tmp_path / file_name, tmp_path / "streams")


def test_arrays_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks smaller than an episode, with float64 and flags as ints."""
    monkeypatch.setattr(hdf5, "_BLOCK_BYTES", 100)
    generator = np.random.default_rng(0)
    path = tmp_path / "x.hdf5"
    arrays = {
        "observations": generator.normal(size=(100, 3)),
        "actions": generator.normal(size=(100, 2)).astype(np.float32),
        "rewards": generator.normal(size=100),
        "terminals": np.arange(100) % 10 == 9,
    }
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
        # As a part that was never written.
        file.create_dataset("timeouts", (100,), np.uint8, chunks=(25,))
    streamed = load(path, tmp_path / "streams")
    assert_same(streamed, get_format("d4rl").load(path))
    assert [len(episode) for episode in streamed.episodes] == [10] * 10
    seen = np.concatenate([episode.observations[:-1] for episode in streamed.episodes])
    np.testing.assert_array_equal(seen, arrays["observations"].astype(np.float32))
    acted = np.concatenate([episode.actions for episode in streamed.episodes])
    np.testing.assert_array_equal(acted, arrays["actions"])


def test_what_spills_leaves_nothing_and_a_full_disk_is_told(
    foreign: Any, readers: Any, tmp_path: Path
) -> None:
    file_name, write = foreign.WRITERS["d4rl"]
    write(tmp_path / file_name)
    reader = apart.read_apart(tmp_path, readers.surroundings)[0]["process"]
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(reader, resource.RLIMIT_FSIZE, (64, hard))  # its files grow no larger
    with (
        pytest.raises(TrimtabError, match="there is no room for its arrays in .*streams"),
        apart.spill_to(tmp_path / "streams"),
    ):
        get_format("d4rl").load(tmp_path / file_name)
    assert not list((tmp_path / "streams").iterdir())


def test_a_full_disk_is_one_line(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing fails while the HDF5 file is open, and it is not the HDF5 file that is blamed."""
    folder = tmp_path / "dataset"
    save_minari(make_dataset(LENGTHS), folder)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trimtab.datasets.sources.columns.ColumnWriter.append", full)
    with pytest.raises(TrimtabError, match="cannot write .*streams.*: No space left on device"):
        load(folder, tmp_path / "streams")
    assert not list((tmp_path / "streams").iterdir())


def test_a_dataset_on_disk_cannot_grow(pair: tuple[Dataset, StreamedDataset]) -> None:
    source = StreamedBuffer(pair[1])
    with pytest.raises(TrimtabError, match="cannot grow"):
        source.add(np.zeros((1, 3)), np.zeros((1, 1, 2)), [0.0], np.zeros((1, 3)), [False], [False])
    assert len(source.episodes()) == len(LENGTHS)
