"""Jobs of a cluster: how many there are, what they hear of their end, what is read of their files.

Small parts of the launchers, without a cluster; ``test_launchers.py`` has the whole.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.suites import jobs
from trimtab.benchmarks.suites.clusters import CLUSTERS
from trimtab.benchmarks.suites.launch import Start, Work, chosen_launcher, launcher_kinds
from trimtab.benchmarks.suites.launchers import slurm
from trimtab.benchmarks.suites.ray_needs import line_of
from trimtab.errors import TrimtabError


class Answers:
    """A cluster that gives the answers that it was told, and notes what it is asked."""

    def __init__(self, *states: dict[str, str] | None) -> None:
        self.left, self.cancelled, self.asked = list(states), 0, (0, 0)
        self.cancelled_names = list[str]()
        self.gathers, self.places = 0.0, 10

    def check(self) -> None:
        return

    def room(self, runs: int, most: int, there: int) -> int:
        return self.places

    def parameters(self, settings: Mapping[str, Any], runs: int, most: int) -> dict[str, Any]:
        self.asked = runs, most
        return {}

    def states(self, sent: Mapping[str, Any]) -> dict[str, str] | None:
        return self.left.pop(0)

    def cancel(self, id: str) -> None:
        self.cancelled += 1

    def cancel_named(self, name: str) -> None:
        self.cancelled_names.append(name)


def launcher(folder: Path, cluster: Answers, workers: int = 0, runs_a_job: int = 1) -> Any:
    """Return the launcher of a cluster."""
    settings = {key: option.default for key, option in slurm.OPTIONS.items()}
    settings |= {"cluster": "local", "runs_a_job": runs_a_job}
    start = Start(workers, lambda *said: None, settings, folder)
    return slurm._Jobs(start, cluster, threading.Event())


def test_no_answer_of_squeue_is_no_end_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "LOOK", 0.001)
    monkeypatch.setattr(slurm, "AGAIN", 0.0)
    cluster = Answers(None, None, {"7": "COMPLETING"}, {"7": "CANCELLED"}, None)
    found = launcher(tmp_path, cluster)
    found._sent["7"] = slurm._Sent({0: Work("a run", ())}, "7")
    found.end()
    assert len(cluster.left) == 1  # asked until it was told
    assert cluster.cancelled == 4  # a job that only begins may not have heard the first


@pytest.mark.parametrize(
    ("workers", "runs_a_job", "runs", "jobs_at_once"),
    [(0, 4, 4, 0), (8, 4, 4, 2), (7, 4, 4, 1), (3, 4, 3, 1), (5, 1, 1, 5)],
)
def test_workers_are_runs_and_not_jobs(
    workers: int, runs_a_job: int, runs: int, jobs_at_once: int, tmp_path: Path
) -> None:
    cluster = Answers()
    launcher(tmp_path, cluster, workers, runs_a_job)
    assert cluster.asked == (runs, jobs_at_once)
    assert runs * jobs_at_once <= workers


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


def test_a_job_that_is_told_before_its_run_listens_ends_or_is_queued_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as ended, jobs._told_before_the_end():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    queued: list[int] = []
    usual = signal.signal(signal.SIGUSR2, lambda number, frame: queued.append(number))
    try:
        with jobs._told_before_the_end():
            os.kill(os.getpid(), signal.SIGUSR2)  # the notice, while nothing listens
            assert queued == [signal.SIGUSR2]
            os.kill(os.getpid(), signal.SIGTERM)  # that notice once more, when a run has ended
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGUSR2, usual)


def test_an_error_in_a_task_of_ray_is_told_without_where_it_was() -> None:
    from ray.exceptions import RayTaskError, WorkerCrashedError

    trace = 'ray::_carry_out()\n  File "launch.py", line 3, in carry_out\nKeyError: "a"'
    error = RayTaskError("_carry_out", trace, KeyError("a"))
    assert line_of(error.as_instanceof_cause()) == "KeyError: 'a'"
    assert line_of(WorkerCrashedError()).startswith("The worker died unexpectedly")


@pytest.mark.parametrize(
    "word",
    [
        "cpus=0.00001", "gpus=0.00002", "gpus=1.5", "cpus=inf", "cpus=nan", "memory_gb=inf",
        "resources={a: .inf}", "resources={a: .nan}", "resources={a: 0.00001}", "resources={a: 0}",
    ],
)  # fmt: skip
def test_numbers_that_ray_does_not_take_are_told_before_it_starts(word: str) -> None:
    with pytest.raises(TrimtabError, match="launcher.*must be"):
        chosen_launcher("ray", [f"launcher.{word}"])
    assert chosen_launcher("ray", ["launcher.gpus=0.5", "launcher.cpus=1.5"]).settings["cpus"]
    assert launcher_kinds()["ray"].options["cpus"].default == 1.0


def test_more_cores_than_this_machine_has_are_refused_before_ray_starts() -> None:
    with pytest.raises(TrimtabError, match=r"launcher.cpus=10000: this machine has \d+ cores"):
        chosen_launcher("ray", ["launcher.cpus=10000", "launcher.grows=1"])


class Limited:
    """Takes no more jobs than a user may have on a cluster."""

    def __init__(self, most: int) -> None:
        self.most, self.there, self.asked = most, 0, list[int]()
        self.names, self.lost = list[str](), ""

    def update_parameters(self, name: str) -> None:
        self.names.append(name)

    def submit_array(self, calls: list[Any]) -> list[Any]:
        self.asked.append(len(calls))
        if self.lost:
            raise RuntimeError(self.lost)
        if self.there + len(calls) > self.most:
            raise RuntimeError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        first = self.there
        self.there += len(calls)
        return [types.SimpleNamespace(job_id=str(first + i)) for i in range(len(calls))]


def test_what_a_cluster_does_not_take_is_submitted_later_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = launcher(tmp_path, Answers())
    found._executor = limited = Limited(3)
    for number in range(5):
        found.submit(Work(f"run {number}", ()))
    found._hand_over()
    found._hand_over()
    assert limited.asked == [5, 2] and len(found._sent) == 2
    found._hand_over()
    found._hand_over()  # it is not asked again at once
    assert limited.asked == [5, 2, 3] and "QOSMaxSubmitJobPerUserLimit" in caplog.text
    monkeypatch.setattr(slurm, "LATER", 0.0)
    found._not_before = 0.0
    for _ in range(4):
        found._hand_over()
    assert limited.asked[3] == 1 and len(found._sent) == 3
    limited.most = 10  # others have ended
    for _ in range(4):
        found._hand_over()
    assert len(found._sent) == 5 and not found._waiting
    assert {work.label for sent in found._sent.values() for work in sent.works.values()} == {
        f"run {number}" for number in range(5)
    }
    # Where nothing of this command is there, nothing that ends could make room.
    alone = launcher(tmp_path / "alone", Answers())
    alone._executor = Limited(0)
    alone.submit(Work("a run", ()))
    with pytest.raises(TrimtabError, match="nothing could be submitted: sbatch: error: QOSMax"):
        alone._hand_over()


def test_an_array_whose_answer_was_lost_is_told_to_end_and_not_cut_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been taken: its jobs would be there twice, and nobody would know them."""
    cluster = Answers()
    found = launcher(tmp_path, cluster)
    found._executor = executor = Limited(100)
    found.submit(Work("run 0", ()))
    found._hand_over()
    monkeypatch.setattr(slurm, "LATER", 0.0)
    executor.lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv"
    for number in (1, 2):
        found.submit(Work(f"run {number}", ()))
    found._hand_over()
    executor.lost = ""
    found._hand_over()
    assert executor.asked == [1, 2, 2] and len(found._sent) == 3
    # It is told again before the next array: the first word may not have been heard, either.
    assert cluster.cancelled_names == executor.names[1:2] * 2 and len({*executor.names}) == 3
    # What fails every time is not tried for ever.
    executor.lost = "sbatch: error: Invalid account or account/partition combination specified"
    found.submit(Work("run 3", ()))
    for _ in range(slurm.FAILURES):
        found._hand_over()
    with pytest.raises(TrimtabError, match="nothing could be submitted: sbatch: error: Invalid ac"):
        found._hand_over()
    # And with nothing else there, not even once more.
    cluster = Answers()
    alone = launcher(tmp_path / "alone", cluster)
    alone._executor = executor
    alone.submit(Work("a run", ()))
    with pytest.raises(TrimtabError, match="nothing could be submitted"):
        alone._hand_over()
    assert {*cluster.cancelled_names} == {executor.names[-1]}


