"""Wrong input that a user met: one line that says what, where and what to do, and code 2."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.policies.bundle.files import CONFIG, sealed

SAC = ["train", "env=gym/Hopper-v5", "algorithm=sac"]


def line_of(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one line with which a command refuses its words."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capfd.readouterr()
    (line,) = shown.err.splitlines()
    assert ended.value.code == 2 and shown.out == ""
    return line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*SAC, "env=gym/Walker2d-v5"], "train: env is given twice, the second time as 'gym/Walk"),
        ([*SAC, "launcher=ray"], "train: launcher=ray: belongs to a sweep: add -m, such as -m see"),
        ([*SAC, "workers=2"], "train: workers=2: belongs to a sweep: add -m"),
        ([*SAC, "launcher.cpus=2"], "train: launcher.cpus=2: belongs to a sweep: add -m"),
    ],
)
def test_words(words: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert told in line_of(words, capfd)


@pytest.mark.parametrize("said", ["x", [1], 3])
def test_a_bundle_whose_training_is_no_mapping_is_not_exported_again(
    said: Any, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny.base / "policy", bundle)
    body = json.loads((bundle / CONFIG).read_text())
    files = {name: (bundle / name).read_bytes() for name in body["files"]}
    (bundle / CONFIG).write_text(json.dumps(sealed({**body, "training": said}, files)))
    line = line_of(["export", f"run={bundle}", f"out={tmp_path / 'again'}"], capfd)
    assert str(bundle) in line and "'training' must be facts by name" in line
    assert not (tmp_path / "again").exists()


def test_a_pipe_in_the_place_of_a_runs_rows_names_what_mends_it(
    tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "seed0"
    shutil.copytree(tiny.base, run)
    (run / "episodes.parquet").unlink()
    os.mkfifo(run / "episodes.parquet")
    line = line_of(["leaderboard", f"runs={tmp_path}"], capfd)
    assert "is no regular file" in line and f"move {run} away" in line
