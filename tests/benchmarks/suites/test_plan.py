"""What a suite will take is said before anything of it runs; files beside it are found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.settings import outside
from trimtab.errors import TrimtabError

SAC = ["env=gym/Hopper-v5", "algorithm=sac"]


def planned(file: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert trimtab(["bench", f"suite={file}", "plan", "format=json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def write(folder: Path, runs: dict[str, Any]) -> Path:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"title": "Mine", "seeds": [0, 1], "runs": runs}))
    return file


def test_hours_are_guessed_told_or_measured(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    maze = ["env=robotics/PointMaze-TwoRoutes-v0", "policy=flow", f"dataset={tiny.dataset}"]
    file = write(
        tmp_path,
        {
            "guessed": {"overrides": [*SAC, "online_steps=90000"]},
            "told": {"overrides": [*SAC, "online_steps=5000"], "seconds": 1800, "seeds": [0]},
            "clone": {"overrides": [*maze, "algorithm=bc", "offline_steps=600"]},
            "made": {"overrides": [*SAC[:1], "algorithm=td3_bc", "dataset=hopper_medium"]},
        },
    )
    found = planned(file, capsys, "workers=4")
    runs = {one["run"]: one for one in found["runs"]}
    assert runs["guessed"]["hours"] == pytest.approx(2 * 180 / 3600)
    assert runs["guessed"]["hours_from"] == runs["clone"]["hours_from"] == "rough guess"
    assert runs["told"]["hours"] == 0.5 and runs["told"]["hours_from"] == "suite's file"
    assert runs["guessed"]["steps"] == 90000 and runs["clone"]["updates"] == 600
    assert found["hours"] == pytest.approx(sum(one["hours"] for one in runs.values()))
    assert found["hours_side_by_side"] == pytest.approx(found["hours"] / 4)
    assert found["recipes"] == ["trimtab/hopper-medium-v0"]
    assert not (tmp_path / "runs").exists()
    shutil.copytree(tiny.base.parents[4], tmp_path / "runs", ignore=shutil.ignore_patterns("data*"))
    clone = {one["run"]: one for one in planned(file, capsys)["runs"]}["clone"]
    seconds = json.loads((tiny.base / "result.json").read_text())["seconds"]
    assert clone["hours_from"] == "measured"
    assert clone["hours"] == pytest.approx(2 * 10 * seconds / 3600)  # ten times as many updates
    monkeypatch.setenv("COLUMNS", "200")
    assert trimtab(["bench", f"suite={file}", "plan", "workers=4"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"[\d.]+ (min|h) of one core, .*[\d.]+ (min|h) with 4 runs side by side", told)
    assert "│ guessed │ 2 │ 0 │ 0 │ 90,000 │ 6 min │ rough guess │" in told


def test_what_takes_no_second_is_not_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = {"sac": {"overrides": [*SAC, "online_steps=10"], "seconds": 0.1}}
    assert trimtab(["bench", f"suite={write(tmp_path, runs)}", "plan"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "less than 1 s of one core" in told and "about less" not in told


def test_runs_that_are_done_are_no_longer_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, {"sac": {"overrides": [*SAC, "online_steps=1000"]}})
    noted = tmp_path / "runs" / "suites" / "mine"
    noted.mkdir(parents=True)
    note = {"suite": "mine.yaml", "folders": {"sac/0": "a folder"}, "waiting": ["sac/1"]}
    (noted / "suite.json").write_text(json.dumps(note))
    (one,) = planned(file, capsys)["runs"]
    assert (one["seeds"], one["done"], one["hours"]) == (2, 1, pytest.approx(2 / 3600))
    write(tmp_path, {"sac": {"overrides": [*SAC, "online_step=1000"]}})
    with pytest.raises(TrimtabError, match="did you mean online_steps"):
        trimtab(["bench", f"suite={file}", "plan"])


def test_files_of_settings_are_found_beside_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside, "_made", [])
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    head = "# @package _global_\nalgorithm:\n  _target_: trimtab.algorithms.off_policy.sac.SAC\n"
    (tmp_path / "there" / "beside.yaml").write_text(head + "  tau: 0.25\n")
    (tmp_path / "here" / "in_place.yaml").write_text(head + "  tau: 0.5\n")
    overrides = {
        name: {"overrides": [SAC[0], f"algorithm=./{name}.yaml"]} for name in ("beside", "in_place")
    }
    file = write(tmp_path / "there", overrides)
    taus = [one["algorithm"]["tau"] for one in load_suite(str(file), "runs").composed.values()]
    assert taus == [0.25, 0.5]
    recipe = {
        "id": "my/maze-v0",
        "env": "robotics/PointMaze-TwoRoutes-v0",
        "episodes": 1,
        "seed": 0,
    }
    (tmp_path / "here" / "maze.yaml").write_text(yaml.safe_dump(recipe))
    for words, said in (
        (["dataset", "make", "./in_place.yaml"], "in_place.yaml: is no recipe; one has id, env"),
        (["dataset", "make", "./nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["dataset", "make", "./maze.yaml"], "maze.yaml: is no recipe"),
        (["train", "--help", "algorithm=./nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ):
        with pytest.raises(TrimtabError, match=said):
            trimtab(words)
    assert trimtab(["train", "--help", "algorithm=./in_place.yaml"]) == 0
    assert "algorithm.tau: 0.5" in capsys.readouterr().out
