"""A suite finds on a cluster what it finds on this machine, bit for bit, whatever is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.suites.launchers import slurm as slurm_jobs


@pytest.fixture(scope="module")
def here(tiny_suite: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the suite finds in processes of this machine."""
    folder = tmp_path_factory.mktemp("here")
    tiny_suite.bench(folder, "workers=2")
    return tiny_suite.found(folder)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the cluster asked often."""
    monkeypatch.setattr(slurm_jobs, "ASK", 0.5)
    monkeypatch.setattr(slurm_jobs, "LOOK", 0.1)


def in_time(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until there is something."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "that moment never came"
        time.sleep(0.02)
    return value


def position(run: Path) -> int:
    """Return where a run would go on from."""
    saved = [path.name.removeprefix("step-") for path in run.glob("checkpoint/step-*")]
    return max(map(int, saved), default=0)


def trained_a_while(folder: Path, seed: int) -> Path | None:
    """Return the folder of a run that has saved its state twice."""
    runs = folder.glob(f"runs/**/bc/*/seed{seed}")
    return next((run for run in runs if position(run) >= 100), None)


def test_slurm_finds_the_same_although_a_job_is_preempted_and_another_one_killed(
    here: Any, tiny_suite: Any, slurm: Path, soon: None, tmp_path: Path
) -> None:
    saved: list[int] = []

    def take_away() -> None:
        """Pre-empt the job of seed 0 as Slurm does; kill that of seed 1 without a word."""
        run = in_time(lambda: trained_a_while(tmp_path, 0))
        os.kill(int((slurm / "process.100_0").read_text()), signal.SIGUSR2)
        in_time(lambda: trained_a_while(tmp_path, 1))
        os.kill(int((slurm / "process.100_1").read_text()), signal.SIGKILL)
        in_time(lambda: (slurm / "requeued.100_0").exists())
        saved.append(position(run))

    taker = threading.Thread(target=take_away, daemon=True)
    taker.start()
    tiny_suite.bench(tmp_path, "launcher=slurm", "launcher.partition=robots", "launcher.minutes=30")
    taker.join(10)
    assert saved and 100 <= saved[0] < 1200
    assert tiny_suite.found(tmp_path) == here
    # An array of the two clones, the one that was killed again, and what starts from a clone.
    batches = [(slurm / f"batch.{job}").read_text() for job in (100, 101, 102)]
    assert ["--array=0-1%" in batch for batch in batches] == [True, False, False]
    for line in ("--partition=robots", "--time=30", "--cpus-per-task=1", "--signal=USR2@90"):
        assert f"#SBATCH {line}\n" in batches[0]
    log = next(tmp_path.rglob("100_0_0_log.out")).read_text()
    assert "Caught signal SIGUSR2" in log and "Requeued job 100_0" in log


def test_submitits_own_executor_finds_the_same_with_two_runs_a_job(
    here: Any, tiny_suite: Any, soon: None, tmp_path: Path
) -> None:
    tiny_suite.bench(tmp_path, "launcher=slurm", "launcher.cluster=local", "launcher.runs_a_job=2")
    assert tiny_suite.found(tmp_path) == here
    assert len(list(tmp_path.rglob("*_submitted.pkl"))) == 2  # the clones, then the frozen one


@pytest.mark.parametrize(
    ("words", "told"),
    [
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
