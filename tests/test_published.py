"""What is published keeps its names: every committed hash is recomputed from what it stands for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from loading import load_module

from trimtab.benchmarks.training.identity import hash_of
from trimtab.benchmarks.training.rows import SCHEMA, read_episodes
from trimtab.benchmarks.training.settings.renamed import RENAMED

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
            if name != "algorithm":
                assert new[name].equals(old[name]), name
        for name in SCHEMA.names[len(old.column_names) :]:
            assert new[name].null_count == new.num_rows


def test_a_renamed_method_is_read_under_its_name_of_now() -> None:
    (file,) = RESULTS.glob("online-relatives/episodes.parquet")
    old, new = (set(t["algorithm"].to_pylist()) for t in (pq.read_table(file), read_episodes(file)))
    assert {RENAMED.get(name, name) for name in old} == new
    assert "dropout_ppo" in new and "d_ppo" not in new


def test_what_cannot_be_published_is_one_line_and_changes_nothing(
    root: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(root / "scripts")
    publish = load_module(root / "scripts" / "publish.py")
    (tmp_path / "project").mkdir()
    for name in ("quikstart", "families", "quickstart"):
        shutil.copytree(root / "benchmarks" / "results" / "families", tmp_path / name)
    (tmp_path / "families" / "figure.png").unlink()
    gone = {"folders": {"a run": str(tmp_path / "no run")}}
    (tmp_path / "quickstart" / "suite.json").write_text(json.dumps(gone))
    for words, told in (
        ([], "name one folder"),
        (["one", "two"], "name one folder"),
        ([str(tmp_path / "nowhere")], "is no folder"),
        ([str(tmp_path / "project")], "has none of episodes.parquet, speed.json"),
        ([str(tmp_path / "quikstart")], "did you mean quickstart?"),
        ([str(tmp_path / "families")], "figure.png is missing"),
        ([str(tmp_path / "quickstart")], "no run's provenance.json says what"),
    ):
        assert publish.main(words, tmp_path / "project", tmp_path) == 2
        shown = capfd.readouterr()
        assert told in shown.err and len(shown.err.splitlines()) == 1 and not shown.out
        assert not list((tmp_path / "project").iterdir())
    assert publish.main(["--help"]) == 0
    assert "python scripts/publish.py" in capfd.readouterr().out
