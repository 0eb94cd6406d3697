"""Launchers are listed, and what is wrong with their words or programs is told in one line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from trimtab.benchmarks.cli.main import main


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://head:10001", "head", "127.0.0.1:99999"])
def test_an_address_without_ray_is_told_at_once(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
        main(["bench", "suite=quickstart", "launcher=ray", f"launcher.address={address}"])
    shown = capfd.readouterr().err
    assert ended.value.code == 2 and f"launcher.address={address}: nothing answers" in shown
    assert shown.count("\n") == 1, shown


@pytest.mark.parametrize("missing", ["srun", "sacct"])
def test_slurm_without_one_of_its_programs(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in {"sbatch", "srun", "sacct"} - {missing}:
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(programs)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "suite=quickstart", "launcher=slurm"])
    shown = capfd.readouterr().err
    assert ended.value.code == 2 and shown.count("\n") == 1
    assert f"launcher=slurm: {missing} is not on the PATH" in shown
    assert len(list(programs.iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["launcher=ray", "launcher.resources=a100"], "launcher.resources=a100: must be like"),
        (["launcher=ray", "launcher.cpus=half"], "launcher.cpus=half: must be a number"),
        (["launcher=slurm"], "launcher=slurm: sbatch is not on the PATH"),
        (["launcher=slurn"], "there is no such launcher; did you mean slurm?"),
        (["launcher.cpus=2"], "launcher=local has no setting 'cpus'; it has none"),
        (["launcher=slurm", "launcher.gpu=1"], "no setting 'gpu'; did you mean gpus?"),
        (["launcher=slurm", "launcher.cpus=many"], "launcher.cpus=many: must be a whole number"),
        (["launcher=slurm", "launcher.cpus=-1"], "launcher.cpus=-1: must be a whole number"),
        (["launcher=slurm", "launcher.minutes=0"], "launcher.minutes=0: must be 1 or more"),
        (["launcher=slurm", "launcher.more=3"], "launcher.more=3: must be like"),
        (["launcher=slurm", "launcher.cluster=slum"], "launcher.cluster=slum: did you mean slurm"),
        (["launcher=slurm", "launcher.cpus=1", "launcher.cpus=2"], "launcher.cpus is given twice"),
    ],
)
@pytest.mark.parametrize("command", [["bench", "suite=quickstart"], ["train", "-m", "seed=0,1"]])
def test_wrong_words_are_told_in_one_line(
    command: list[str],
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([*command, *words])
    shown = capfd.readouterr().err
    assert ended.value.code == 2
    assert told in shown and shown.count("\n") == 1, shown
    assert not any(tmp_path.iterdir())


def test_launchers_are_listed_with_their_settings(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["list", "launcher", "format=json"])
    shown = capfd.readouterr().out
    for word in ("local", "slurm", "launcher.partition", "trimtab[slurm]"):
        assert f'"{word}' in shown or f"'{word}" in shown
