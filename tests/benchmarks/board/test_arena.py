"""The arena's numbers against counts by hand, and its tables from rows of known runs."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.board.arena import figure, writing
from trimtab.benchmarks.board.arena.differences import FOREST, differences
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow
from trimtab.benchmarks.board.arena.table import area_under, build, worst_drop
from trimtab.benchmarks.board.groups import grouped
from trimtab.benchmarks.board.intervals.means import difference_interval
from trimtab.benchmarks.board.intervals.runs import start_variance
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table
from trimtab.types import TrimtabError

EPISODES = 10
# By method: the successes of ten episodes at each evaluation, by seed.
SUCCESSES: dict[str, list[list[int]]] = {
    "frozen": [[4], [5]],
    "zero_noise": [[6], [7]],
    "dsrl_sac": [[2, 6, 9], [5, 8, 10]],
    "dsrl_sac~wide": [[5, 9, 10], [5, 9, 10]],
    "sac": [[0, 0, 1], [0, 1, 1]],
}
STEPS = (0, 500, 1000)


def rows_and_runs() -> tuple[list[EpisodeRow], list[dict[str, Any]]]:
    """One task from one kind of base, two seeds."""
    rows, runs = [], []
    for name, of_seeds in SUCCESSES.items():
        method, _, variant = name.partition("~")
        for seed, counts in enumerate(of_seeds):
            at = STEPS[-len(counts) :] if len(counts) > 1 else (0,)
            places = [
                {"env_steps": step, "updates": step, "episodes": step // 50, "seconds": step / 10}
                for step in at
            ]
            rows += [
                EpisodeRow(
                    env="gym/X-v0", algorithm=method, seed=seed, env_steps=step, updates=step,
                    eval_episode=episode, eval_seed=episode, return_=float(episode < count),
                    length=5, config_hash=name, policy="flow", base=None, fingerprint="f",
                    success=episode < count,
                )
                for step, count in zip(at, counts, strict=True)
                for episode in range(EPISODES)
            ]  # fmt: skip
            place = {"task": "x", "base": None if method == "sac" else "flow", "method": method}
            runs.append(
                {
                    "name": f"x-flow-{name}",
                    "seed": seed,
                    "config_hash": name,
                    "place": {**place, "variant": variant or None},
                    "evaluations": places,
                    "seconds": 10.0 * seed,
                    "trained_parameters": 7,
                    "offline_share": 0.5 if method == "sac" else 0.0,
                    **({"decision_ms": {"torch": 1.0, "onnx": 0.5}} if seed == 0 else {}),
                }
            )
    return rows, runs


CONTROLS = ["frozen", "zero_noise"]


@pytest.fixture(scope="module")
def arena() -> Arena:
    rows, runs = rows_and_runs()
    return build(episodes_table(rows), runs, CONTROLS)


def row_of(arena: Arena, label: str) -> ArenaRow:
    (contest,) = arena.contests
    return next(row for row in contest.rows if row.label == label)


def test_area_is_the_trapezium_rule() -> None:
    curve = [(500, 0.6), (1000, 1.0)]
    assert area_under(curve, 1000, 0.2) == pytest.approx((0.4 * 500 + 0.8 * 500) / 1000)
    # Without a base it is level up to the first evaluation; what ends early holds its score.
    assert area_under(curve, 2000, None) == pytest.approx((0.6 * 500 + 0.8 * 500 + 1000) / 2000)
    assert area_under([(0, 0.3)], 1000, 0.5) == 0.3
    grid = np.linspace(0, 1000, 100_001)
    dense = np.interp(grid, [0, 500, 1000], [0.2, 0.6, 1.0])
    assert area_under(curve, 1000, 0.2) == pytest.approx(dense.mean(), abs=1e-5)


def test_worst_drop_is_below_the_base_or_nothing() -> None:
    assert worst_drop([(0, 0.5), (1, 0.2), (2, 0.9)], 0.4) == pytest.approx(-0.2)
    assert worst_drop([(0, 0.5), (1, 0.6)], 0.4) == 0.0


def test_a_gain_is_over_the_best_control_of_the_contest(arena: Arena) -> None:
    steered = row_of(arena, "dsrl_sac")
    assert steered.control == "zero_noise"
    ours = {0: np.array([1.0] * 9 + [0.0]), 1: np.ones(10)}
    best = {0: np.array([1.0] * 6 + [0.0] * 4), 1: np.array([1.0] * 7 + [0.0] * 3)}
    base = {0: np.array([1.0] * 4 + [0.0] * 6), 1: np.array([1.0] * 5 + [0.0] * 5)}
    assert steered.control_gain == pytest.approx(difference_interval(ours, best, rate=True))
    assert steered.gain == pytest.approx(difference_interval(ours, base, rate=True))
    assert row_of(arena, "zero_noise").control_gain is None
    assert row_of(arena, "frozen").gain is None


def test_a_method_with_fewer_seeds_is_held_against_the_bases_that_it_started_from(
    arena: Arena,
) -> None:
    """A third base, from which only the controls have runs, is far better; no gain counts it."""
    rows, runs = rows_and_runs()
    further = [replace(row, seed=2, success=True) for row in rows if row.seed == 1]
    rows += [row for row in further if row.algorithm in CONTROLS]
    runs += [
        {**run, "seed": 2}
        for run in runs
        if run["seed"] == 1 and run["place"]["method"] in CONTROLS
    ]
    of_three = build(episodes_table(rows), runs, CONTROLS)
    for label in ("dsrl_sac", "dsrl_sac (wide)", "sac"):
        one, known = row_of(of_three, label), row_of(arena, label)
        assert (one.gain, one.control_gain) == (known.gain, known.control_gain)
    assert row_of(of_three, "frozen").seeds == (0, 1, 2)
    assert row_of(of_three, "zero_noise").gain != row_of(arena, "zero_noise").gain


def test_area_regret_and_drop_of_each_row(arena: Arena) -> None:
    steered, wide = row_of(arena, "dsrl_sac"), row_of(arena, "dsrl_sac (wide)")
    # Each curve starts at the frozen base's score of its seed, then at what was seen at 500.
    areas = [(0.4 + 0.6) / 4 + (0.6 + 0.9) / 4, (0.5 + 0.8) / 4 + (0.8 + 1.0) / 4]
    assert steered.area == pytest.approx(np.mean(areas))
    assert wide.regret == 0.0 and steered.regret == pytest.approx(wide.area - steered.area)
    assert steered.worst_drop == pytest.approx(np.mean([0.2 - 0.4, 0.0]))
    scratch = row_of(arena, "sac")
    assert scratch.base is None and scratch.worst_drop is None and scratch.gain is None
    assert scratch.demonstrations and scratch.control == "zero_noise"
    assert (steered.episodes, steered.seconds, steered.torch_ms) == (20, 5.0, 1.0)


def test_two_scores_of_a_method(arena: Arena) -> None:
    of = {row.method: row for row in arena.overall}
    assert of["dsrl_sac"].one_setting == pytest.approx(0.95)
    assert of["dsrl_sac"].tuned == pytest.approx(1.0)
    assert of["dsrl_sac"].tuning_episodes == 40 and of["sac"].tuning_episodes == 0


def test_a_mean_has_the_best_control_of_the_same_contests_beside_it(arena: Arena) -> None:
    of = {row.method: row for row in arena.overall}
    assert all(one.control == pytest.approx(0.65) for one in of.values())
    assert "Best control there" in writing.to_markdown(arena)
    rows, runs = rows_and_runs()
    plain = build(episodes_table(rows), runs, [])
    assert all(math.isnan(one.control) for one in plain.overall)


def test_runs_from_nothing_are_in_one_contest_a_task() -> None:
    """They stand beside both kinds of base. Who has no more than a variant there has no mean."""
    rows, runs = rows_and_runs()
    rows += [replace(row, config_hash="d", algorithm="frozen") for row in rows
             if row.config_hash == "frozen"]  # fmt: skip
    rows += [replace(row, config_hash="e") for row in rows if row.config_hash == "dsrl_sac~wide"]
    for name, digest in (("frozen", "d"), ("dsrl_sac~wide", "e")):
        runs += [
            {**run, "config_hash": digest, "place": {**run["place"], "base": "diffusion"}}
            for run in runs
            if run["config_hash"] == name
        ]
    both = build(episodes_table(rows), runs, CONTROLS)
    of = {row.method: row for row in both.overall}
    assert len(both.contests) == 2
    assert (of["sac"].contests, of["frozen"].contests, of["dsrl_sac"].contests) == (1, 2, 1)


def test_files_have_every_row_and_evaluation(arena: Arena, tmp_path: Path) -> None:
    paths = writing.write(arena, tmp_path)
    with paths["arena.csv"].open() as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == [row.method for row in arena.contests[0].rows]
    with paths["curves.csv"].open() as file:
        points = [line for line in csv.DictReader(file) if line["method"] == "dsrl_sac"]
    assert len(points) == 6
    assert [float(point["episodes"]) for point in points[:3]] == [0, 10, 20]
    text = paths["arena.md"].read_text()
    assert text.count("\n| dsrl_sac") == 3 and "zero_noise" in text
    figure.draw(arena, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_scores_are_in_the_order_of_their_starts() -> None:
    """Whatever the order of the rows: sorted by score, all runs would agree in their starts."""
    rows = [row for row in rows_and_runs()[0] if row.algorithm == "frozen"]
    mixed = [replace(row, success=row.eval_seed % 2 == row.seed) for row in rows[::-1]]
    (group,) = grouped(episodes_table(mixed), {"gym/X-v0": "success"})
    first, second = group.last()[0], group.last()[1]
    assert first.tolist() == [1.0, 0.0] * 5 and second.tolist() == [0.0, 1.0] * 5
    assert start_variance([first, second]) == 0.0 < start_variance([first, first])


def test_differences_are_over_the_contests_of_a_method(arena: Arena, tmp_path: Path) -> None:
    assert differences(arena) == []  # one contest alone has no difference over several
    other = replace(arena.contests[0], task="y")
    rows = tuple(
        replace(row, episode_scores=(np.ones(10), np.ones(10))) if row.method == "dsrl_sac" else row
        for row in other.rows
    )
    two = replace(arena, contests=(*arena.contests, replace(other, rows=rows)))
    wide, plain = differences(two)
    assert (wide.method, plain.method) == ("dsrl_sac (wide)", "dsrl_sac")
    # On x 0.9 and 1.0 less zero noise's 0.6 and 0.7; on y 1.0 and 1.0 less those.
    assert plain.hindsight.value == pytest.approx((0.3 + 0.35) / 2)
    assert (plain.contests, plain.over_tasks.value) == (2, pytest.approx(0.325))
    assert (plain.verdict == "better") == (plain.hindsight.low > 0)
    paths = writing.write(two, tmp_path)
    text = paths["arena.md"].read_text()
    assert "| dsrl_sac (wide) | 2 | " in text.partition("## Beside the best control")[2]
    assert (tmp_path / FOREST).stat().st_size > 5_000


def test_a_run_without_rows_is_one_line() -> None:
    rows, runs = rows_and_runs()
    lost = {**runs[0], "config_hash": "gone", "name": "x-flow-gone"}
    with pytest.raises(TrimtabError, match="arena: the run x-flow-gone has no episode rows"):
        build(episodes_table(rows), [*runs, lost], [])
