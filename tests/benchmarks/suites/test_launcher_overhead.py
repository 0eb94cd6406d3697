"""The script that measures what launchers cost: its table by hand, and wrong words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loading import load_module


@pytest.fixture(scope="module")
def script(root: Path) -> Any:
    return load_module(root / "benchmarks" / "results" / "launchers" / "launcher_overhead.py")


def test_the_table_has_medians_and_ends(script: Any) -> None:
    times = [(9.0, 1.0), (7.0, 3.0), (8.0, 0.25)]
    rows = [
        {"launcher": name, "two_runs": few, "further_run": more}
        for name in script.LAUNCHERS
        for few, more in times
    ]
    lines = script.table(rows).splitlines()
    assert len(lines) == 2 + len(script.LAUNCHERS)
    assert lines[2] == "| local | 8.0 (7.0 to 9.0) | 1.0 (0.2 to 3.0) |"


def test_the_published_table_is_that_of_the_published_rows(script: Any, root: Path) -> None:
    folder = root / "benchmarks" / "results" / "launchers"
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    assert script.table(rows) == (folder / "launchers.md").read_text(encoding="utf-8")
    for row in rows:
        more = (row["ten_runs"] - row["two_runs"]) / (script.MANY - script.FEW)
        assert row["further_run"] == pytest.approx(more, abs=0.01)
    page = (root / "docs" / "scaling.md").read_text(encoding="utf-8")
    said = [line for line in page.splitlines() if " s | " in line]
    for line, found in zip(script.table(rows).splitlines()[2:], said, strict=True):
        name, few, more = (cell.split(" (")[0].strip("| ") for cell in line.split(" | "))
        assert f"| {few} s | {more} s |" in found
        assert name.split(",")[0] in found or "the same with" in found


def test_a_suite_of_nothing_comes_to_its_end(script: Any) -> None:
    assert script.measure(script.LAUNCHERS["local"], 1) > 0
