"""Measure a dataset on disk against the same one in memory: memory, loading, rates of sampling.

Run it as ``python scripts/streaming.py [transitions] [rounds]``. It makes a dataset of Hopper's
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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.benchmarks.speed import check_rounds
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats import minari
from trimtab.datasets.replay import ReplayBuffer
from trimtab.datasets.streaming import StreamedBuffer, load
from trimtab.types import TrimtabError

logger = logging.getLogger("streaming")

OBS_DIM, ACTION_DIM, LENGTH = 11, 3, 1_000  # Hopper's
BATCH, DRAWN, WARM_UP = 256, 4_000, 40_000  # batches of a turn, and before the first
SETTINGS: dict[str, Any] = {"discount": 0.99, "chunked": True}


def make(folder: Path, transitions: int) -> None:
    """Write a dataset of random numbers in episodes of 1000 steps."""
    generator = np.random.default_rng(0)
    last = np.arange(LENGTH) == LENGTH - 1

    def episode() -> Episode:
        return Episode(
            observations=generator.standard_normal((LENGTH + 1, OBS_DIM), dtype=np.float32),
            actions=generator.random((LENGTH, ACTION_DIM), dtype=np.float32),
            rewards=generator.random(LENGTH, dtype=np.float32),
            terminations=np.zeros(LENGTH, dtype=np.bool_),
            truncations=last,
        )

    minari.save(
        Dataset(
            id="trimtab/streaming-v0",
            env="gym/Hopper-v5",
            env_options={},
            episodes=[episode() for _ in range(transitions // LENGTH)],
            action_low=(-1.0,) * ACTION_DIM,
            action_high=(1.0,) * ACTION_DIM,
        ),
        folder,
    )


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
    return {
        "name": name,
        "transitions": dataset.num_steps,
        "seconds": round(seconds, 1),
        "reports_of_progress": len(shares),
        "gb_before": round(before, 3),
        "peak_gb_loaded": round(loaded, 3),
        "peak_gb_after_statistics_and_sampling": round(memory("VmHWM"), 3),
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
