"""A suite finds on a cluster what it finds on this machine, bit for bit, whatever is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab.benchmarks.suites.launchers import slurm as slurm_jobs
from trimtab.benchmarks.training.locking import in_use

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here(tiny_suite: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the suite finds in a process of this machine."""
    folder = tmp_path_factory.mktemp("here")
    tiny_suite.bench(folder, "workers=1")
    return tiny_suite.found(folder)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the files of jobs looked at often."""
    monkeypatch.setattr(slurm_jobs, "SETTLES", 0.5)
    monkeypatch.setattr(slurm_jobs, "LOOK", 0.1)


def in_time(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
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
    """Return the folder of a run that has saved its state."""
    runs = folder.glob(f"runs/**/bc/*/seed{seed}")
    with contextlib.suppress(FileNotFoundError):  # a folder went while it was looked through
        return next((run for run in runs if position(run) >= 100), None)
    return None


def test_slurm_finds_the_same_although_a_job_is_preempted_and_another_one_killed(
    here: Any, tiny_suite: Any, slurm: Path, soon: None, tmp_path: Path
) -> None:
    saved: list[int] = []

    def preempt() -> None:
        """Pre-empt the job of seed 0 as Slurm does."""
        run = in_time(lambda: trained_a_while(tmp_path, 0))
        os.kill(int((slurm / "process.100_0").read_text()), signal.SIGUSR2)
        in_time(lambda: (slurm / "requeued.100_0").exists())
        saved.append(position(run))

    def kill() -> None:
        """Kill the job of seed 1 without a word."""
        in_time(lambda: trained_a_while(tmp_path, 1))
        os.kill(int((slurm / "process.100_1").read_text()), signal.SIGKILL)

    takers = [threading.Thread(target=taker, daemon=True) for taker in (preempt, kill)]
    for taker in takers:
        taker.start()
    tiny_suite.bench(tmp_path, "launcher=slurm", "launcher.partition=robots", "launcher.minutes=30")
    for taker in takers:
        taker.join(10)
    assert saved and 100 <= saved[0] < tiny_suite.steps
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


def test_a_suite_goes_on_without_its_terminal_and_says_how_far_it_is(
    here: Any,
    tiny_suite: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its runs go to an address."""
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "scratch"))
    words = ["workers=1", f"runs=file://{tmp_path}/there"]
    tiny_suite.write(tmp_path)
    command = [sys.executable, "-m", "trimtab.benchmarks.cli.main", "bench", "suite=tiny.yaml"]
    process = subprocess.Popen(
        [*command, *words], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    out = tmp_path / "runs" / "suites" / "tiny"
    in_time((out / "suite.json").is_file)

    def state() -> str:
        now: str = json.loads(tiny_suite.bench(tmp_path, "status", "format=json"))["state"]
        return now

    assert state() == "running"
    assert process.wait(240) == 0
    assert state() == "done"
    assert tiny_suite.found(tmp_path, "there") == here
    assert "3 of 3 runs are done" in tiny_suite.bench(tmp_path, "status")
    # A process that is gone is told from one that goes on.
    note = json.loads((out / "suite.json").read_text())
    del note["folders"]["frozen/0"]
    (out / "suite.json").write_text(json.dumps({**note, "waiting": ["frozen/0"]}))
    told = tiny_suite.bench(tmp_path, "status")
    assert "2 of 3 runs are done; run the same command" in told


class Cluster:
    """Two nodes of Ray on this machine, of one core each."""

    def __init__(self, folder: Path) -> None:
        self.address = ""
        self.log = (folder / "nodes.log").open("wb")
        self.folder, self.nodes = folder, list[psutil.Popen]()

    def start(self) -> None:
        """Start the nodes, one after the other.

        Ray gives a node up that is not there within 30 seconds, which a busy machine may not be
        able to do; then both are started again.
        """
        for _ in range(3):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.address, before = f"127.0.0.1:{port}", self.started()
            head = ["--head", f"--port={port}", "--include-dashboard=false"]
            self.nodes = [self.node(*head, f"--temp-dir={self.folder}")]
            if self.comes(before + 1):
                self.nodes.append(self.node(f"--address={self.address}"))
                if self.comes(before + 2):
                    return
            self.end()
        raise AssertionError(Path(self.log.name).read_text()[-2000:])

    def start_second(self) -> None:
        """Start a node in the place of the one that was lost."""
        count = self.started() + 1
        self.nodes[1] = self.node(f"--address={self.address}")
        assert self.comes(count), Path(self.log.name).read_text()[-2000:]

    def comes(self, count: int) -> bool:
        """Wait for so many nodes to say that they are there; return whether the last one did."""
        in_time(lambda: self.started() >= count or self.nodes[-1].poll() is not None)
        return self.started() >= count

    def end(self) -> None:
        """End the nodes that are there."""
        for node in reversed(self.nodes):
            if node.is_running():
                self.lose(node)

    def node(self, *words: str) -> psutil.Popen:
        """Start a node; one that is lost is noticed within a second."""
        common = ["--num-cpus=1", "--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]
        soon = {"period_ms": "300", "initial_delay_ms": "300", "failure_threshold": "3"}
        environment = {
            **os.environ, "PYTHONUNBUFFERED": "1",
            **{f"RAY_health_check_{name}": value for name, value in soon.items()},
        }  # fmt: skip
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        return psutil.Popen(
            [*command, *common, "--disable-usage-stats", *words], env=environment,
            stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip

    def started(self) -> int:
        """Return how many nodes say that they are there."""
        return Path(self.log.name).read_text().count("Ray runtime started")

    def lose(self, node: psutil.Popen) -> None:
        """End all processes of a node at once, as if its machine were switched off."""
        for process in [*node.children(recursive=True), node]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait(20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes; their sockets' names may have 107 letters at most, hence the short folder."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "disabled")  # whatever token a home folder has
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(folder)
        try:
            made.start()
            yield made
        finally:
            made.end()
            made.log.close()
            shutil.rmtree(folder, ignore_errors=True)


def stopped_while_it_trains(tiny_suite: Any, folder: Path, *words: str) -> list[Path]:
    """Start a suite, tell it to end once both its clones train; return their folders."""
    tiny_suite.write(folder, steps=10_000_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.benchmarks.cli.main", "bench", "suite=tiny.yaml", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        in_time(
            lambda: process.poll() is not None or all(trained_a_while(folder, i) for i in (0, 1))
        )
        assert process.poll() is None, process.communicate()[1]
        runs = [trained_a_while(folder, seed) for seed in (0, 1)]
        before = {run: position(run) for run in runs if run is not None}
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 143, told
    assert "run the same command to resume" in told.splitlines()[-1] and "Traceback" not in told
    assert len(before) == 2 and all(position(run) > steps for run, steps in before.items())
    return sorted(path.parent for path in folder.rglob("provenance.json"))


def test_slurms_jobs_end_with_the_command_and_save_their_runs(
    tiny_suite: Any, slurm: Path, tmp_path: Path
) -> None:
    runs = stopped_while_it_trains(tiny_suite, tmp_path, "launcher=slurm")
    assert {(slurm / f"state.100_{index}").read_text() for index in (0, 1)} == {"CANCELLED"}
    in_time(lambda: not any(in_use(run) for run in runs))


def test_rays_tasks_end_with_the_command_and_save_their_runs(
    tiny_suite: Any, cluster: Cluster, tmp_path: Path
) -> None:
    words = ["launcher=ray", f"launcher.address={cluster.address}"]
    runs = stopped_while_it_trains(tiny_suite, tmp_path, *words)
    in_time(lambda: not any(in_use(run) for run in runs))


def test_ray_finds_the_same_although_a_node_is_lost(
    here: Any, tiny_suite: Any, cluster: Cluster, tmp_path: Path
) -> None:
    def left_when_lost(out: Path) -> list[int]:
        """Carry the suite out, and lose the second node; return how far each run had to go then."""
        left = list[int]()
        out.mkdir(parents=True)

        def take_away() -> None:
            runs = [in_time(lambda seed=seed: trained_a_while(out, seed)) for seed in (0, 1)]
            cluster.lose(cluster.nodes[1])
            left.extend(tiny_suite.steps - position(run) for run in runs)

        taker = threading.Thread(target=take_away, daemon=True)
        taker.start()
        tiny_suite.bench(out, "launcher=ray", f"launcher.address={cluster.address}")
        taker.join(10)
        assert len(left) == 2 and tiny_suite.found(out) == here
        return left

    # On a busy machine a node may begin when the other one's run has ended; then once more.
    for number in range(3):
        if met := min(left_when_lost(tmp_path / str(number))) > 0:
            break
        cluster.start_second()
    assert met, "each node was to be in the middle of a run"
