"""Jobs of a cluster: how many there are, what they hear of their end, what is read of their files.

Small parts of the launchers, without a cluster; ``test_launchers.py`` has the whole.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.benchmarks.suites.launch import Start, Work, chosen_launcher, line_of
from trimtab.benchmarks.suites.launchers import slurm
from trimtab.errors import Stopped, TrimtabError


def launcher(folder: Path, workers: int = 0, cluster: str = "local", **settings: Any) -> Any:
    """Return the launcher of a cluster whose executor is :class:`Limited`."""
    chosen = {key: option.default for key, option in slurm.OPTIONS.items()}
    chosen |= {"cluster": "local", **settings}
    found = slurm._Jobs(Start(workers, lambda *said: None, chosen, folder), threading.Event())
    if cluster == "slurm":
        found._most = workers // found._size
    found._executor = Limited(100)
    return found


class Limited:
    """Takes no more jobs than a user may have on a cluster."""

    def __init__(self, most: int) -> None:
        self.most, self.there, self.asked = most, 0, list[int]()

    def submit_array(self, calls: list[slurm.Job]) -> list[Any]:
        self.asked.append(len(calls))
        if self.there + len(calls) > self.most:
            raise RuntimeError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        self.there += len(calls)
        return [
            SimpleNamespace(
                job_id=str(self.there - i), state="FAILED", ended=False,
                done=lambda: False, paths=SimpleNamespace(stderr="a log"),
            )
            for i in range(len(calls))
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "runs_a_job", "runs", "arrays"),
    [
        (0, 4, 9, [3]),
        (8, 4, 9, [2]),
        (7, 4, 9, [1]),
        (3, 4, 9, [1]),
        (5, 1, 9, [5]),
        (0, 1, 9, [9]),
    ],
)
def test_workers_are_runs_and_not_jobs(
    workers: int, runs_a_job: int, runs: int, arrays: list[int], tmp_path: Path
) -> None:
    found = launcher(tmp_path, workers, "slurm", runs_a_job=runs_a_job)
    for number in range(runs):
        found.submit(Work(f"run {number}", ()))
    found._hand_over()
    found._hand_over()  # there is no more room
    assert found._executor.asked == arrays
    there = sum(len(sent.works) for sent in found._sent)
    assert there + len(found._waiting) == runs and there <= (workers or runs)


def test_jobs_that_are_not_taken_are_submitted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = launcher(tmp_path, cluster="slurm")
    found.submit(Work("run 0", ()))
    found._hand_over()
    found._executor.most = 2
    for number in (1, 2):
        found.submit(Work(f"run {number}", ()))
    found._hand_over()
    found._hand_over()  # it is not asked again at once
    assert found._executor.asked == [1, 2] and "QOSMaxSubmitJobPerUserLimit" in caplog.text
    found._not_before, found._executor.most = 0.0, 10
    found._hand_over()
    assert len(found._sent) == 3 and not found._waiting
    # Where nothing of this command is there, nothing that ends could make room.
    alone = launcher(tmp_path / "alone", cluster="slurm")
    alone._executor.most = 0
    alone.submit(Work("a run", ()))
    with pytest.raises(TrimtabError, match="QOSMaxSubmitJobPerUserLimit; .* workers="):
        alone._hand_over()


def test_a_job_that_ends_without_a_word_is_sent_again_some_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SETTLES", 0.0)
    found = launcher(tmp_path, retries=2, runs_a_job=2)
    futures = [found.submit(Work(f"run {number}", ())) for number in range(2)]
    for tries in (1, 2, 3):
        found._hand_over()
        (sent,) = found._sent
        assert sent.tries == tries and sorted(sent.works) == ([0, 1] if tries == 1 else [1])
        if tries == 1:
            slurm._outcome_path(found._notes, 0).write_text('{"error": "its own"}')
        sent.job.done = lambda: True
        found._read()
    assert not found._sent and not found._waiting
    for future, said in zip(
        futures, ("its own", "ended .failed. before its runs did"), strict=True
    ):
        with pytest.raises(TrimtabError, match=said):
            future.result()


def test_a_file_that_is_stale_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path, most: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    file = tmp_path / "0.outcome.json"
    file.write_text('{"error": "it failed"}')
    assert slurm._said(file, "outcome") == {"error": "it failed"}
    with monkeypatch.context() as moment:
        moment.setattr("trimtab.files.read_bytes", stale)
        assert slurm._said(file, "outcome") is None
    file.write_text("{")
    with pytest.raises(TrimtabError, match="not readable JSON"):
        slurm._said(file, "outcome")
    assert slurm._said(tmp_path / "1.outcome.json", "outcome") is None


@pytest.mark.parametrize("listens", [False, True])
def test_a_notice_of_the_end_saves_the_run_and_queues_the_job_anew(
    listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that hears it before its run listens is queued anew at once."""

    class Left(BaseException):
        pass

    def leave(*said: object) -> None:
        raise Left

    def saved(*said: object) -> None:
        raise Stopped("saved")

    def attempt(work: Work, tell: Any) -> dict[str, Any]:
        if listens:
            signal.signal(signal.SIGTERM, saved)
        os.kill(os.getpid(), signal.SIGUSR2)
        raise AssertionError("the run continues")

    monkeypatch.setattr(slurm, "attempt", attempt)
    before = signal.getsignal(signal.SIGTERM)
    usual = signal.signal(signal.SIGUSR2, leave)
    try:
        with pytest.raises(Left):
            slurm.Job([(0, Work("a run", ()))], tmp_path)._carry_out(0, Work("a run", ()))
        assert signal.getsignal(signal.SIGUSR2) is leave
    finally:
        signal.signal(signal.SIGUSR2, usual)
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())


def test_an_error_in_a_task_of_ray_is_told_without_where_it_was() -> None:
    from ray.exceptions import RayTaskError, WorkerCrashedError

    trace = 'ray::_carry_out()\n  File "launch.py", line 3, in carry_out\nKeyError: "a"'
    error = RayTaskError("_carry_out", trace, KeyError("a"))
    assert line_of(error.as_instanceof_cause()) == "KeyError: 'a'"
    assert line_of(WorkerCrashedError()).startswith("The worker died unexpectedly")


@pytest.mark.parametrize(
    "word",
    ["gpus=1.5", "cpus=inf", "cpus=nan", "resources={a: .inf}", "resources={a: .nan}"],
)
def test_numbers_that_ray_does_not_take_are_told_before_it_starts(word: str) -> None:
    with pytest.raises(TrimtabError, match="launcher.*must be"):
        chosen_launcher("ray", [f"launcher.{word}"])
    assert chosen_launcher("ray", ["launcher.gpus=0.5", "launcher.cpus=1.5"]).settings["cpus"]
