"""Episode rows: exact columns, whole files, and no episode counted twice."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.benchmarks.training.rows import (
    SCHEMA,
    EpisodeRow,
    collect_episodes,
    read_episodes,
    write_episodes,
)
from trimtab.errors import TrimtabError

COLUMNS = [
    "suite", "env", "algorithm", "policy", "dataset", "base", "seed", "env_steps", "updates",
    "eval_episode", "eval_seed", "return", "success", "length", "seconds", "fingerprint",
    "config_hash", "hash_version", "revision", "policy_revision", "protocol_revision", "act_steps",
    "deterministic", "success_rule", "horizon", "control_hz", "delay_ms", "device", "metrics",
]  # fmt: skip


def row(**changes: object) -> EpisodeRow:
    values: dict[str, object] = {
        "env": "gym/Ant-v5",
        "algorithm": "sac",
        "seed": 0,
        "env_steps": 100,
        "updates": 50,
        "eval_episode": 0,
        "eval_seed": 7,
        "return_": 1.5,
        "length": 10,
        "config_hash": "abc",
    }
    return EpisodeRow(**(values | changes))  # type: ignore[arg-type]


def run_file(root: Path, seed: int) -> Path:
    return root / "gym" / "Ant-v5" / "sac" / "abc" / f"seed{seed}" / "episodes.parquet"


def test_columns_are_the_agreed_ones_in_order() -> None:
    assert SCHEMA.names == COLUMNS
    assert list(row().to_row()) == COLUMNS
    assert row(return_=3.0).to_row()["return"] == 3.0


def test_written_rows_are_read_back_with_their_nulls(tmp_path: Path) -> None:
    rows = [row(eval_episode=k, success=[True, False, None][k], suite="s") for k in range(3)]
    write_episodes(tmp_path / "a.parquet", rows)
    table = read_episodes(tmp_path / "a.parquet")
    assert table.schema == SCHEMA
    assert table.to_pylist() == [one.to_row() for one in rows]
    assert table["policy"].null_count == 3


@pytest.mark.bits
def test_equal_rows_give_equal_bytes_and_leave_nothing_beside(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_episodes(tmp_path / name, [row(), row(eval_episode=1)])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_value_of_the_wrong_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="declared type"):
        write_episodes(tmp_path / "a.parquet", [row(seed="zero")])
    with pytest.raises(TrimtabError, match="1 rows without seed"):
        write_episodes(tmp_path / "a.parquet", [row(seed=None)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"env_steps": -5}, "has -5 as env_steps"),
        ({"length": -1}, "has -1 as length"),
        ({"algorithm": ""}, "has an empty text as algorithm"),
        ({"env": "  "}, "has an empty text as env"),
    ],
)
def test_a_value_that_no_episode_has(change: dict[str, object], part: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(TrimtabError, match=part):
        write_episodes(path, [row(), row(seed=1, **change)])
    assert not path.exists()
    table = pa.Table.from_pylist([row().to_row(), row(**change).to_row()], schema=SCHEMA)
    pq.write_table(table, path)  # by another program
    with pytest.raises(TrimtabError, match=f"a.parquet {part}; restore the file"):
        read_episodes(path)


def test_a_pipe_is_not_waited_for_and_gigabytes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "below" / "episodes.parquet"):
        os.mkfifo(path)
    for place in (tmp_path / "pipe", tmp_path / "below"):
        with pytest.raises(TrimtabError, match="is no regular file; name a file on disk"):
            collect_episodes(place)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 3 * 10**9)
    with pytest.raises(TrimtabError, match="large: has 3,000 MB, and at most 2,147 MB are read"):
        collect_episodes(tmp_path / "large")


def test_missing_and_foreign_files_are_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="does not exist"):
        read_episodes(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(TrimtabError, match="damaged or not a Parquet file") as caught:
        read_episodes(tmp_path / "text.parquet")
    assert "\n" not in str(caught.value)


def test_wrong_columns_are_named(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([row().to_row()], schema=SCHEMA)
    pq.write_table(table.rename_columns(["suit", *COLUMNS[1:]]), tmp_path / "a.parquet")
    with pytest.raises(TrimtabError, match="missing: suite; unknown: suit"):
        read_episodes(tmp_path / "a.parquet")
    pq.write_table(table.select(COLUMNS[::-1]), tmp_path / "b.parquet")
    with pytest.raises(TrimtabError, match="the order is suite, env"):
        read_episodes(tmp_path / "b.parquet")
    wrong = table.set_column(6, "seed", pa.array(["zero"]))
    pq.write_table(wrong, tmp_path / "c.parquet")
    with pytest.raises(TrimtabError, match="wrong type"):
        read_episodes(tmp_path / "c.parquet")


def test_a_truncated_file_is_an_error_at_every_length(tmp_path: Path) -> None:
    write_episodes(tmp_path / "a.parquet", [row(eval_episode=k) for k in range(20)])
    data = (tmp_path / "a.parquet").read_bytes()
    for length in np.linspace(0, len(data) - 1, 40).astype(int):
        (tmp_path / "cut.parquet").write_bytes(data[:length])
        with pytest.raises(TrimtabError):
            read_episodes(tmp_path / "cut.parquet")


def test_a_changed_byte_in_a_data_page_is_never_a_different_number(tmp_path: Path) -> None:
    rows = [row(eval_episode=k, return_=float(k)) for k in range(200)]
    write_episodes(tmp_path / "a.parquet", rows)
    data = (tmp_path / "a.parquet").read_bytes()
    column = pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(COLUMNS.index("return"))
    # The dictionary page stands first and the data page ends the chunk: both hold numbers.
    end = column.dictionary_page_offset + column.total_compressed_size
    for place in (end - 1, end - 5, end - 20, column.data_page_offset - 2):
        changed = bytearray(data)
        changed[place] ^= 0x10
        (tmp_path / "b.parquet").write_bytes(bytes(changed))
        with pytest.raises(TrimtabError, match="damaged"):
            read_episodes(tmp_path / "b.parquet")


def test_collecting_finds_every_run_and_sorts(tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        rows = [row(seed=seed, eval_episode=k) for k in (1, 0)]
        write_episodes(run_file(tmp_path, seed), rows)
    hidden = tmp_path / "gym" / ".seed9.123.tmp" / "episodes.parquet"
    write_episodes(hidden, [row(seed=9)])
    table = collect_episodes(tmp_path)
    found = list(zip(table["seed"].to_pylist(), table["eval_episode"].to_pylist(), strict=True))
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert collect_episodes(run_file(tmp_path, 1)).num_rows == 2


def test_a_collection_below_its_own_runs_counts_once(tmp_path: Path) -> None:
    rows = [row(seed=0, seconds=1.0)]
    write_episodes(run_file(tmp_path, 0), rows)
    copies = [dataclasses.replace(rows[0], suite="x", seconds=2.0), row(seed=1, suite="x")]
    write_episodes(tmp_path / "suites" / "x" / "episodes.parquet", copies)
    table = collect_episodes(tmp_path)
    assert table["seed"].to_pylist() == [0, 1]
    assert table["suite"].to_pylist() == ["x", "x"]


@pytest.mark.parametrize(
    "change", [{"return_": 9.0}, {"success": True}, {"fingerprint": "f"}, {"eval_seed": 8}]
)
def test_two_accounts_of_one_episode_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    write_episodes(run_file(tmp_path, 0), [row()])
    write_episodes(tmp_path / "suites" / "x" / "episodes.parquet", [row(**change)])
    name = next(iter(change)).rstrip("_")
    with pytest.raises(
        TrimtabError, match=f"gym/Ant-v5 sac abc seed 0.*two values of {name}, in .*"
    ):
        collect_episodes(tmp_path)


def test_nothing_to_collect_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"no episodes\.parquet below"):
        collect_episodes(tmp_path)
    with pytest.raises(TrimtabError, match="does not exist"):
        collect_episodes(tmp_path / "none")
    write_episodes(tmp_path / "episodes.parquet", [])
    with pytest.raises(TrimtabError, match="no evaluation episode"):
        collect_episodes(tmp_path)
