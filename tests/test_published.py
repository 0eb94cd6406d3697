"""What is published keeps its names: every committed hash is recomputed from what it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from trimtab.benchmarks.training.identity import hash_of
from trimtab.benchmarks.training.rows import SCHEMA, read_episodes

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
ROWS = sorted([*RESULTS.glob("*/episodes.parquet"), *RESULTS.glob("*/training.parquet")])


def configurations(folder: Path) -> dict[str, Any]:
    """Return the documents that a result's hashes were computed from, by hash."""
    found: dict[str, Any] = json.loads((folder / "configurations.json").read_text())
    return found


@pytest.mark.parametrize("file", ROWS, ids=[file.parent.name for file in ROWS])
def test_every_committed_hash_is_that_of_its_document(file: Path) -> None:
    documents = configurations(file.parent)
    assert documents
    for digest, document in documents.items():
        assert hash_of(document) == digest
    rows = pq.read_table(file)
    hashes = set(rows["config_hash"].to_pylist())
    assert hashes == documents.keys()


@pytest.mark.parametrize("file", ROWS, ids=[file.parent.name for file in ROWS])
def test_rows_are_those_of_their_documents(file: Path) -> None:
    """Physics and bases of the rows are those that their hashes stand for."""
    documents = configurations(file.parent)
    for row in read_episodes(file).to_pylist():
        document = documents[row["config_hash"]]
        if document.get("version", 1) == 1:
            env, physics = document["env"], document["fingerprint"]
        else:
            env, physics = document["task"]["id"], document["task"]["physics"]
        assert (row["env"], row["fingerprint"]) == (env, physics)
        assert (row["hash_version"] or 1) == document.get("version", 1)
        if row["base"] is not None:
            assert row["base"].endswith(document["base"])


def test_rows_of_version_1_are_read_with_nulls() -> None:
    first = [file for file in ROWS if b"trimtab_rows" not in (pq.read_schema(file).metadata or {})]
    assert first
    for file in first:
        old, new = pq.read_table(file), read_episodes(file)
        assert new.schema == SCHEMA and new.num_rows == old.num_rows
        for name in old.column_names:
            assert new[name].equals(old[name]), name
        for name in SCHEMA.names[len(old.column_names) :]:
            assert new[name].null_count == new.num_rows
