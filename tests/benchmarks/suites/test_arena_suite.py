"""The arena at toy size: bases, controls, methods, tables, figure, records."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trimtab.benchmarks.artefacts import measures
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.suites.suite import load_suite

pytestmark = pytest.mark.slow

KINDS = "doors-flow,doors-diffusion,*-frozen,*-golden_ticket,*-dsrl_sac,*-dppo,*-rlpd"
"""Runs of each kind: both bases, a control that learns and one that does not, steering, fine-tuning
and a method that starts from nothing.
"""


def bench(*words: str) -> None:
    """Carry the arena out below the current folder, from this process."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "suite=arena", "scale=ci", *words])
    assert ended.value.code == 0


def test_the_arena_at_toy_size(
    in_this_process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measures, "_CALLS", 3)  # how long a decision takes is not tested
    bench(f"only={KINDS}", in_this_process)
    folder = tmp_path / "runs" / "suites" / "arena-ci-part"
    jobs = load_suite("arena", "runs", scale="ci", only=KINDS.split(",")).jobs
    assert len(jobs) == 8
    records = json.loads((folder / "runs.json").read_text())
    assert [record["name"] for record in records] == [job.name for job in jobs]
    for record in records:
        base, method = record["place"].get("base"), record["place"]["method"]
        measured = method is not None and base is not None
        assert ("decision_ms" in record) == measured
        if measured:
            assert record["decision_ms"]["torch"] > 0 and record["decision_ms"]["onnx"] > 0
            assert record["base_distance"] >= 0
        assert record["trained_parameters"] >= 0 and record["evaluations"]
    with (folder / "arena.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_contest = {(row["contest"], row["method"]): row for row in rows}
    assert {contest for contest, _ in by_contest} == {"flow", "diffusion"}
    assert ("flow", "dppo") not in by_contest and ("diffusion", "dppo") in by_contest
    steered = by_contest["flow", "dsrl_sac"]
    assert steered["control"] in {"frozen", "golden_ticket"}
    assert int(steered["trained_parameters"]) > 0
    frozen = by_contest["flow", "frozen"]
    assert int(frozen["trained_parameters"]) == 0 and frozen["control"] == ""
    ticket = by_contest["flow", "golden_ticket"]
    assert float(ticket["episodes"]) == 4  # two tickets of two episodes each
    assert by_contest["flow", "rlpd"]["demonstrations"] == "True"
    assert (folder / "figure.png").stat().st_size > 10_000

    # Any part of it has tables: one of bases alone has no contest, and so no row of one.
    bench("only=doors-flow", in_this_process)
    assert (folder / "arena.csv").read_text() == ""
    assert (folder / "figure.png").stat().st_size > 5_000
