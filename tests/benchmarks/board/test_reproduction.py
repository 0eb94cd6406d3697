"""Published rows are made again: to the bit on one kind of processor, else within intervals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from loading import load_module

from trimtab.benchmarks.board.reproduction import compare_rows
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.rows import collect_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.processor import processor_kind

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "quickstart"


@pytest.fixture(scope="module")
def published() -> pa.Table:
    return collect_episodes(RESULTS / "episodes.parquet")


@pytest.mark.bits
def test_a_run_of_the_quickstart_is_made_again(published: pa.Table, tmp_path: Path) -> None:
    (job,) = (
        job
        for job in load_suite("quickstart", str(tmp_path)).jobs
        if (job.name, job.seed) == ("maze-gaussian", 0)
    )
    result = train(compose_run(job.overrides))
    found = compare_rows(collect_episodes(result.folder / "episodes.parquet"), published)
    assert found.rows == 50 and found.within, found
    if json.loads((RESULTS / "machine.json").read_text())["processor"] == processor_kind():
        assert found.same, found


def test_a_changed_a_missing_and_a_new_row_are_seen(published: pa.Table) -> None:
    made = published.filter(pc.equal(published["algorithm"], "sac"))
    assert compare_rows(made, published).same and compare_rows(made, published).within
    fewer = made.slice(1)
    assert compare_rows(fewer, published).missing == 1
    place = made.column_names.index("length")
    lengths = pc.add(made["length"], pa.array([1] + [0] * (made.num_rows - 1)))
    other = compare_rows(made.set_column(place, "length", lengths), published)
    assert (other.equal, other.missing, other.same) == (made.num_rows - 1, 1, False)


def test_a_score_outside_the_interval_is_seen(published: pa.Table) -> None:
    chosen = pc.and_(
        pc.equal(published["algorithm"], "bc"), pc.equal(published["policy"], "gaussian")
    )
    made = published.filter(chosen)
    place = made.column_names.index("success")
    better = made.set_column(place, "success", pa.array([True] * made.num_rows))
    found = compare_rows(better, published)
    assert not found.within and not found.same


def test_what_cannot_be_compared_is_one_line(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = load_module(root / "scripts" / "compare_results.py")
    rows = (RESULTS / "episodes.parquet").read_bytes()
    for name, data in (("quickstart", rows[: len(rows) // 2]), ("mine", rows)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "episodes.parquet").write_bytes(data)
    shutil.copytree(RESULTS.parent / "families", tmp_path / "families")
    for words, told in (
        ([], "name one folder"),
        (["one", "two"], "name one folder"),
        ([str(tmp_path / "nowhere")], "does not exist"),
        ([str(tmp_path / "quickstart")], "is damaged or not a Parquet file"),
        ([str(tmp_path / "mine")], "mine are not published; compared can be: arena, offline, "),
        ([str(tmp_path / "families")], "does not say which processor made them"),
    ):
        assert script.main(words) == 2
        shown = capfd.readouterr()
        assert told in shown.err and len(shown.err.splitlines()) == 1 and not shown.out
    assert script.main(["--help"]) == 0
    assert "python scripts/compare_results.py" in capfd.readouterr().out
