"""Committed results follow from committed rows, and say what the README says of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.benchmarks import leaderboard, stats
from trimtab.benchmarks.config import compose_run
from trimtab.benchmarks.rows import collect_episodes
from trimtab.benchmarks.speed import Row, all_pairs
from trimtab.benchmarks.speed_report import markdown
from trimtab.benchmarks.suite import load_suite

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
PUBLISHED = sorted(path.parent.name for path in RESULTS.glob("*/episodes.parquet"))
OPEN, BLOCKED = "robotics/PointMaze-TwoRoutes-v0", "robotics/PointMaze-TwoRoutes-Blocked-v0"
PUSH = "metaworld/push-v3"


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "benchmarks" / "results" / "quickstart"


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = collect_episodes(folder / "episodes.parquet").to_pylist()
    return table


def last(
    rows: list[dict[str, Any]], env: str, algorithm: str, policy: str
) -> dict[int, NDArray[np.float64]]:
    """Return the successes of each seed's last evaluation, computed without the leaderboard."""
    chosen = [
        r for r in rows if (r["env"], r["algorithm"], r["policy"]) == (env, algorithm, policy)
    ]
    assert chosen, (env, algorithm, policy)
    scores = {}
    for seed in {r["seed"] for r in chosen}:
        mine = [r for r in chosen if r["seed"] == seed]
        end = max(r["env_steps"] for r in mine)
        final = [r for r in mine if r["env_steps"] == end]
        assert len({r["eval_seed"] for r in final}) == len(final) == 50
        scores[seed] = np.array([r["success"] for r in final], dtype=np.float64)
    assert sorted(scores) == [0, 1, 2]
    return scores


