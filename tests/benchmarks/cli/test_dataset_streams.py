"""``trimtab dataset`` holds no whole dataset in memory, told by what is allocated."""

from __future__ import annotations

import gc
import json
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.benchmarks.cli.commands import dataset as commands
from trimtab.benchmarks.cli.main import main
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.lerobot import writer
from trimtab.datasets.formats.minari.writer import save
from trimtab.datasets.io import hdf5_writer
from trimtab.datasets.io.hdf5_writer import write_hdf5
from trimtab.datasets.sources import columns
from trimtab.errors import TrimtabError

STEPS, WIDTH = 250, 40
FORMATS = {"minari": "out", "robomimic": "out.hdf5", "d4rl": "out.hdf5", "lerobot": "out"}


def saved(folder: Path, count: int) -> int:
    """Save a dataset of so many long episodes; return its bytes in memory."""
    generator = np.random.default_rng(0)
    last = np.arange(STEPS) == STEPS - 1
    episodes = [
        Episode(
            observations=generator.normal(size=(STEPS + 1, WIDTH)),
            actions=generator.uniform(-1, 1, size=(STEPS, 3)),
            rewards=generator.normal(size=STEPS),
            terminations=last & False,
            truncations=last,
        )
        for _ in range(count)
    ]
    save(Dataset("test/wide-v0", "x/y", {}, tuple(episodes), (-1.0,) * 3, (1.0,) * 3), folder)
    return sum(array.nbytes for episode in episodes for array in episode.arrays().values())


def command(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dataset", *words, "format=json"])
    assert not ended.value.code


def peak_of(work: Callable[[], None]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_STREAM_ABOVE", 0)
    monkeypatch.setattr(columns, "_BLOCK", 1 << 14)  # else a block alone is larger than the data
    monkeypatch.setattr(hdf5_writer, "_BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(writer, "_EPISODES_AT_ONCE", 2)  # of whose statistics there are lists
    few, many = saved(tmp_path / "few", 8), saved(tmp_path / "many", 32)
    growth: dict[str, float] = {}
    works: dict[str, tuple[str, ...]] = {
        "check": ("action=check",), "info": ("action=info",),
        **{kind: ("action=convert", f"as={kind}") for kind in FORMATS},
    }  # fmt: skip
    for name, words in works.items():
        peaks = []
        for number, source in enumerate(("few", "few", "many")):
            convert = name in FORMATS
            path = f"{name}-{source}-{FORMATS[name]}" if convert else ""
            asked = (f"from={source}", f"to={path}") if convert else (f"path={source}",)
            if number == 0:  # imports what is needed, which takes long where memory is traced
                command(*words, *asked)
            else:
                peaks.append(peak_of(lambda words=words, asked=asked: command(*words, *asked)))  # type: ignore[misc]
            told = json.loads(capsys.readouterr().out)
            if convert:
                assert told["content_hash"] == told["content_hash_before"]
        growth[name] = (peaks[1] - peaks[0]) / (many - few)
    # A dimension of all steps is held at a time, of 63, in double precision and sorted for ranks.
    assert not {name: share for name, share in growth.items() if share > 0.3}
    assert len(list((tmp_path / "runs" / "streams").iterdir())) >= 2


def test_room_is_asked_for_before_anything_is_written(tmp_path: Path) -> None:
    """HDF5 would crash the process where the disk refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_hdf5(tmp_path / "x", pytest.fail, 100_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(TrimtabError, match="does not fit into HDF5"):
        write_hdf5(
            tmp_path / "odd", lambda file: file.create_dataset("x", data=np.array([{}])), 100
        )
