"""The suites of data at toy size, two methods of each: runs, leaderboard and tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.errors import TrimtabError


def carried_out(name: str, *words: str) -> Path:
    """Carry a part of a suite out below the current folder; return the folder of its tables."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", f"suite={name}", "scale=ci", *words])
    assert not ended.value.code
    return Path("runs", "suites", f"{name}-ci-part")


def lines_of(path: Path) -> dict[str, dict[str, str]]:
    with path.open() as file:
        return {
            line["method" if "method" in line else "label"]: line for line in csv.DictReader(file)
        }


def test_offline_at_toy_size(
    in_this_process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = carried_out("offline", "only=*-td3_bc,*-rebrac*", in_this_process)
    rows = read_episodes(folder / "episodes.parquet")
    assert {*rows["algorithm"].to_pylist()} == {"td3_bc", "rebrac"}
    # No method has learned from anything but the data: the judge's episodes are not theirs.
    assert {*rows["env_steps"].to_pylist()} == {0}
    for path in (tmp_path / "runs").rglob("result.json"):
        assert json.loads(path.read_text())["env_steps"] == 0
    found = lines_of(folder / "budgeted.csv")
    candidates = {name.partition(" ")[0]: line["candidates"] for name, line in found.items()}
    # One setting and two seeds, and twice as many where its authors have a setting for this data.
    assert candidates == {"td3_bc": "2", "rebrac": "4"}
    assert "# Budgeted scores" in (folder / "budgeted.md").read_text()
    assert "trimtab-v0, last" in (folder / "normalised.md").read_text()
    # One setting for all data in one table, that of its authors for this data in the other.
    assert {*lines_of(folder / "normalised.csv")} == {"td3_bc", "rebrac"}
    assert {*lines_of(folder / "published.csv")} == {"td3_bc", "rebrac~published"}


def test_offline_to_online_at_toy_size(
    in_this_process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = carried_out("offline_to_online", "only=*-td3_bc,*-cal_ql", in_this_process)
    found = lines_of(folder / "switch.csv")
    assert {*found} == {"td3_bc", "cal_ql"}
    assert {line["seeds"] for line in found.values()} == {"2"}
    assert all(float(line["drop"]) <= 0 for line in found.values())
    steps = {*read_episodes(folder / "episodes.parquet")["env_steps"].to_pylist()}
    assert 0 in steps and max(steps) == 60


@pytest.mark.parametrize(("name", "runs"), [("offline", 177), ("offline_to_online", 60)])
def test_the_cpu_scale_is_what_it_says(name: str, runs: int) -> None:
    suite = load_suite(name, "runs", scale="cpu")
    assert len(suite.jobs) == runs
    assert all("offline_steps=" in " ".join(job.overrides) for job in suite.jobs)
    narrow = {job.name for job in suite.jobs if "algorithm.hidden=[128,128]" in job.overrides}
    assert "hopper_medium_replay-iql" in narrow
    assert "hopper_medium_replay-clone_flow" not in narrow  # cloning has no such setting


def test_a_table_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(
        "title: t\nseeds: [0]\ntables: [bugdeted]\nruns: {a: {overrides: [env=gym/Hopper-v5]}}\n"
    )
    with pytest.raises((SystemExit, TrimtabError)) as ended:
        main(["bench", f"suite={tmp_path}/mine.yaml", f"runs={tmp_path}/runs"])
    assert getattr(ended.value, "code", 2) == 2
    assert "budgeted" in capfd.readouterr().err and not (tmp_path / "runs").exists()
