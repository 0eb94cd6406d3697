"""A sample of ``scripts/stop_commands.py``: stopped at a random moment, a command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from loading import load_module


@pytest.fixture(scope="module")
def stops(root: Path) -> Any:
    """The script as a module."""
    return load_module(root / "scripts" / "stop_commands.py")


def test_a_run_that_is_stopped_ends_as_one_left_alone(stops: Any, tmp_path: Path) -> None:
    (whole := tmp_path / "whole").mkdir()
    before = time.monotonic()
    code, shown, told = stops.carry_out(stops.COMMANDS["train"], whole)
    assert code == 0, told
    seconds, expected = time.monotonic() - before, stops.result_of(whole, shown)
    for name, case in {
        "killed": stops.Case(signal.SIGKILL, False, 0.85),
        "interrupted": stops.Case(signal.SIGINT, True, 0.12),  # while it imports
    }.items():
        assert stops.stop("train", case, tmp_path / name, seconds, expected) == 0


def test_results_are_compared_by_what_is_in_them(stops: Any, tmp_path: Path) -> None:
    rows, weights = tmp_path / "rows.parquet", tmp_path / "model.safetensors"
    digests = []
    for seconds, score, content in ((1, 2, b"a"), (9, 2, b"a"), (1, 3, b"a"), (1, 2, b"b")):
        parquet.write_table(pa.table({"seconds": [seconds], "return": [float(score)]}), rows)
        weights.write_bytes(content)
        digests.append(stops.result_of(tmp_path, ""))
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert stops.result_of(tmp_path, '{"return": 1}') != digests[3]


def test_a_process_that_is_nobodys_child_is_seen(stops: Any) -> None:
    word = f"of a test {time.monotonic_ns()}"
    orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0)"
    reading, writing = os.pipe()
    subprocess.run(
        [sys.executable, "-c", orphan], env={**os.environ, "STARTED_BY": word}, stdin=reading,
        check=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30  # a process that has only begun has no environment yet
    while not (found := stops.started_by(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    (left,) = found
    os.close(reading)
    os.close(writing)  # and it ends
    left.wait(30)
    assert stops.started_by(word) == []


def test_cases_follow_from_their_numbers(stops: Any) -> None:
    cases = [stops.case_of(0, "train", number) for number in range(60)]
    assert cases == [stops.case_of(0, "train", number) for number in range(60)]
    assert {case.signal for case in cases} == set(stops.SIGNALS)
    assert all(0.05 <= case.share <= 1 for case in cases) and len(set(cases)) == 60
