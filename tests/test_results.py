"""Committed results follow from committed rows, and say what the README says of them."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import re
import runpy
import shutil
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from scipy.stats import t as student

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.board import leaderboard, ranks
from trimtab.benchmarks.board.arena import writing as arena_writing
from trimtab.benchmarks.board.arena.claim_list import read_claims
from trimtab.benchmarks.board.arena.claims import find
from trimtab.benchmarks.board.arena.findings import to_markdown
from trimtab.benchmarks.board.arena.model import Arena
from trimtab.benchmarks.board.arena.table import build as arena_table
from trimtab.benchmarks.board.intervals.contests import (
    contest_interval,
    held_out,
    hindsight,
    paired,
    tasks_interval,
)
from trimtab.benchmarks.board.intervals.improvement import verdict
from trimtab.benchmarks.board.intervals.means import difference_interval
from trimtab.benchmarks.board.modes import CONTROL, read_modes
from trimtab.benchmarks.board.modes import to_markdown as modes_markdown
from trimtab.benchmarks.board.sources import Sources
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.benchmarks.speed.measure import Row, all_pairs
from trimtab.benchmarks.speed.report import markdown
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.folder import inspect_run
from trimtab.benchmarks.training.rows import collect_episodes
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.settings.words import quoted
from trimtab.benchmarks.training.torch_state import matmul_precision
from trimtab.benchmarks.training.train import train

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
PUBLISHED = sorted(path.parent.name for path in RESULTS.glob("*/episodes.parquet"))
OPEN, BLOCKED = "robotics/PointMaze-TwoRoutes-v0", "robotics/PointMaze-TwoRoutes-Blocked-v0"
PUSH, DOORS = "metaworld/push-v3", "robotics/PointMaze-TwoDoors-v0"


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "benchmarks" / "results" / "quickstart"


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    return list(collect_episodes(folder / "episodes.parquet").to_pylist())


def last(rows: list[dict[str, Any]], env: str, algorithm: str, policy: str) -> dict[int, Array]:
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
    assert {*scores} in ({*range(3)}, {*range(5)})
    return scores


def mean(scores: dict[int, Array]) -> float:
    return float(np.mean([s.mean() for s in scores.values()]))


def near(value: Any) -> Any:
    """Return JSON values with numbers that need not agree to the last bit of a processor."""
    if isinstance(value, dict):
        return {key: near(item) for key, item in value.items()}
    if isinstance(value, list):
        return [near(item) for item in value]
    return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value


def cells(text: str) -> list[dict[str, Any]]:
    """Return the lines of a CSV, numbers as numbers."""
    number = re.compile(r"-?\d+\.\d+(e-?\d+)?")
    return [
        {key: float(cell) if number.fullmatch(cell) else cell for key, cell in line.items()}
        for line in csv.DictReader(io.StringIO(text))
    ]


def alike(ours: str, theirs: str) -> bool:
    """Return whether two pages have the same words, and numbers within one of their last digit.

    A number that lies between two roundings may fall to either side on another processor.
    """
    number = re.compile(r"([-+]?\d[\d,]*\.\d+)")
    pairs = list(zip(number.split(ours), number.split(theirs), strict=True))
    least = [10.0 ** -len(kept.partition(".")[2]) for _, kept in pairs[1::2]]
    values = [[float(text.replace(",", "")) for text in pair] for pair in pairs[1::2]]
    near = [abs(new - old) < 1.01 * unit for (new, old), unit in zip(values, least, strict=True)]
    return all(near) and all(new == old for new, old in pairs[::2])


@pytest.mark.bits
@pytest.mark.parametrize("name", PUBLISHED)
def test_tables_are_recomputed_from_the_rows(name: str) -> None:
    folder = RESULTS / name
    committed = json.loads((folder / "leaderboard.json").read_text())
    board = leaderboard.build(
        collect_episodes(folder / "episodes.parquet"),
        sources=Sources(baselines=load_suite(name.replace("-", "_"), "runs").baselines),
        command=committed["command"],
        versions=committed["versions"],
        title=committed["title"],
    )
    assert json.loads(board.to_json()) == near(committed)
    assert alike(board.to_markdown(), (folder / "leaderboard.md").read_text())
    assert cells(board.to_csv()) == near(cells((folder / "leaderboard.csv").read_text()))


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
def test_generative_clones_beat_the_gaussian_in_the_open_maze(
    rows: list[dict[str, Any]], policy: str
) -> None:
    gap = mean(last(rows, OPEN, "bc", policy)) - mean(last(rows, OPEN, "bc", "gaussian"))
    assert gap >= 0.2


@pytest.mark.parametrize("constant", ["frozen", "zero_noise", "golden_ticket"])
def test_where_the_closed_door_is_drawn_steering_beats_what_does_not_look(
    rows: list[dict[str, Any]], constant: str
) -> None:
    steered, control = last(rows, DOORS, "dsrl_sac", "flow"), last(rows, DOORS, constant, "flow")
    gain = difference_interval(steered, control, rate=True)
    assert gain.value >= 0.3 and gain.low > 0.1
    assert all(steered[seed].mean() > control[seed].mean() for seed in steered)


@pytest.mark.parametrize("env", [DOORS, BLOCKED, PUSH])
def test_every_story_has_its_controls(rows: list[dict[str, Any]], env: str) -> None:
    for control in ("frozen", "zero_noise", "golden_ticket", "best_of_n"):
        assert len(last(rows, env, control, "flow")) == 3


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
def test_steering_beats_its_frozen_base_at_the_closed_door(
    rows: list[dict[str, Any]], policy: str
) -> None:
    steered, base = last(rows, BLOCKED, "dsrl_sac", policy), last(rows, BLOCKED, "frozen", policy)
    gain = difference_interval(steered, base, rate=True)
    assert gain.value >= 0.4 and gain.low > 0.2
    assert all(steered[seed].mean() > base[seed].mean() for seed in steered)
    assert max(r["env_steps"] for r in rows if r["algorithm"] == "dsrl_sac") <= 30_000


def test_learning_from_nothing_does_not(rows: list[dict[str, Any]]) -> None:
    scratch = mean(last(rows, BLOCKED, "sac", "tanh_gaussian"))
    assert scratch < mean(last(rows, BLOCKED, "frozen", "flow")) + 0.4


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
def test_the_gain_at_the_closed_door_is_not_that_of_having_no_noise(
    rows: list[dict[str, Any]], policy: str
) -> None:
    calm = last(rows, BLOCKED, "zero_noise", policy)
    steered = last(rows, BLOCKED, "dsrl_sac", policy)
    # By much in every seed; zero noise itself differs so much between them that an interval over
    # three is as wide as the gain.
    assert all(steered[seed].mean() > calm[seed].mean() + 0.4 for seed in steered)


def test_steering_helps_on_push(rows: list[dict[str, Any]]) -> None:
    steered, base = last(rows, PUSH, "dsrl_sac", "flow"), last(rows, PUSH, "frozen", "flow")
    assert mean(steered) - mean(base) >= 0.1


@pytest.fixture(scope="module")
def arena_rows() -> pa.Table:
    """The arena's committed rows."""
    return collect_episodes(RESULTS / "arena" / "episodes.parquet")


