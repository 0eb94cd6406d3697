"""Measure a dataset on disk against the same one in memory: memory, loading, rates of sampling.

Run it as ``python streaming.py [transitions] [rounds]``. It makes a dataset of Hopper's
size in a temporary folder (TMPDIR; about 5 GB for the 10 million transitions that it takes by
itself), loads it as a stream in a process of its own, once to convert it and once more, and then
draws batches from disk and from memory in turns. The other formats that are streamed are converted
once each, as strangers' files: without what Trimtab notes in its own. Rows are printed as JSON.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.benchmarks.speed.measure import check_rounds
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.io.sandbox import stop_reader
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.datasets.sources.streaming import load
from trimtab.files import atomic_write_json
from trimtab.types import TrimtabError

logger = logging.getLogger("streaming")

OBS_DIM, ACTION_DIM, LENGTH = 11, 3, 1_000  # Hopper's
BATCH, DRAWN, WARM_UP = 256, 4_000, 40_000  # batches of a turn, and before the first
SETTINGS: dict[str, Any] = {"discount": 0.99, "chunked": True}


def episodes(transitions: int) -> Iterator[Episode]:
    """Yield episodes of 1000 steps of random numbers, the same each time."""
    generator = np.random.default_rng(0)
    last = np.arange(LENGTH) == LENGTH - 1
    for _ in range(transitions // LENGTH):
        yield Episode(
            observations=generator.standard_normal((LENGTH + 1, OBS_DIM), dtype=np.float32),
            actions=generator.random((LENGTH, ACTION_DIM), dtype=np.float32),
            rewards=generator.random(LENGTH, dtype=np.float32),
            terminations=np.zeros(LENGTH, dtype=np.bool_),
            truncations=last,
        )


def make(path: Path, transitions: int) -> None:
    """Write a dataset as Trimtab does."""
    save_minari(
        Dataset(
            id="trimtab/streaming-v0",
            env="gym/Hopper-v5",
            env_options={},
            episodes=list(episodes(transitions)),
            action_low=(-1.0,) * ACTION_DIM,
            action_high=(1.0,) * ACTION_DIM,
        ),
        path,
    )


def make_d4rl(path: Path, transitions: int) -> None:
    """Write the episodes as D4RL lays them out."""
    widths = {"observations": OBS_DIM, "next_observations": OBS_DIM, "actions": ACTION_DIM}
    with h5py.File(path, "w") as file:
        for name, width in widths.items():
            file.create_dataset(name, (transitions, width), np.float32, chunks=(LENGTH, width))
        file.create_dataset("rewards", (transitions,), np.float32, chunks=(LENGTH,))
        for name in ("terminals", "timeouts"):
            file.create_dataset(name, (transitions,), np.bool_, chunks=(LENGTH,))
        for index, episode in enumerate(episodes(transitions)):
            rows = slice(index * LENGTH, (index + 1) * LENGTH)
            file["observations"][rows] = episode.observations[:-1]
            file["next_observations"][rows] = episode.observations[1:]
            file["actions"][rows], file["rewards"][rows] = episode.actions, episode.rewards
            file["terminals"][rows] = episode.terminations
            file["timeouts"][rows] = episode.truncations


def make_robomimic(path: Path, transitions: int) -> None:
    """Write the episodes as robomimic lays them out."""
    with h5py.File(path, "w") as file:
        for index, episode in enumerate(episodes(transitions)):
            demo = file.create_group(f"data/demo_{index}")
            demo["obs/flat"] = episode.observations[:-1]
            demo["next_obs/flat"] = episode.observations[1:]
            demo["actions"], demo["rewards"] = episode.actions, episode.rewards
            demo["dones"] = episode.truncations.astype(np.int64)


def make_lerobot(path: Path, transitions: int) -> None:
    """Write the episodes as version 3.0 of LeRobot lays them out, but for the last observations."""
    file = path / "data" / "chunk-000" / "file-000.parquet"
    file.parent.mkdir(parents=True)
    widths = {"observation.state": OBS_DIM, "action": ACTION_DIM}
    kinds = {name: pa.list_(pa.float32(), width) for name, width in widths.items()}
    numbers = {"next.reward": pa.float32(), "episode_index": pa.int64(), "frame_index": pa.int64()}
    with pq.ParquetWriter(file, pa.schema({**kinds, **numbers})) as writer:
        for index, episode in enumerate(episodes(transitions)):
            vectors = (episode.observations[:-1], episode.actions)
            lists = [
                pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
                for rows in vectors
            ]
            frames = np.arange(LENGTH)
            rows = [pa.array(x) for x in (episode.rewards, np.full(LENGTH, index), frames)]
            writer.write_table(pa.table([*lists, *rows], schema=writer.schema))
    shapes = {name: {"dtype": "float32", "shape": [width]} for name, width in widths.items()}
    shapes |= {name: {"dtype": str(kind), "shape": [1]} for name, kind in numbers.items()}
    shapes["next.reward"]["dtype"] = "float32"
    info = {
        "codebase_version": "v3.0", "fps": 125, "features": shapes, "total_frames": transitions,
    }  # fmt: skip
    atomic_write_json(path / "meta" / "info.json", info)


STRANGERS = {"d4rl.hdf5": make_d4rl, "robomimic.hdf5": make_robomimic, "lerobot": make_lerobot}


def memory(key: str) -> float:
    """Return a line of this process's status in GB: VmHWM is its peak, RssAnon what is its own."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = (line for line in lines if line.startswith(f"{key}:"))
    return int(found.split()[1]) * 1024 / 1e9


