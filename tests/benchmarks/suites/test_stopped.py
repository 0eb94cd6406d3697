"""Told to end by SIGTERM, a suite and a recording end whole: one line, and nobody left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow

DATA = ["dataset=two_routes", "dataset.episodes=40"]  # more than one block: by recorders
SUITE = {
    "title": "Slow",
    "seeds": [0, 1, 2],
    "common": ["env=robotics/PointMaze-TwoRoutes-v0", "eval_episodes=2"],
    "runs": {
        "clone": {
            "seconds": 600,
            "overrides": [
                *DATA, "policy=flow", "policy.hidden=[16]", "algorithm=bc",
                "offline_steps=10000000",
            ],
        },
    },
}  # fmt: skip
SOURCE = Path(__file__).parents[3] / "src"
GOES_ON = "run the same command to resume"
Moment = Callable[[Path, str], bool]


def started_by(word: str) -> list[psutil.Process]:
    """Return the processes that have a word in their environment, also those nobody's child."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("STARTED_BY") == word:
                found.append(process)
    return found


def worker_starts(runs: Path, word: str) -> bool:
    """A worker was started a moment ago; it has hardly begun.

    Before it there may be a process of glfw's, which looks for its library and ends.
    """
    for process in started_by(word):
        with contextlib.suppress(psutil.Error):
            if any("trimtab.child" in part for part in process.cmdline()):
                return True
    return False


def recorders_record(runs: Path, word: str) -> bool:
    return bool(list(runs.glob("datasets/*/blocks")))


def train(count: int) -> Moment:
    """So many runs train."""
    return lambda runs, word: len(list(runs.rglob("metrics.jsonl"))) == count


def stopped(
    words: list[str], moment: Moment, folder: Path, *, group: bool, number: int = signal.SIGTERM
) -> tuple[int, str]:
    """Start a command, send a signal at a moment; return its exit code and its standard error."""
    word = str(folder)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "STARTED_BY": word}
    command = [sys.executable, "-m", "trimtab.benchmarks.cli.main", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 240
        while not moment(folder / "runs", word) and process.poll() is None:
            assert time.monotonic() < deadline, "that moment never came"
            time.sleep(0.05)
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, told = process.communicate(timeout=90)
        deadline = time.monotonic() + 10
        while (left := started_by(word)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, [one.cmdline() for one in left]
    finally:
        process.kill()
        for one in started_by(word):
            one.kill()
    return process.returncode, told


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """The word that names a suite of one's own."""
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(SUITE))
    return f"suite={tmp_path / 'slow.yaml'}"


# Each moment and each way of telling; their whole product takes twice as long.
@pytest.mark.parametrize(
    ("moment", "group"),
    [(worker_starts, False), (recorders_record, True)],
)
def test_a_suite_told_to_end_before_it_trains(
    moment: Moment, group: bool, slow: str, tmp_path: Path
) -> None:
    code, told = stopped(["bench", slow], moment, tmp_path, group=group)
    assert code == 143, told
    assert told.splitlines()[-1].startswith("trimtab: stopped") and GOES_ON in told
    assert "Traceback" not in told and "Error" not in told
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_ctrl_c_while_workers_start_is_one_line(slow: str, tmp_path: Path) -> None:
    """A terminal sends it to the whole group."""
    code, told = stopped(["bench", slow], worker_starts, tmp_path, group=True, number=signal.SIGINT)
    assert code == 130, told
    assert told.splitlines()[-1].startswith("trimtab: interrupted") and "Traceback" not in told


# Either the suite tells every worker, or each of the group hears of it itself.
@pytest.mark.parametrize(("group", "workers"), [(False, 2), (True, 1)])
def test_a_suite_told_to_end_while_it_trains_saves_its_runs(
    group: bool, workers: int, slow: str, tmp_path: Path
) -> None:
    few = (tmp_path / "slow.yaml").read_text().replace("episodes=40", "episodes=4")
    (tmp_path / "slow.yaml").write_text(few)  # recorded here and at once: no recorders start
    words = ["bench", slow, f"workers={workers}"]
    code, told = stopped(words, train(workers), tmp_path, group=group)
    assert code == 143, told
    assert told.splitlines()[-1].startswith("trimtab: stopped") and GOES_ON in told
    assert "Traceback" not in told and "Error" not in told
    folders = [path.parent for path in tmp_path.rglob("provenance.json")]
    assert len(folders) == workers  # the next one was not started
    for folder in folders:
        assert load_checkpoint(folder / "checkpoint") is not None


@pytest.mark.parametrize(("moment", "group"), [(worker_starts, True), (recorders_record, False)])
def test_a_recording_told_to_end_leaves_nobody(moment: Moment, group: bool, tmp_path: Path) -> None:
    words = ["dataset", "make", "dataset=two_routes", "dataset.episodes=4000"]
    code, told = stopped(words, moment, tmp_path, group=group)
    assert code == 143, told
    assert told.splitlines()[-1].startswith("trimtab: stopped") and GOES_ON in told
    assert "Traceback" not in told and "Error" not in told


def test_a_signal_that_comes_too_late_is_not_lost() -> None:
    """What it is for has ended by then; who listens outside hears of it."""
    heard = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        with sigterm_as_event() as told:
            os.kill(os.getpid(), signal.SIGTERM)
            assert told.wait(5.0) and not heard.is_set()
        assert heard.wait(5.0)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_of_earlier_does_not_stop_a_sweep_of_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    test_a_signal_that_comes_too_late_is_not_lost()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", "env=gym/Hopper-v5", "algorithm=sca", "-m", "seed=0,1"])
    assert ended.value.code == 2, capfd.readouterr().err
