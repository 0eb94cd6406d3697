"""A published run is made again: to the bit on one kind of processor, else about as good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.rows import collect_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.processor import processor_kind

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "arena"


def rows_of(folder: Path, **chosen: object) -> list[dict[str, Any]]:
    """Return rows by evaluation and episode, without how long they took."""
    rows = collect_episodes(folder / "episodes.parquet").to_pylist()
    mine = [row for row in rows if chosen.items() <= row.items()]
    bare = [{key: value for key, value in row.items() if key != "seconds"} for row in mine]
    return sorted(bare, key=lambda row: (row["env_steps"], row["updates"], row["eval_episode"]))


@pytest.mark.bits
def test_a_clone_of_the_arena_is_made_again(tmp_path: Path) -> None:
    (job,) = (
        job
        for job in load_suite("arena", str(tmp_path)).jobs
        if (job.name, job.seed) == ("doors-flow", 0)
    )
    result = train(compose_run(job.overrides))
    made = rows_of(result.folder)
    published = rows_of(RESULTS, config_hash=made[0]["config_hash"], seed=0)
    assert len(published) >= 50
    if json.loads((RESULTS / "machine.json").read_text())["processor"] == processor_kind():
        assert made == published
    last = [[row["success"] for row in rows[-50:]] for rows in (made, published)]
    assert abs(np.mean(last[0]) - np.mean(last[1])) <= 0.2
