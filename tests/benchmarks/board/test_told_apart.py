"""The leaderboard tells configurations apart: by their settings, their bases and their physics."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.sources import Sources
from trimtab.errors import TrimtabError

Synthetic = Callable[[Sequence[Any]], pa.Table]


def test_two_configurations_that_differ_in_settings_only_are_told_apart(
    synthetic: Synthetic, method: Any
) -> None:
    pair = [method, replace(method, config_hash="0123456789ab")]
    labels = {row.label for row in build(synthetic(pair)).tables[0].entries}
    assert labels == {"sac (aa)", "sac (01234567)"}


def test_two_bases_are_told_apart(synthetic: Synthetic, method: Any) -> None:
    pair = [replace(method, base=base, config_hash=h) for base, h in (("p", "aa"), ("q", "bb"))]
    assert {row.label for row in build(synthetic(pair)).tables[0].entries} == {"sac (p)", "sac (q)"}


def of_two_physics(synthetic: Any, method: Any, place: Path) -> tuple[pa.Table, Sources]:
    """Return rows of two configurations whose physics differ, and folders of their runs."""
    two = [method, replace(method, config_hash="bb")]
    table = synthetic(two)
    prints = ["old" if digest == "aa" else "new" for digest in table["config_hash"].to_pylist()]
    at = table.column_names.index("fingerprint")
    table = table.set_column(at, table.schema.field(at), pa.array(prints))
    folders = {(d, s): place / d / f"seed{s}" for d in ("aa", "bb") for s in (0, 1)}
    for age, folder in enumerate(folders.values()):
        folder.mkdir(parents=True)
        (folder / "episodes.parquet").touch()
        os.utime(folder / "episodes.parquet", (1000 + age, 1000 + age))
    return table, Sources(folders)


def test_runs_of_different_physics_are_named_by_their_folders(
    synthetic: Any, method: Any, tmp_path: Path
) -> None:
    table, sources = of_two_physics(synthetic, method, tmp_path)
    with pytest.raises(TrimtabError) as raised:
        build(table, sources=sources)
    line = str(raised.value)
    assert f"new (in {tmp_path}/bb) and old (in {tmp_path}/aa)" in line
    assert "let one kind count with physics=new, or move" in line


def test_one_of_several_physics_can_be_chosen(synthetic: Any, method: Any, tmp_path: Path) -> None:
    table, sources = of_two_physics(synthetic, method, tmp_path)
    board = build(table, sources=sources, physics=["new"])
    assert [entry.config_hash for entry in board.tables[0].entries] == ["bb"]
    assert board.tables[0].fingerprint == "new"
    assert any("2 runs of physics old left out" in note for note in board.notes)
    with pytest.raises(TrimtabError, match="physics=odd: no row has it; there are: new, old"):
        build(table, physics=["odd"])


def test_labels_name_the_settings_that_differ_where_they_are_known(
    synthetic: Any, method: Any
) -> None:
    methods = [replace(method, config_hash=digest) for digest in ("aa", "bb")]
    methods += [replace(one, env="gym/Y-v0", config_hash=one.config_hash * 2) for one in methods]
    table = synthetic(methods)
    rates = {"aa": 0.1, "bb": 0.2, "aaaa": 0.1, "bbbb": 0.2}
    known: dict[str, dict[str, Any]] = {
        digest: {"algorithm": "sac", "algorithm.tau": 0.5, "algorithm.learning_rate": rate,
                 "online_steps": 10 * len(digest)}
        for digest, rate in rates.items()
    }  # fmt: skip

    def labels(settings: dict[str, dict[str, Any]]) -> set[str]:
        board = build(table, sources=Sources(settings=settings))
        return {entry.label for one in board.tables for entry in one.entries}

    assert labels(known) == {"sac (learning_rate=0.1)", "sac (learning_rate=0.2)"}
    del known["bb"]
    assert labels(known) == {"sac (aa)", "sac (bb)", "sac (aaaa)", "sac (bbbb)"}
    same = {digest: {"algorithm": "sac"} for digest in rates}
    assert labels(same) == labels(known)
