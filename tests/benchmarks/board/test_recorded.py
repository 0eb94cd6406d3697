"""Rows are held against the results of their runs, and a suite's missing seeds are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.sources import collect
from trimtab.benchmarks.training.rows import SUITE_NOTE, read_episodes, write_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError


@pytest.fixture(scope="module")
def clones(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three seeds of a clone, each evaluated three times."""
    out = tmp_path_factory.mktemp("clones")
    for seed in range(3):
        train(compose_run([*tiny.cloning(out), f"seed={seed}"]))
    return out


@pytest.fixture
def runs(clones: Path, tmp_path: Path) -> Path:
    return shutil.copytree(clones, tmp_path / "runs")


def run_of(runs: Path, seed: int) -> Path:
    (folder,) = runs.rglob(f"seed{seed}")
    return folder


def board_of(place: Path) -> Any:
    table, sources = collect(place)
    return build(table, sources=sources)


def changed(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values))


@pytest.mark.parametrize(
    ("name", "row", "value", "said"),
    [
        ("return", 5, 139.0, "a mean return of"),
        ("return", 0, -1.0, "a mean return of"),  # of the first evaluation, not of the last
        ("success", 4, None, "a success rate of"),
        ("updates", 5, 121, "a number of episodes of"),
    ],
)
def test_an_edited_row_is_refused_by_run_and_evaluation(
    name: str, row: int, value: Any, said: str, runs: Path
) -> None:
    assert board_of(runs).tables
    folder = run_of(runs, 1)
    table = read_episodes(folder / "episodes.parquet")
    if name == "success":
        value = not table["success"][row].as_py()
    write_episodes(folder / "episodes.parquet", changed(table, name, row, value))
    at = table["updates"][row].as_py()
    with pytest.raises(TrimtabError, match=f"and {at} updates its result recorded {said}") as told:
        board_of(runs)
    assert str(folder) in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(TrimtabError, match="its result recorded"):
        board_of(folder / "episodes.parquet")  # also where the file is named alone


def test_a_row_that_is_gone_or_a_result_of_another_run_is_refused(runs: Path) -> None:
    folder = run_of(runs, 2)
    table = read_episodes(folder / "episodes.parquet")
    last = pc.equal(table["updates"], pc.max(table["updates"]))
    write_episodes(folder / "episodes.parquet", table.filter(pc.invert(last)))
    with pytest.raises(TrimtabError, match="and the rows have no rows; restore"):
        board_of(runs)
    write_episodes(folder / "episodes.parquet", table)
    assert board_of(runs).tables
    result = json.loads((folder / "result.json").read_text())
    for wrong in ({"evaluations": 3}, {"spending": "x"}, {"evaluations": [{"env_steps": "x"}]}):
        (folder / "result.json").write_text(json.dumps(result | wrong))
        assert any("seed2 is broken" in note for note in board_of(runs).notes)


def test_seeds_of_a_suite_that_are_missing_are_named(runs: Path, tmp_path: Path) -> None:
    suite = runs / "suites" / "mine"
    suite.mkdir(parents=True)
    folders = {f"clone/{seed}": str(run_of(runs, seed)) for seed in range(3)}
    (suite / SUITE_NOTE).write_text(json.dumps({"folders": folders}))
    assert not board_of(runs).notes
    for seed in (0, 2):
        shutil.rmtree(run_of(runs, seed))
    assert "Missing of the suite mine: clone seeds 0, 2." in board_of(runs).notes
    (suite / SUITE_NOTE).write_text(json.dumps({"folders": folders, "waiting": ["other/7"]}))
    notes = board_of(runs).notes
    assert "Missing of the suite mine: clone seeds 0, 2; other seed 7." in notes
    (suite / SUITE_NOTE).write_text(json.dumps({"folders": folders, "waiting": 3}))
    assert "Missing of the suite mine: clone seeds 0, 2." in board_of(runs).notes
    # A folder of other runs, and a run, have nothing to do with a suite beside or above them.
    shutil.copytree(run_of(runs, 1), suite / "others" / "clone" / "ab" / "seed1")
    for place in (suite / "others", suite / "others" / "clone" / "ab" / "seed1"):
        assert "Missing" not in " ".join(board_of(place).notes)
    shutil.rmtree(suite / "others")
    # In a suite's own folder its rows are held against the runs that it has noted.
    write_episodes(suite / "episodes.parquet", collect(run_of(runs, 1))[0])
    assert board_of(suite).tables
    table = read_episodes(suite / "episodes.parquet")
    write_episodes(suite / "episodes.parquet", changed(table, "return", 3, 139.0))
    with pytest.raises(TrimtabError, match="its result recorded a mean return of"):
        board_of(suite)


def test_methods_with_other_seeds_are_named(synthetic: Any, method: Any) -> None:
    other = replace(method, algorithm="ppo", config_hash="bb", seeds=(0, 1, 4))
    (note,) = (note for note in build(synthetic([method, other])).notes if "seeds" in note)
    assert note == "gym/X-v0: not every method has the same seeds: sac lacks 4."
    with_gain = build(synthetic([method, other]), baselines="sac")
    assert any("over the seeds that both sides have" in note for note in with_gain.notes)