@pytest.fixture(scope="module")
def arena(arena_rows: pa.Table) -> Arena:
    """The arena's tables, from its committed rows and records."""
    controls = load_suite("arena", "runs").controls
    records = json.loads((RESULTS / "arena" / "runs.json").read_text())
    return arena_table(arena_rows, records, controls)


def test_the_arena_s_tables_are_recomputed_from_its_rows(arena: Arena, tmp_path: Path) -> None:
    written = arena_writing.write(arena, tmp_path)
    assert {"arena.md", "arena.csv", "curves.csv"} <= {path.name for path in written.values()}
    for path in written.values():
        committed = (RESULTS / "arena" / path.name).read_text()
        if path.suffix == ".csv":
            assert cells(path.read_text()) == near(cells(committed))
        else:
            assert alike(path.read_text(), committed)


def test_a_humanoid_bears_three_late_ticks_and_falls_at_four() -> None:
    with (RESULTS / "robots" / "delay.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["late"] == "actions"]
    stood = Counter((row["network"], int(row["ticks"])) for row in rows if row["success"] == "1")
    judged = Counter((row["network"], int(row["ticks"])) for row in rows)
    assert len(judged) >= 10 and set(judged.values()) == {10}
    assert all(stood[one] == (10 if one[1] < 4 else 0) for one in judged)


def test_a_quadrotor_s_flights_are_told_apart_by_what_it_takes_for_its_last_action() -> None:
    told = (RESULTS / "robots" / "raptor.txt").read_text(encoding="utf-8").splitlines()
    ended = [float(re.search(r"end (\S+) m", line)[1]) for line in told]  # type: ignore[index]
    assert ended[:2] == [0.053, 0.053] and ended[2] > 9


def test_the_whole_search_s_table_is_recomputed_from_its_rows() -> None:
    made = runpy.run_path(str(RESULTS / "arena" / "whole_search.py"))["table"]()
    page = (RESULTS / "arena" / "README.md").read_text(encoding="utf-8")
    assert textwrap.indent(made, "  ") in page


def test_the_table_of_precisions_is_recomputed_from_its_rows() -> None:
    made = runpy.run_path(str(RESULTS / "precision" / "precision.py"))["table"]()
    assert made in (RESULTS / "precision" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_products_are_rounded_forward_and_backward_where_a_run_asks_for_it(precision: str) -> None:
    found = runpy.run_path(str(RESULTS / "precision" / "precision.py"))
    x, weight, slope = (torch.randn(2, 8, 8) for _ in range(3))
    weight.requires_grad_()
    with matmul_precision(precision), found["RoundedProducts"]():
        value = torch.baddbmm(torch.ones(2, 1, 8), x, weight)
        (gradient,) = torch.autograd.grad(value, weight, slope)
    x, rounded, slope = (
        one.bfloat16().float() if precision == "medium" else one
        for one in (x, weight.detach(), slope)
    )
    assert torch.allclose(value, x @ rounded + 1, rtol=1e-5, atol=1e-6)
    assert torch.allclose(gradient, x.mT @ slope, rtol=1e-5, atol=1e-6)


def test_a_gain_is_the_same_in_the_arena_and_on_the_leaderboard(arena: Arena) -> None:
    """Also where the frozen base has more seeds than what starts from it."""
    board = json.loads((RESULTS / "arena" / "leaderboard.json").read_text())
    entries = {one["config_hash"]: one for table in board["tables"] for one in table["entries"]}
    compared = uneven = 0
    for row in (row for contest in arena.contests for row in contest.rows if row.gain is not None):
        entry = entries[row.config_hash]
        if str(entry["baseline"]).startswith("frozen"):
            assert entry["difference"] == pytest.approx(row.gain._asdict())
            compared, uneven = compared + 1, uneven + (len(row.seeds) == 3)
    assert compared > 150 and uneven > 50


def test_the_arena_s_scores_are_those_of_its_rows(arena: Arena, arena_rows: pa.Table) -> None:
    rows = arena_rows.filter(pc.equal(arena_rows["env"], DOORS)).to_pylist()
    doors = [contest for contest in arena.contests if contest.task == "doors"]
    assert {contest.base for contest in doors} == {"flow", "diffusion"}
    for contest in doors:
        (row,) = [row for row in contest.rows if row.label == "golden_ticket"]
        mine = last(rows, DOORS, "golden_ticket", contest.base)
        assert row.score.value == pytest.approx(mean(mine))
        assert row.method in arena.controls and contest.frozen is not None


def test_the_published_bases_are_those_that_the_arena_started_from(
    arena_rows: pa.Table, tmp_path: Path
) -> None:
    bases = RESULTS / "arena" / "bases"
    chosen = pc.is_in(arena_rows["algorithm"], pa.array(["bc", "frozen"]))
    published = arena_rows.filter(chosen).to_pylist()
    known: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in published:
        known.setdefault((row["config_hash"], row["seed"]), []).append(row)
    runs = sorted(path.parent for path in bases.rglob("result.json"))
    assert runs
    for run in runs:
        assert inspect_run(run).state == "done"
        kept = collect_episodes(run / "episodes.parquet").to_pylist()
        assert same(kept) == same(known[kept[0]["config_hash"], kept[0]["seed"]])

    # Copied to where the runs go, they are done, and a method starts from them.
    shutil.copytree(bases, tmp_path / "runs")
    suite = load_suite("arena", str(tmp_path / "runs"), [0], only=("blocked-flow-frozen",))
    clone, frozen = suite.jobs
    base = train(compose_run(clone.overrides)).folder
    assert (bases / base.relative_to(tmp_path / "runs")).is_dir()  # another one would have trained
    run = train(compose_run([*frozen.overrides, f"base={quoted(str(base))}"])).folder
    found = collect_episodes(run / "episodes.parquet").to_pylist()
    again, before = (
        np.mean([row["success"] for row in rows if own.items() <= row.items()])
        for own in [{"env": BLOCKED, "algorithm": "frozen", "policy": "flow", "seed": 0}]
        for rows in (found, published)
    )
    assert abs(again - before) <= 0.1  # a processor of another kind rounds otherwise


def same(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in one order, without how long they took."""
    bare = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    return sorted(bare, key=repr)


# Worked out by hand from `arena.csv`: contests, the difference to the best of three controls in
# hindsight and by the other seeds, with their intervals, and the second one on a new task. There
# the degrees of freedom of all contests were added up, and each contest was a draw of a task.
DIFFERENCES = {
    "nft": (5, (0.17, 0.11, 0.22), (0.21, 0.15, 0.26), (-0.01, 0.42)),
    "dsrl_na": (10, (0.11, 0.06, 0.15), (0.13, 0.08, 0.18), (0.03, 0.24)),
    "ogpo": (5, (0.09, 0.02, 0.16), (0.13, 0.06, 0.20), (-0.11, 0.37)),
    "dsrl_sac": (10, (0.03, -0.07, 0.12), (0.05, -0.04, 0.14), (-0.05, 0.15)),
    "rfs": (10, (-0.06, -0.16, 0.03), (-0.04, -0.13, 0.05), (-0.22, 0.14)),
    "noise_ppo": (10, (-0.13, -0.23, -0.03), (-0.11, -0.21, -0.02), (-0.32, 0.10)),
    "expo": (4, (-0.14, -0.27, -0.02), (-0.14, -0.27, -0.02), (-0.30, 0.01)),
    "dppo": (5, (-0.24, -0.37, -0.12), (-0.23, -0.35, -0.11), (-0.35, -0.10)),
}
# The tasks on which a method had five seeds then, and three on all others. Later ones are left out,
# and so are those of the controls, which had five everywhere.
FIVE_SEEDS = {
    "nft": ("hoop", "outline", "push"),
    "dsrl_na": ("hoop", "outline", "push"),
    "ogpo": ("doors", "blocked", "hoop", "outline", "push"),
    "dsrl_sac": ("doors", "blocked"),
    "dppo": ("doors", "blocked"),
}


@pytest.mark.parametrize("method", DIFFERENCES)
def test_the_differences_to_the_best_control_are_those_worked_out_by_hand(
    arena: Arena, method: str
) -> None:
    count, *known = DIFFERENCES[method]
    below, above = [], []
    for contest in arena.contests:
        rows = {row.method: row for row in contest.rows if row.variant is None}
        if method not in rows or contest.metric != "success":
            continue
        scores = {name: dict(zip(row.seeds, row.finals, strict=True)) for name, row in rows.items()}
        controls = {
            name: {seed: score for seed, score in scores[name].items() if seed < 5}
            for name in ("zero_noise", "golden_ticket", "best_of_n")
        }
        seeds = range(5 if contest.task in FIVE_SEEDS.get(method, ()) else 3)
        ours = {seed: scores[method][seed] for seed in seeds}
        below.append(paired(hindsight(ours, controls)))
        above.append(paired(held_out(ours, controls)))
    assert len(above) == count
    for contrasts, by_hand in zip((below, above), known, strict=False):
        found = contest_interval(contrasts)
        error = math.sqrt(sum(one.variance for one in contrasts)) / count
        half = student.isf(0.025, sum(one.freedom for one in contrasts)) * error
        ends = [found.value, found.value - half, found.value + half]
        assert ends == pytest.approx([*by_hand], abs=0.0075)
        assert found.high - found.low > 2 * half  # by Satterthwaite's degrees of freedom
    assert [*tasks_interval(above)[1:]] == pytest.approx([*known[-1]], abs=0.0075)


def test_claims_are_judged_by_the_rows(
    arena: Arena, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "scripts")
    data = importlib.import_module("publish").contests_in(RESULTS)
    found = find(read_claims(RESULTS / "claims.yaml"), arena, data)
    assert alike(to_markdown(found), (RESULTS / "claims.md").read_text())
    assert len(found) >= 8


def test_released_curves_are_those_of_their_rows() -> None:
    place = RESULTS / "from-nothing"
    made = runpy.run_path(str(place / "released.py"))
    with (place / "released.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert made["page"](rows) == (place / "released.md").read_text(encoding="utf-8")
    # An evaluation counts where it is near: none of the first curve, a later one of the second.
    curves = [{0.0: 1.0, 80.0: 2.0}, {0.0: 1.0, 95.0: 3.0, 104.0: 5.0}]
    (row,) = made["_at"]("x", "y", "z", curves, (100,))
    assert (row["seeds"], row["evaluated_at"], row["mean"]) == (1, 104, 5.0)


def test_modes_are_counted_from_the_rows() -> None:
    place = RESULTS / "from-nothing"
    records = json.loads((place / "runs.json").read_text(encoding="utf-8"))
    runs = read_modes(place / "modes.csv")
    assert alike(modes_markdown(runs, records), (place / "modes.md").read_text(encoding="utf-8"))
    measured = {(one.config_hash, one.seed) for one in runs if one.config_hash != CONTROL}
    assert {one.env for one in runs if one.config_hash == CONTROL} == {one.env for one in runs}
    assert measured == {
        (one["config_hash"], one["seed"])
        for one in records
        if one["place"]["task"] in ("four_goals", "two_routes")
    }


@pytest.mark.bits
def test_the_rows_are_those_that_the_suite_makes(rows: list[dict[str, Any]]) -> None:
    composed: dict[str, RunConfig] = {}
    for job in load_suite("quickstart", "runs").jobs:
        *words, seed = job.overrides
        assert seed == f"seed={job.seed}"  # by which alone the runs of one name differ
        if job.name not in composed:
            composed[job.name] = compose_run([*words, *(["base=x"] if job.base else [])])
        config = composed[job.name]
        mine = [
            r
            for r in rows
            if (r["env"], r["algorithm"], r["seed"]) == (config["env"], config.algorithm, job.seed)
            and (config.policy is None or r["policy"] == config.policy)
        ]
        assert mine, job.label
        steps, updates = max(r["env_steps"] for r in mine), max(r["updates"] for r in mine)
        assert steps < config["online_steps"] + 10, job.label
        method = class_of(config["algorithm"]["_target_"], "algorithm")
        if method.phases is Algorithm.phases:  # one with trials ends before one that might not end
            assert steps >= config["online_steps"], job.label
        else:
            assert steps > 0.8 * config["online_steps"], job.label
        assert updates >= config["offline_steps"], job.label
        assert {r["suite"] for r in mine} == {"quickstart"}


def test_what_is_said_of_online_methods_beside_their_peers_is_what_is_shown() -> None:
    """No method is shown to be behind; of two of the five, nothing can be told.

    Power (``benchmarks/results/coverage/power.csv``): ours being worse by one standard deviation of
    the seeds is called "behind" 12 percent of the time with five seeds a side, half of the time
    with ten, and "not behind" at most 3 percent of the time; the rest is "cannot be told". A
    method that is as good is called "not behind" 27 percent of the time with five, 58 with ten.
    """
    board = json.loads((RESULTS / "online-parity" / "leaderboard.json").read_text())
    shown = {
        (env["env"], entry["label"], len(entry["runs"])): verdict(Interval(**entry["improvement"]))
        for env in board["tables"]
        for entry in env["entries"]
        if entry["baseline"] == f"sb3_{entry['algorithm']}"
    }
    assert shown == {
        ("gym/HalfCheetah-v5", "td3", 5): "not behind",
        ("gym/HalfCheetah-v5", "ppo", 10): "not behind",
        ("gym/Hopper-v5", "ppo", 10): "cannot be told",
        ("gym/Hopper-v5", "sac", 5): "cannot be told",
        ("gym/InvertedDoublePendulum-v5", "ppo", 10): "not behind",
    }
    with (RESULTS / "coverage" / "power.csv").open(newline="") as file:
        power = {(r["seeds"], float(r["worse_by"])): r for r in csv.DictReader(file)}
    for seeds, behind, equal in (("5", 0.12, 0.27), ("10", 0.49, 0.58)):
        assert float(power[seeds, 1.0]["behind"]) == pytest.approx(behind, abs=0.006)
        assert float(power[seeds, 1.0]["not behind"]) <= 0.03
        assert float(power[seeds, 0.0]["not behind"]) == pytest.approx(equal, abs=0.006)


@pytest.mark.bits
def test_the_pages_have_the_tables_of_the_results(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "scripts")
    tables = importlib.import_module("published_tables")
    assert {table.page for table in tables.TABLES} > {"README.md"}
    for table in tables.TABLES:
        page = (root / table.page).read_text()
        assert f"{table.start}\n{table.text(RESULTS)}\n{tables.END}" in page, table.name


@pytest.mark.bits
def test_speed_rows_are_whole_and_their_ratios_those_of_their_rates() -> None:
    rows: list[Row] = []
    for file in RESULTS.glob("*/speed.json"):
        own = [Row(**row) for row in json.loads(file.read_text())]
        assert markdown(own) == file.with_name("speed.md").read_text()
        assert file.with_name("machine.json").is_file()
        rows += own
        assert len({row.name for row in own}) == len(own)
    assert {row.name for row in rows} == {pair.name for pair in all_pairs()}
    for row in rows:
        if row.ratio_median is not None and row.peer is not None:
            assert row.ratio_min is not None and row.ratio_max is not None
            assert row.ratio_min <= row.ours / row.peer * 1.1 and row.rounds >= 3
            assert row.ratio_min <= row.ratio_median <= row.ratio_max


def test_the_order_of_estimates_follows_from_their_rows() -> None:
    folder = RESULTS / "off-policy-evaluation"
    with (folder / "offline_estimates.csv").open() as file:
        lines = list(csv.DictReader(file))
    judged = [
        ranks.Judged(
            run=line["run"], label=line["label"], updates=int(line["updates"]),
            true_return=float(line["true_return"]),
            estimates={
                name: float(line[name])
                for name in ("fitted_q", "importance", "model")
                if line[name]
            },
        )
        for line in lines
    ]  # fmt: skip
    text = ranks.to_markdown(ranks.rank(judged))
    assert text == (folder / "offline_ranks.md").read_text()
    readme = (folder / "README.md").read_text()
    for name, shown in (("fitted_q", "fitted Q evaluation"), ("model", "model rollouts")):
        assert f"| {name} |" in text
        (found,) = re.findall(rf"\| {name} \| (.*) \| 39 \|", text)
        assert f"| {shown} | {found} |" in readme


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


@pytest.mark.parametrize("name", ["offline", "offline_to_online"])
def test_the_suites_of_data_hold_their_cpu_scale(name: str, root: Path) -> None:
    wanted = {(job.name, job.seed) for job in load_suite(name, "runs", scale="cpu").jobs}
    place = root / "benchmarks" / "results" / name.replace("_", "-")
    records = json.loads((place / "runs.json").read_text(encoding="utf-8"))
    found = {(record["name"], record["seed"]) for record in records}
    assert wanted <= found
    # What is more are later seeds of the same runs, which claims have asked for.
    assert {name for name, _ in found} == {name for name, _ in wanted}


def test_the_next_looks_are_of_claims_that_are_not_told_and_within_their_budgets(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "scripts")
    looks = importlib.import_module("publish").next_looks(RESULTS)
    page = (RESULTS / "claims.md").read_text(encoding="utf-8")
    for one in looks:
        (line,) = (row for row in page.splitlines() if row.startswith(f"| {one.claim.text} (looks"))
        assert "**not told yet**" in line
        assert one.look in one.claim.looks and one.hours >= 0
    runs = [(one.claim.suite, run) for one in looks for run in one.runs]
    assert len(runs) == len(set(runs))
