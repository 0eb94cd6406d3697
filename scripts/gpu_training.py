"""Whole runs on a CUDA GPU on MJX tasks whose simulations never leave it: PPO and SAC.

A part of ``scripts/gpu.py``. A run is that of ``trimtab train``, from its settings to its bundle.
Its numbers of environments are those that ``scripts/gpu_simulation.py`` compiles. PPO is measured
beside Brax's PPO; SAC, whose ring lies on the GPU, has no peer here.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from trimtab.benchmarks.speed import brax_side
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train

__all__ = ["RUNS", "Training", "run"]

WORDS = ["device=cuda", "eval_episodes=4"]
SAC = ["algorithm.batch_size=512", "algorithm.warmup_steps=50000"]
UPDATES = 8
"""Those of SAC after each step of all environments."""
EVALUATIONS = 2
PARTS = 9
"""Parts of Brax's training that are timed; the first one has the compilation and does not count."""
NO_PEER: dict[str, Any] = dict.fromkeys(
    ("peer_name", "peer", "ratio_median", "ratio_min", "ratio_max", "peer_threads")
)


def ppo_words(copies: int) -> list[str]:
    """Return PPO's words for so many environments."""
    return brax_side.Numbers(copies).words()


def sac_words(copies: int) -> list[str]:
    """Return SAC's words for so many environments."""
    updates = f"algorithm.updates_per_decision={UPDATES / copies}"
    return ["algorithm=sac", f"num_envs={copies}", *SAC, updates]


@dataclass(frozen=True)
class Training:
    """A run.

    Attributes:
        name: of its row.
        task: its id.
        copies: environments side by side.
        steps: with ``scale=1``.
        method: words of the method, by the number of environments.
        beside_brax: whether Brax's PPO is its peer.
    """

    name: str
    task: str
    copies: int
    steps: int
    method: Callable[[int], list[str]] = ppo_words
    beside_brax: bool = True


RUNS = (
    Training("ppo_half_cheetah_4096", "playground/CheetahRun", 4096, 16_000_000),
    Training(
        "sac_half_cheetah_1024",
        "playground/CheetahRun",
        1024,
        2_000_000,
        sac_words,
        beside_brax=False,
    ),  # fmt: skip
    Training("ppo_hopper_stand_4096", "playground/HopperStand", 4096, 8_000_000),
    Training("ppo_walker_run_4096", "playground/WalkerRun", 4096, 8_000_000),
    Training("ppo_half_cheetah_2048", "playground/CheetahRun", 2048, 8_000_000),
    Training("ppo_half_cheetah_8192", "playground/CheetahRun", 8192, 16_000_000),
    Training("ppo_half_cheetah_1024", "playground/CheetahRun", 1024, 4_000_000),
)
"""The most important ones first: a call may end before the last."""


def words_of(training: Training, steps: int) -> list[str]:
    """Return the words of a run, without its folder."""
    words = [f"env={training.task}", *WORDS, *training.method(training.copies)]
    return [*words, f"online_steps={steps}", f"eval_every={steps // EVALUATIONS}"]


def run(training: Training, folder: Path, scale: float) -> tuple[dict[str, Any], str]:
    """Train, and return the row and the run's ``metrics.jsonl``.

    ``ours`` is the median over the lines of its metrics (steps of the environments and learning),
    and ``peer`` that of Brax's, beside PPO; ``seconds`` is our whole run, compiling and evaluations
    included.

    Args:
        training: what is run.
        folder: of the run.
        scale: factor to its steps.
    """
    steps = round(training.steps * scale)
    words = words_of(training, steps)
    started = time.perf_counter()
    result = train(compose_run([*words, f"out={folder}"]))
    seconds = time.perf_counter() - started
    metrics = (result.folder / "metrics.jsonl").read_text(encoding="utf-8")
    returns: dict[int, list[float]] = {}
    for row in pq.read_table(result.folder / "episodes.parquet").to_pylist():
        returns.setdefault(row["env_steps"], []).append(row["return"])
    ours = median_rate([json.loads(line) for line in metrics.splitlines()])
    peer = beside_brax(training, ours, steps) if training.beside_brax else NO_PEER
    row = {
        "name": training.name, "group": "gpu", "unit": "steps/s", "words": words,
        "ours": ours, **peer, "rounds": 1, "ours_threads": 1,
        "seconds": seconds, "returns_by_steps": returns,
    }  # fmt: skip
    return row, metrics


def median_rate(lines: list[dict[str, Any]]) -> float:
    """Return the median of the rates between two lines of a run's ``metrics.jsonl``."""
    marks = [(line["env_steps"], line["seconds"]) for line in lines]
    return statistics.median(
        (steps - before) / (later - earlier)
        for (before, earlier), (steps, later) in zip(marks, marks[1:], strict=False)
        if steps > before and later > earlier
    )


def beside_brax(training: Training, ours: float, steps: int) -> dict[str, Any]:
    """Return what a row has of the peer; where it fails, why."""
    found: dict[str, Any] = {**NO_PEER, "peer_name": "Brax, PPO", "peer_threads": 1}
    task, numbers = training.task.partition("/")[2], brax_side.Numbers(training.copies)
    rates: list[float] = []
    try:
        brax_side.train(task, numbers, PARTS, steps, rates.append)
        peer = statistics.median(rates[1:])
    except Exception as error:  # Brax and JAX raise anything, and our run stands
        told = str(error).strip().splitlines() or [""]
        return {**found, "peer_failed": f"{type(error).__name__}: {told[0]}"}
    ratio = ours / peer
    return {
        **found,
        "peer": peer,
        **dict.fromkeys(("ratio_median", "ratio_min", "ratio_max"), ratio),
    }
