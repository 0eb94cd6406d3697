"""A whole run on a CUDA GPU: PPO on an MJX task whose simulations never leave it.

A part of ``scripts/gpu.py``. The run is that of ``trimtab train``, from its settings to its bundle.
Its number of environments is one that ``scripts/gpu_simulation.py`` has compiled before.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from trimtab.benchmarks.runs.train import train
from trimtab.benchmarks.settings.config import compose_run

__all__ = ["run"]

NAME = "ppo_half_cheetah_1024"
WORDS = ["env=playground/CheetahRun", "algorithm=ppo", "num_envs=1024", "device=cuda"]
WORDS += ["algorithm.rollout_steps=32", "algorithm.batch_size=4096", "algorithm.epochs=5"]
WORDS += ["eval_episodes=16"]
STEPS, EVALUATIONS = 4_000_000, 4


def run(folder: Path, scale: float) -> tuple[dict[str, Any], str]:
    """Train, and return the row and the run's ``metrics.jsonl``.

    ``steps_per_second`` is the median over the iterations (steps of the environments and learning);
    ``seconds`` is the whole run, compiling and evaluations included.

    Args:
        folder: of the run.
        scale: factor to its steps.
    """
    steps = round(STEPS * scale)
    words = [*WORDS, f"online_steps={steps}", f"eval_every={steps // EVALUATIONS}", f"out={folder}"]
    started = time.perf_counter()
    result = train(compose_run(words))
    seconds = time.perf_counter() - started
    metrics = (result.folder / "metrics.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, metrics.splitlines())
    marks = [(line["env_steps"], line["seconds"]) for line in lines]
    rates = [
        (steps - before) / (later - earlier)
        for (before, earlier), (steps, later) in zip(marks, marks[1:], strict=False)
        if steps > before and later > earlier
    ]
    returns: dict[int, list[float]] = {}
    episodes = pq.read_table(result.folder / "episodes.parquet").to_pylist()
    for row in episodes:
        returns.setdefault(row["env_steps"], []).append(row["return"])
    row = {
        "name": NAME,
        "group": "gpu",
        "unit": "steps/s",
        "words": [word for word in words if not word.startswith("out=")],
        "steps_per_second": statistics.median(rates),
        "seconds": seconds,
        "returns_by_steps": returns,
    }
    return row, metrics
