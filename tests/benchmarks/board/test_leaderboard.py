"""The leaderboard: last evaluations, labels, baselines, refusals, and every form of output."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console

from trimtab.benchmarks.board import leaderboard, stats
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.model import Entry, Leaderboard
from trimtab.benchmarks.board.sources import collect
from trimtab.benchmarks.training.rows import collect_episodes, read_episodes, write_episodes
from trimtab.errors import TrimtabError

BLOCKED = "robotics/PointMaze-TwoRoutes-Blocked-v0"
PUSH = "metaworld/push-v3"
MAZE = "robotics/PointMaze-TwoRoutes-v0"
COMMAND = "trimtab leaderboard runs=runs out=board"

Synthetic = Callable[[Sequence[Any]], pa.Table]


@pytest.fixture(scope="module")
def board(quickstart_table: pa.Table) -> Leaderboard:
    return build(
        quickstart_table,
        baselines={
            "sac": "frozen (flow)", "bc (flow)": "bc (gaussian)", "bc (diffusion)": "bc (gaussian)",
        },
        command=COMMAND,
        versions={"mujoco": "3.3.0"},
        repetitions=500,
    )  # fmt: skip


def entry(board: Leaderboard, env: str, label: str) -> Entry:
    table = next(table for table in board.tables if table.env == env)
    return next(row for row in table.entries if row.label == label)


def scores(table: pa.Table, **wanted: object) -> list[float]:
    for name, value in wanted.items():
        table = table.filter(pc.equal(table[name], value))
    return [float(x) for x in table["success"].to_pylist()]


def test_rows_use_the_last_evaluation_and_report_the_best(
    board: Leaderboard, quickstart_table: pa.Table
) -> None:
    row = entry(board, BLOCKED, "dsrl_na (diffusion)")
    wanted = {"env": BLOCKED, "config_hash": "c2"}
    last = [scores(quickstart_table, **wanted, seed=s, env_steps=30000) for s in range(3)]
    assert [run.last for run in row.runs] == pytest.approx([np.mean(x) for x in last])
    assert row.mean == mean_interval([np.sort(x) for x in last], rate=True)
    best = [
        max(
            np.mean(scores(quickstart_table, **wanted, seed=seed, env_steps=k * 5000))
            for k in range(7)
        )
        for seed in range(3)
    ]
    assert row.best == pytest.approx(np.mean(best))
    assert row.best > row.mean.value  # this synthetic run has a better checkpoint than its last
    assert row.trained_for() == "30,000 steps"


def test_labels_name_the_policy_only_where_an_algorithm_has_several(board: Leaderboard) -> None:
    labels = {table.env: {row.label for row in table.entries} for table in board.tables}
    assert labels[BLOCKED] == {
        "frozen (flow)", "frozen (diffusion)", "dsrl_sac (flow)", "dsrl_sac (diffusion)",
        "dsrl_na (flow)", "dsrl_na (diffusion)", "sac",
    }  # fmt: skip
    assert "dsrl_sac (flow)" in labels[PUSH]  # one policy here, but the label means the same


def test_what_steers_a_base_is_compared_with_that_base_frozen(
    board: Leaderboard, quickstart_table: pa.Table
) -> None:
    row = entry(board, BLOCKED, "dsrl_sac (diffusion)")
    assert row.baseline == "frozen (diffusion)"
    base = entry(board, BLOCKED, "frozen (diffusion)")
    assert base.baseline is None and base.difference is None
    gains = [ours.last - theirs.last for ours, theirs in zip(row.runs, base.runs, strict=True)]
    assert row.difference is not None and row.improvement is not None
    assert row.difference.value == pytest.approx(np.mean(gains))
    assert row.lowest_difference == pytest.approx(min(gains))
    assert row.difference.low > 0.3 and row.improvement.value == 1.0


def test_another_frozen_base_is_no_default_baseline(synthetic: Synthetic, method: Any) -> None:
    steered = replace(method, algorithm="dsrl_sac", base="p")
    frozen = replace(method, algorithm="frozen", base="q", config_hash="bb")
    assert entry(build(synthetic([steered, frozen])), "gym/X-v0", "dsrl_sac").baseline is None
    frozen = replace(frozen, base="p")
    assert entry(build(synthetic([steered, frozen])), "gym/X-v0", "dsrl_sac").baseline == "frozen"


def test_named_baselines(board: Leaderboard, quickstart_table: pa.Table) -> None:
    assert entry(board, BLOCKED, "sac").baseline == "frozen (flow)"
    assert entry(board, MAZE, "bc (flow)").baseline == "bc (gaussian)"
    assert entry(board, MAZE, "bc (gaussian)").baseline is None
    one = build(quickstart_table, baselines="sac", repetitions=50)
    assert entry(one, BLOCKED, "dsrl_sac (flow)").baseline == "sac"
    assert entry(one, BLOCKED, "sac").baseline is None
    assert entry(one, PUSH, "dsrl_sac (flow)").baseline is None  # not run there
    none = build(quickstart_table, baselines={"dsrl_sac": None}, repetitions=50)
    assert entry(none, BLOCKED, "dsrl_sac (flow)").baseline is None
    assert entry(none, BLOCKED, "dsrl_na (flow)").baseline == "frozen (flow)"


def test_a_misspelt_baseline_is_refused_with_the_nearest_name(quickstart_table: pa.Table) -> None:
    with pytest.raises(TrimtabError, match="'frozn'; did you mean frozen"):
        build(quickstart_table, baselines="frozn")
    with pytest.raises(TrimtabError, match="'dsrl_sax'; did you mean dsrl_sac"):
        build(quickstart_table, baselines={"dsrl_sax": "frozen"})


def test_a_baseline_that_may_mean_two_things_is_a_note(quickstart_table: pa.Table) -> None:
    board = build(quickstart_table, baselines={"sac": "frozen"}, repetitions=50)
    assert entry(board, BLOCKED, "sac").baseline is None
    assert any("frozen (diffusion) or frozen (flow)" in note for note in board.notes)


def test_different_physics_in_one_environment_are_refused(quickstart_table: pa.Table) -> None:
    prints = quickstart_table["fingerprint"].to_pylist()
    first = quickstart_table["env"].to_pylist().index(PUSH)
    for other, shown in (("ffff00001111", "ffff00001111"), (None, "unknown")):
        changed = prints[:first] + [other] + prints[first + 1 :]
        index = quickstart_table.column_names.index("fingerprint")
        mixed = quickstart_table.set_column(index, "fingerprint", pa.array(changed, pa.string()))
        with pytest.raises(TrimtabError) as caught:
            build(mixed)
        for word in (PUSH, shown, "c4417be09f21", "move the folders of the others away"):
            assert word in str(caught.value)


def test_success_is_scored_where_there_is_one_and_else_the_return(
    synthetic: Synthetic, method: Any
) -> None:
    other = replace(method, env="gym/Y-v0", scored_by_return=True, levels=(300.0,))
    table = synthetic([method, other])
    assert [t.metric for t in build(table).tables] == ["success", "return"]
    assert [t.metric for t in build(table, metric="return").tables] == ["return", "return"]
    with pytest.raises(TrimtabError, match="100 of 100 rows of gym/Y-v0 have no success"):
        build(table, metric="success")
    partly = synthetic([method, replace(other, env="gym/X-v0", config_hash="bb")])
    with pytest.raises(TrimtabError, match="score it with metric=return"):
        build(partly)


def test_no_rows_and_diverged_returns_are_refused(synthetic: Synthetic, method: Any) -> None:
    with pytest.raises(TrimtabError, match="no episode rows"):
        build(synthetic([]))
    diverged = replace(method, scored_by_return=True, levels=(float("nan"),))
    with pytest.raises(TrimtabError, match="gym/X-v0 sac aa seed 0 has a return of nan"):
        build(synthetic([diverged]))


def test_remarks_on_what_makes_numbers_weak(synthetic: Synthetic, method: Any) -> None:
    longer = replace(method, seeds=(1,), points=((400, 40),))
    notes = build(synthetic([replace(method, seeds=(0,)), longer])).notes
    assert notes == ("gym/X-v0: the seeds of sac differ in training length.",)
    lonely = build(synthetic([replace(method, seeds=(0,))]))
    assert "one seed only" in lonely.notes[0]
    fewer = replace(method, config_hash="bb", episodes=10)
    assert "as many episodes" in build(synthetic([method, fewer])).notes[0]


def test_returns_that_are_all_equal_have_no_interval(synthetic: Synthetic, method: Any) -> None:
    lost = build(synthetic([replace(method, scored_by_return=True, levels=(0.0,))]))
    assert any("no interval can be given" in note for note in lost.notes)
    cells = lost.tables[0].cells(lost.tables[0].entries[0])
    assert cells["Mean [95%]"] == cells["IQM [95%]"] == "0.00"
    assert "[0.00, 0.00]" not in lost.to_markdown()


def test_curves_join_the_evaluations_of_seeds_whose_steps_differ_a_little(
    synthetic: Synthetic, method: Any
) -> None:
    points = [((0, 0), (1000 + k, 100)) for k in (0, 3)]
    runs = [replace(method, seeds=(k,), levels=(0.2, 0.8), points=points[k]) for k in range(2)]
    row = build(synthetic(runs)).tables[0].entries[0]
    assert [(p.env_steps, p.seeds) for p in row.curve] == [(0, 2), (1001, 2)]
    assert row.curve[-1].score == row.mean


def test_aggregates_are_over_success_rates_and_all_their_environments(board: Leaderboard) -> None:
    row = next(a for a in board.aggregates if a.label == "dsrl_sac (flow)")
    assert row.envs == (PUSH, BLOCKED)
    tasks = [np.array([run.last for run in entry(board, env, row.label).runs]) for env in row.envs]
    assert row.mean.value == pytest.approx(np.mean(tasks))
    assert row.iqm.value == pytest.approx(stats.aggregate_iqm(tasks))
    assert row.optimality_gap.value == pytest.approx(1 - np.mean(tasks))
    assert row.improvement is not None
    chances = [
        improvement.value
        for env in row.envs
        if (improvement := entry(board, env, row.label).improvement)
    ]
    assert row.improvement.value == pytest.approx(np.mean(chances))


def test_a_table_of_unfinished_runs_says_so_of_each(
    synthetic: Synthetic, method: Any, tmp_path: Path
) -> None:
    folders = [tmp_path / "runs" / name / "seed0" for name in ("aa", "bb")]
    for folder, name in zip(folders, ("sac", "td3"), strict=True):
        run = replace(method, algorithm=name, config_hash=folder.parent.name, seeds=(0,))
        folder.mkdir(parents=True)
        write_episodes(folder / "episodes.parquet", synthetic([run]))  # and no result.json
    rows, sources = collect(tmp_path / "runs")
    board = build(rows, sources=sources)
    assert [entry.label for entry in board.tables[0].entries] == ["sac", "td3"]
    paths = leaderboard.write(board, tmp_path / "board")
    text = paths["leaderboard.md"].read_text()
    for folder in folders:
        assert f"{folder} is unfinished (stopped): it counts with its last evaluation." in text
    for folder in folders:
        (folder / "episodes.parquet").unlink()
        (folder / "metrics.jsonl").write_text("")
    with pytest.raises(TrimtabError, match=r"of its 2 run\(s\), .* is unfinished .* no row$"):
        collect(tmp_path / "runs")


def test_one_environment_has_no_aggregate(synthetic: Synthetic, method: Any) -> None:
    assert build(synthetic([method])).aggregates == ()


def test_returns_are_in_no_aggregate(synthetic: Synthetic, method: Any) -> None:
    pair = [replace(method, env=env, scored_by_return=True) for env in ("gym/X-v0", "gym/Y-v0")]
    board = build(synthetic(pair))
    assert len(board.tables) == 2 and board.aggregates == ()


def test_the_order_of_rows_changes_nothing(quickstart_table: pa.Table) -> None:
    table = quickstart_table.filter(pc.equal(quickstart_table["env"], MAZE))
    order = np.random.default_rng(0).permutation(table.num_rows)
    shuffled = table.take(pa.array(order))
    assert build(shuffled, repetitions=50).to_json() == build(table, repetitions=50).to_json()


def test_json_has_the_command_and_every_number(board: Leaderboard) -> None:
    value = json.loads(board.to_json())
    assert value["command"] == COMMAND and value["versions"] == {"mujoco": "3.3.0"}
    assert "rows" not in value
    table = next(t for t in value["tables"] if t["env"] == BLOCKED)
    row = next(e for e in table["entries"] if e["label"] == "dsrl_sac (flow)")
    expected = entry(board, BLOCKED, "dsrl_sac (flow)")
    assert row["mean"] == expected.mean._asdict()
    assert len(row["runs"]) == 3 and len(row["curve"]) == 7


def test_csv_has_one_line_for_each_row_unrounded(board: Leaderboard) -> None:
    lines = list(csv.DictReader(io.StringIO(board.to_csv())))
    assert len(lines) == sum(len(table.entries) for table in board.tables)
    line = next(x for x in lines if (x["env"], x["method"]) == (BLOCKED, "dsrl_na (flow)"))
    row = entry(board, BLOCKED, "dsrl_na (flow)")
    assert float(line["mean_low"]) == row.mean.low and float(line["best"]) == row.best
    assert line["policy"] == "flow" and line["baseline"] == "frozen (flow)"
    assert next(x for x in lines if x["method"] == "frozen (flow)")["difference"] == ""


def test_markdown_has_tables_and_provenance(board: Leaderboard) -> None:
    text = board.to_markdown()
    assert text.startswith("# Leaderboard: quickstart\n")
    row = entry(board, BLOCKED, "dsrl_sac (flow)")
    line = next(x for x in text.splitlines() if "| dsrl_sac (flow) |" in x and row.mean.text() in x)
    assert row.difference is not None and row.difference.text(signed=True) in line
    assert f"- command: `{COMMAND}`" in text and "81d2c07e5a90" in text
    tables = [part for part in text.split("\n\n") if part.startswith("| ")]
    assert len(tables) == 5  # three environments, and two sets of them with several methods
    assert all(len({x.count("|") for x in part.splitlines()}) == 1 for part in tables)


def test_a_bar_in_a_name_does_not_break_the_markdown(synthetic: Synthetic, method: Any) -> None:
    assert "| a\\|b |" in build(synthetic([replace(method, algorithm="a|b")])).to_markdown()


def test_writing_makes_all_files_and_can_be_recomputed_from_them(
    board: Leaderboard, quickstart_table: pa.Table, tmp_path: Path
) -> None:
    paths = leaderboard.write(board, tmp_path / "out")
    names = {"leaderboard.md", "leaderboard.csv", "leaderboard.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"episodes.parquet"}
    assert read_episodes(paths["episodes.parquet"]).equals(quickstart_table)
    again = build(collect_episodes(tmp_path / "out"), repetitions=50)
    assert again.to_csv() == build(quickstart_table, repetitions=50).to_csv()


@pytest.mark.parametrize(
    "name",
    ["leaderboard.md", "leaderboard.csv", "leaderboard.json", "episodes.parquet"],
)
def test_a_strangers_file_is_not_replaced(name: str, board: Leaderboard, tmp_path: Path) -> None:
    (tmp_path / name).write_text("<title>My page</title>")
    with pytest.raises(TrimtabError, match=f"{name}: something is there that this command has not"):
        leaderboard.write(board, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "<title>My page</title>"
    (tmp_path / name).unlink()
    leaderboard.write(board, tmp_path)
    leaderboard.write(board, tmp_path)  # its own files are replaced


def test_the_rows_of_a_run_are_not_replaced(board: Leaderboard, tmp_path: Path) -> None:
    """They are this package's own, but there once; a leaderboard's are made again from others."""
    write_episodes(tmp_path / "episodes.parquet", board.rows)
    before = (tmp_path / "episodes.parquet").read_bytes()
    with pytest.raises(TrimtabError, match="has the rows of a run or of an evaluation, which a le"):
        leaderboard.write(board, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.parquet"]
    assert (tmp_path / "episodes.parquet").read_bytes() == before


def test_every_published_leaderboard_is_known_as_one(root: Path) -> None:
    folders = [path.parent for path in root.glob("benchmarks/results/*/leaderboard.json")]
    assert len(folders) >= 5
    for folder in folders:
        leaderboard.check_place(folder)


def test_terminal_shows_every_row_within_100_columns(board: Leaderboard) -> None:
    stream = io.StringIO()
    leaderboard.print_table(board, Console(file=stream, width=100))
    lines = stream.getvalue().splitlines()
    row = entry(board, PUSH, "dsrl_sac (flow)")
    assert any("dsrl_sac (flow)" in line and row.mean.text() in line for line in lines)
    assert max(len(line) for line in lines) <= 100
    assert "…" not in stream.getvalue()
    order = "in the order of IQM, then of the mean"
    assert stream.getvalue().count(order) == len(board.tables)
