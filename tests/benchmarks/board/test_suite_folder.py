"""A leaderboard of a suite's own folder compares what the suite compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.sources import collect
from trimtab.benchmarks.training.rows import FILE_NAME, SUITE_NOTE, write_episodes
from trimtab.errors import TrimtabError


def test_what_a_suite_has_noted_is_compared(
    synthetic: Callable[[Sequence[Any]], pa.Table], method: Any, tmp_path: Path
) -> None:
    other = replace(method, algorithm="ppo", config_hash="bb", levels=(0.4,))
    write_episodes(tmp_path / FILE_NAME, synthetic([method, other]))

    def baselines(noted: Any, **options: Any) -> dict[str, str | None]:
        (tmp_path / SUITE_NOTE).write_text(json.dumps(noted))
        table, sources = collect(options.pop("place", tmp_path))
        (here,) = build(table, sources=sources, **options).tables
        return {entry.label: entry.baseline for entry in here.entries}

    assert baselines({}) == {"sac": None, "ppo": None}
    noted = {"baselines": {"sac": "ppo", "gone": "sac", "ppo": None}}
    assert baselines(noted) == {"sac": "ppo", "ppo": None}
    assert baselines(noted, place=tmp_path / FILE_NAME) == {"sac": "ppo", "ppo": None}
    assert baselines(noted, baselines="sac") == {"sac": None, "ppo": "sac"}  # what is asked counts
    assert baselines([]) == {"sac": None, "ppo": None}  # of another program
    for damaged in ([3], {"sac": ["x"]}, {"sac": 3}, "sac"):
        with pytest.raises(TrimtabError, match="suite.json: its baselines must be methods by name"):
            baselines({"baselines": damaged})
    (tmp_path / SUITE_NOTE).write_text("{")
    with pytest.raises(TrimtabError, match="suite.json is not readable JSON .* bench again"):
        collect(tmp_path)
