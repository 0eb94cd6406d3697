"""How far a suite is, as another terminal reads it; also of damaged files, and of none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from trimtab.benchmarks.cli.main import main


def test_a_suite_that_was_not_begun_or_cannot_begin(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
        main(["bench", "suite=quickstart", "status"])
    assert ended.value.code == 2 and "nothing was begun in runs/suites" in capfd.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"runs": {}}', '{"runs": {"a": 3}}', "half"])
def test_a_damaged_file_of_progress_is_one_line(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs" / "suites" / "quickstart"
    out.mkdir(parents=True)
    whole = {
        "suite": "quickstart", "launcher": "local", "updated": 1.0, "ended": "done",
        "runs": {"a seed 0": {"state": "done", "share": 1.0, "text": ""}},
    }  # fmt: skip
    written = json.dumps(whole)
    (out / "progress.json").write_text(written)
    with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
        main(["bench", "suite=quickstart", "status"])
    assert not ended.value.code and "1 of 1 runs, done" in capfd.readouterr().out
    (out / "progress.json").write_text(written[: len(written) // 2] if text == "half" else text)
    with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
        main(["bench", "suite=quickstart", "status"])
    told = capfd.readouterr().err
    assert ended.value.code == 2 and "progress.json" in told and told.count("\n") == 1, told