def mean(scores: dict[int, NDArray[np.float64]]) -> float:
    return float(np.mean([s.mean() for s in scores.values()]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_tables_are_recomputed_from_the_rows(name: str) -> None:
    folder = RESULTS / name
    committed = json.loads((folder / "leaderboard.json").read_text())
    board = leaderboard.build(
        collect_episodes(folder / "episodes.parquet"),
        baselines=load_suite(name.replace("-", "_"), "runs").baselines or None,
        command=committed["command"],
        versions=committed["versions"],
        title=committed["title"],
    )
    assert json.loads(board.to_json()) == committed
    assert board.to_markdown() == (folder / "leaderboard.md").read_text()
    assert board.to_csv() == (folder / "leaderboard.csv").read_text()


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
def test_generative_clones_beat_the_gaussian_in_the_open_maze(
    rows: list[dict[str, Any]], policy: str
) -> None:
    gap = mean(last(rows, OPEN, "bc", policy)) - mean(last(rows, OPEN, "bc", "gaussian"))
    assert gap >= 0.2


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
@pytest.mark.parametrize("algorithm", ["dsrl_sac", "dsrl_na"])
def test_steering_beats_its_frozen_base_at_the_closed_door(
    rows: list[dict[str, Any]], algorithm: str, policy: str
) -> None:
    steered, base = last(rows, BLOCKED, algorithm, policy), last(rows, BLOCKED, "frozen", policy)
    gain = stats.difference_interval(steered, base)
    assert gain.value >= 0.4 and gain.low > 0
    assert all(steered[seed].mean() > base[seed].mean() for seed in steered)
    assert max(r["env_steps"] for r in rows if r["algorithm"] == algorithm) <= 30_000


def test_learning_from_nothing_does_not(rows: list[dict[str, Any]]) -> None:
    scratch = mean(last(rows, BLOCKED, "sac", "tanh_gaussian"))
    assert scratch < mean(last(rows, BLOCKED, "frozen", "flow")) + 0.4


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
def test_the_gain_at_the_closed_door_is_not_that_of_having_no_noise(
    rows: list[dict[str, Any]], policy: str
) -> None:
    calm = last(rows, BLOCKED, "zero_noise", policy)
    assert stats.difference_interval(last(rows, BLOCKED, "dsrl_sac", policy), calm).low > 0.4


def test_steering_helps_on_push(rows: list[dict[str, Any]]) -> None:
    steered, base = last(rows, PUSH, "dsrl_sac", "flow"), last(rows, PUSH, "frozen", "flow")
    assert mean(steered) - mean(base) >= 0.1


def test_the_rows_are_those_that_the_suite_makes(rows: list[dict[str, Any]]) -> None:
    for job in load_suite("quickstart", "runs").jobs:
        config = compose_run([*job.overrides, *(["base=x"] if job.base else [])])
        mine = [
            r
            for r in rows
            if (r["env"], r["algorithm"], r["seed"])
            == (config["env"], config.algorithm, config["seed"])
            and (config.policy is None or r["policy"] == config.policy)
        ]
        assert mine, job.label
        steps, updates = max(r["env_steps"] for r in mine), max(r["updates"] for r in mine)
        assert config["online_steps"] <= steps < config["online_steps"] + 10, job.label
        assert updates >= config["offline_steps"], job.label
        assert {r["suite"] for r in mine} == {"quickstart"}


def test_online_methods_are_not_behind_their_peers() -> None:
    board = json.loads((RESULTS / "online-parity" / "leaderboard.json").read_text())
    compared = [entry for env in board["tables"] for entry in env["entries"] if entry["baseline"]]
    assert len(compared) == 4 and all(len(entry["runs"]) >= 5 for entry in compared)
    for entry in compared:
        assert entry["baseline"] == f"sb3_{entry['algorithm']}"
        assert entry["improvement"]["high"] >= 0.5, entry["label"]


def test_the_readme_has_the_tables_of_the_results(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("publish", root / "scripts" / "publish.py")
    assert spec is not None and spec.loader is not None
    publish = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(publish)
    readme = (root / "README.md").read_text()
    for name, (file, lines) in publish.TABLES.items():
        content = json.loads((RESULTS / name / file).read_text())
        assert publish.markdown(lines(content)) in readme, name


def test_speed_rows_are_whole_and_their_ratios_those_of_their_rates() -> None:
    folder = RESULTS / "speed"
    rows = [Row(**row) for row in json.loads((folder / "speed.json").read_text())]
    assert {row.name for row in rows} == {pair.name for pair in all_pairs()}
    assert markdown(rows) == (folder / "speed.md").read_text()
    for row in rows:
        if row.ratio_median is not None and row.peer is not None:
            assert row.ratio_min is not None and row.ratio_max is not None
            assert row.ratio_min <= row.ours / row.peer * 1.1 and row.rounds >= 3
            assert row.ratio_min <= row.ratio_median <= row.ratio_max


def test_streaming_keeps_to_its_aims_and_the_readme_to_its_rows() -> None:
    folder = RESULTS / "streaming"
    rows = {row["name"]: row for row in json.loads((folder / "rows.json").read_text())}
    readme = (folder / "README.md").read_text()
    strangers = [f"first_load_{name}" for name in ("d4rl", "robomimic", "lerobot")]
    for name in ("first_load", "later_load", *strangers):
        row = rows[name]
        assert row["transitions"] == 10_000_000
        assert row["peak_gb_loaded"] <= row["peak_gb_after_statistics_and_sampling"] < 2.0
        cells = [row[k] for k in ("seconds", "peak_gb_loaded", "own_gb_after")]
        cells.insert(2, row["peak_gb_after_statistics_and_sampling"])
        assert f"| {' | '.join(map(str, cells))} |" in readme
    for name in ("sample", "sample_5_step_returns"):
        row = rows[name]
        assert row["ratio_min"] <= row["ratio_median"] <= row["ratio_max"]
        assert row["ratio_median"] >= 0.6
        keys = ("streamed", "in_memory", "ratio_median", "ratio_min", "ratio_max")
        assert f"| {' | '.join(str(row[key]) for key in keys)} |" in readme
