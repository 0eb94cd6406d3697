"""Sweeps that are told to end, or of which there are two, do each run once and to the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from loading import load_module

from trimtab.benchmarks.cli.main import run
from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train

pytestmark = pytest.mark.slow

resumed = load_module(Path(__file__).with_name("resumed.py"))
outcome, words_of = resumed.outcome, resumed.words_of


def test_a_sweep_told_to_end_saves_its_runs(tiny: Any, tmp_path: Path) -> None:
    words = [word for word in words_of(tiny, "sac", tmp_path) if word != "seed=0"]
    words = [word for word in words if not word.startswith(("online_steps", "checkpoint_every"))]
    words += ["seed=0,1,2", "online_steps=200000", "checkpoint_every=100000"]
    command = [sys.executable, "-m", "trimtab.benchmarks.cli.main", "train", "-m", *words]
    pipe = subprocess.PIPE
    sweep = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob("metrics.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        sweep.send_signal(signal.SIGTERM)
        _, told = sweep.communicate(timeout=60)
    finally:
        sweep.kill()
    assert sweep.returncode == 143, told
    assert told.splitlines()[-1].endswith(
        "the runs' states are saved, run the same command to resume"
    )
    folders = [path.parent for path in tmp_path.rglob("provenance.json")]
    assert len(folders) == 2  # the third was not started
    assert all(load_checkpoint(folder / "checkpoint") is not None for folder in folders)
    logs = [folder / "metrics.jsonl" for folder in folders]
    before = [log.stat().st_size for log in logs]
    time.sleep(1)
    assert [log.stat().st_size for log in logs] == before  # nobody goes on in secret


def test_two_sweeps_on_the_same_folders_do_each_run_once(
    tiny: Any,
    in_this_process: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # in a narrow table words are cut off

    words = [word for word in words_of(tiny, "sac", tmp_path / "both") if word != "seed=0"]
    words = ["train", "-m", *words, "seed=0,1"]

    def sweep() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trimtab.benchmarks.cli.main", *words, "workers=1"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def outcomes(out: Path) -> list[dict[str, Any]]:
        return [outcome(path.parent) for path in sorted(out.rglob("provenance.json"))]

    for child in [sweep(), sweep()]:
        _, told = child.communicate()
        assert child.returncode in (0, 2) and "Traceback" not in told
        assert child.returncode == 0 or "in use" in told
    for seed in (0, 1):  # one after the other, in this process
        alone = [word for word in words_of(tiny, "sac", tmp_path / "alone") if word != "seed=0"]
        assert not train(compose_run([*alone, f"seed={seed}"])).already_done
    assert run([*words, in_this_process]) == 0
    assert capfd.readouterr().out.count("already done") == 2
    assert len(outcomes(tmp_path / "both")) == 2
    assert outcomes(tmp_path / "both") == outcomes(tmp_path / "alone")