def test_an_array_whose_submission_was_interrupted_is_told_to_end(tmp_path: Path) -> None:
    cluster = Answers()
    found = launcher(tmp_path, cluster)
    found._executor = executor = Limited(100)

    def taken_and_interrupted(calls: list[Any]) -> list[Any]:
        raise KeyboardInterrupt

    executor.submit_array = taken_and_interrupted  # type: ignore[method-assign]
    found.submit(Work("run 0", ()))
    with pytest.raises(KeyboardInterrupt):
        found._hand_over()
    found.end()
    assert cluster.cancelled_names == executor.names


def test_jobs_that_not_all_have_a_place_are_submitted_together(tmp_path: Path) -> None:
    cluster = Answers()
    found = launcher(tmp_path, cluster)
    found._executor = executor = Limited(100)

    def handed_over(runs: int, places: int) -> list[int]:
        cluster.places = places
        for _ in range(runs):
            found.submit(Work("run", ()))
        found._hand_over()
        return executor.asked

    cluster.gathers = 1e9
    assert handed_over(3, 3) == [3]
    assert handed_over(1, 1) == [3, 1]  # one that takes the place of one that ended does not wait
    assert handed_over(3, 2) == [3, 1]
    cluster.gathers = 0.0
    assert handed_over(0, 2) == [3, 1, 2]
    assert handed_over(0, 0) == [3, 1, 2]


def test_workers_are_all_jobs_together_and_not_those_of_each_array() -> None:
    """A later array has the places that are free."""
    cluster = CLUSTERS["slurm"]()
    assert [cluster.room(1, 3, there) for there in (0, 1, 2, 3, 40)] == [500, 2, 1, 0, 0]
    assert [cluster.room(1, 1, there) for there in (0, 1)] == [500, 0]
    assert cluster.room(1, 0, 800) == 500  # no limit is asked for
    settings = {key: option.default for key, option in slurm.OPTIONS.items()}
    assert cluster.parameters(settings, 1, 3)["slurm_array_parallelism"] == 3


def test_the_states_of_jobs_are_single_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "squeue"
    lines = ["7_0|RUNNING", "7_1|CANCELLED by 0", "8| ", "9|", "slurm_load_jobs error: none"]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    states = {"7_0": "RUNNING", "7_1": "CANCELLED", "8": "UNKNOWN", "9": "UNKNOWN"}
    assert CLUSTERS["slurm"]().states({}) == states
