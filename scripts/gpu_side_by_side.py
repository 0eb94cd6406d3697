"""Runs that share one GPU: how many an hour, with 1, 4 and 16 side by side.

A part of ``scripts/gpu.py``. It is ``trimtab bench`` of a suite of equal runs, one for each worker,
from the start of its process to its table: SAC on Hopper, whose physics is on the processor's cores
and whose updates are graphs on the GPU. All of it counts, the start of each run's process included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from gpu_training import NO_PEER

from trimtab.errors import TrimtabError

__all__ = ["WORKERS", "run"]

WORKERS = (1, 4, 16)
STEPS = 6_000
"""Environment steps of a run, most of them with an update, with ``scale=1``."""


def words(steps: int) -> list[str]:
    """Return the words of a run."""
    return [
        "env=gym/Hopper-v5", "algorithm=sac", f"algorithm.warmup_steps={steps // 6}",
        f"online_steps={steps}", f"eval_every={steps}", "eval_episodes=4",
    ]  # fmt: skip


def run(workers: int, folder: Path, scale: float, device: str = "cuda") -> dict[str, Any]:
    """Carry as many runs out as there are workers, and return the row.

    Raises:
        TrimtabError: if the suite did not come to its end; it has what was said last.
    """
    overrides = words(round(STEPS * scale))
    suite = {
        "title": "Side by side",
        "seeds": list(range(workers)),
        "runs": {"sac": {"seconds": 30, "overrides": overrides}},
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
    started = time.perf_counter()
    command = ["bench", "suite=suite.yaml", f"device={device}", f"workers={workers}"]
    done = subprocess.run(
        [sys.executable, "-m", "trimtab.benchmarks.cli.main", *command],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    if done.returncode:
        told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise TrimtabError(f"{workers} runs side by side: {told[-1]}")
    return {
        "name": f"side_by_side_{workers}", "group": "gpu", "unit": "runs/hour", "words": overrides,
        "ours": 3600 * workers / seconds, **NO_PEER, "rounds": 1, "ours_threads": 1,
        "seconds": seconds,
    }  # fmt: skip