def loading(name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """Load as a stream, take statistics and draw batches; return seconds and memory."""
    shares: list[float] = []
    before, began = memory("VmRSS"), time.perf_counter()
    dataset = load(folder, cache, shares.append)
    buffer = StreamedBuffer(dataset, **SETTINGS)
    seconds = time.perf_counter() - began
    loaded = memory("VmHWM")
    dataset.statistics()
    for _ in range(DRAWN):
        buffer.sample(BATCH)
    stop_reader()  # so that its readers are counted
    return {
        "name": name,
        "transitions": dataset.num_steps,
        "seconds": round(seconds, 1),
        "reports_of_progress": len(shares),
        "gb_before": round(before, 3),
        "peak_gb_loaded": round(loaded, 3),
        "peak_gb_after_statistics_and_sampling": round(memory("VmHWM"), 3),
        "peak_gb_apart": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6, 3),
        "own_gb_after": round(memory("RssAnon"), 3),
        "gb_on_disk": round(sum(p.stat().st_size for p in cache.rglob("*.bin")) / 1e9, 3),
    }


def sampling(folder: Path, cache: Path, rounds: int) -> list[dict[str, Any]]:
    """Draw from disk and from memory in turns; return a row for each kind of window."""
    dataset = load(folder, cache)
    rows = []
    for name, settings in (("sample", SETTINGS), ("sample_5_step_returns", {"window": 5})):
        sides: list[ReplayBuffer] = [
            StreamedBuffer(dataset, **settings),
            ReplayBuffer.from_dataset(dataset, **settings),
        ]
        for side in sides:
            rate(side, WARM_UP)
        turns = [[rate(side, DRAWN) for side in sides] for _ in range(rounds)]
        ratios = [streamed / in_memory for streamed, in_memory in turns]
        rows.append(
            {
                "name": name,
                "streamed": round(statistics.median(turn[0] for turn in turns)),
                "in_memory": round(statistics.median(turn[1] for turn in turns)),
                "ratio_median": round(statistics.median(ratios), 3),
                "ratio_min": round(min(ratios), 3),
                "ratio_max": round(max(ratios), 3),
                "rounds": rounds,
            }
        )
    return rows


def rate(source: ReplayBuffer, batches: int) -> float:
    """Return batches of 256 a second."""
    began = time.perf_counter()
    for _ in range(batches):
        source.sample(BATCH)
    return batches / (time.perf_counter() - began)


def measured(transitions: int, rounds: int) -> list[dict[str, Any]]:
    """Return all rows."""

    def apart(function: Callable[..., Any], *args: Any) -> Any:
        """Let a fresh process do it, so that its memory is its own."""
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, args)

    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder, cache = Path(temporary) / "dataset", Path(temporary) / "streams"
        logger.info("making %s transitions in %s", f"{transitions:,}", temporary)
        apart(make, folder, transitions)
        rows = [apart(loading, name, folder, cache) for name in ("first_load", "later_load")]
        rows += apart(sampling, folder, cache, rounds)
        for name, writes in STRANGERS.items():
            logger.info("making the same as %s", name)
            path, cache = Path(temporary) / name, Path(temporary) / f"streams-{name}"
            apart(writes, path, transitions)
            rows.append(apart(loading, f"first_load_{path.stem}", path, cache))
            shutil.rmtree(cache)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    machine = {
        "name": "machine",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load_average_before": round(load_average, 2),
    }
    return [machine, *rows]


def main(words: list[str]) -> int:
    """Measure and print; the exit code is 2 on wrong input."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        numbers = [int(word) for word in words]
        transitions, rounds, *more = [*numbers, *(10_000_000, 9)[len(numbers) :]]
        if more or transitions < LENGTH:
            raise ValueError
        check_rounds(rounds)
    except (ValueError, TrimtabError):
        sys.stderr.write(f"two whole numbers at most: transitions (from {LENGTH}) and rounds\n")
        return 2
    sys.stdout.write(json.dumps(measured(transitions, rounds), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
