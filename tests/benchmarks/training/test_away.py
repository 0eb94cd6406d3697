"""Runs whose folder belongs at an address: lost on one machine, gone on with on another one.

A machine is a scratch folder of its own here; the address is ``file://``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import SoftFileLease

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training import lease as leases
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.lease import LEASE, lease
from trimtab.benchmarks.training.mirror import MANIFEST
from trimtab.benchmarks.training.result import Result
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.storage import child_of, open_store
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError

WORDS = [
    "env=gym/InvertedPendulum-v5", "env_options.horizon=30", "algorithm=sac",
    "algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=20", "num_envs=1",
    "online_steps=120", "eval_episodes=2", "eval_every=60", "checkpoint_every=30",
]  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is there to be waited for."""
    monkeypatch.setattr(leases, "SETTLES", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run, carried out in a folder of this machine."""
    return carry_out(str(tmp_path_factory.mktemp("here")))


def carry_out(out: str, *callbacks: Callback) -> Result:
    return train(compose_run([*WORDS, f"out={out}"]), callbacks=callbacks)


def bits(result: Result) -> tuple[bytes, list[dict[str, Any]]]:
    """Return a run's weights and rows, without how long they took."""
    rows = read_episodes(result.folder / "episodes.parquet").drop_columns(["seconds"])
    return (result.folder / "policy" / "model.safetensors").read_bytes(), rows.to_pylist()


class At(Callback):
    """Does something when a run has come to a position; knows where it began."""

    def __init__(self, position: int, act: Any = None) -> None:
        self.position, self.act, self.first = position, act, 0

    def on_step(self, now: RunProgress) -> None:
        self.first = self.first or now.position
        if now.position >= self.position and self.act is not None:
            act, self.act = self.act, None
            act(now)


class Lost(Exception):
    """The machine is gone."""


def lose(now: RunProgress) -> None:
    raise Lost


def there(tmp_path: Path) -> tuple[str, Path]:
    """Return an address, and the folder that it is."""
    return f"file://{tmp_path}/there", tmp_path / "there"


def test_a_run_that_is_lost_on_one_machine_goes_on_on_another(
    whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    address, folder = there(tmp_path)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "one"))
    with pytest.raises(Lost):
        carry_out(address, At(100, lose))
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "two"))
    (line,) = listed(address, capfd)
    assert (line["state"], line["env_steps"]) == ("stopped", 90)
    assert line["run"] == str(whole.folder.relative_to(whole.folder.parents[4]))
    watched = At(0)
    result = carry_out(address, watched)
    assert watched.first == 91  # one step after its last checkpoint
    assert bits(result) == bits(whole)
    assert result.place == child_of(address, line["run"]) and not result.already_done
    config = (result.folder / "config.yaml").read_text()
    assert f"out: {address}" in config and str(tmp_path / "two") not in config
    # It is done for everybody, and a table is that of the run in a folder.
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "three"))
    sent = next(folder.rglob(MANIFEST)).read_bytes()
    assert carry_out(address).already_done
    assert next(folder.rglob(MANIFEST)).read_bytes() == sent
    arrays = [next((tmp_path / x).rglob("arrays.safetensors")) for x in ("two", "three")]
    assert arrays[0].stat().st_size == arrays[1].stat().st_size  # its content stayed where it is
    assert arrays[0].read_bytes() != arrays[1].read_bytes()
    assert [line["state"] for line in listed(address, capfd)] == ["done"]
    assert table(address, capfd) == table(str(whole.folder.parents[4]), capfd)
    # Nothing is left of what later checkpoints replaced.
    manifest = json.loads(next(folder.rglob(MANIFEST)).read_text())["files"]
    assert len([path for path in folder.rglob("*") if path.is_file()]) == len(manifest) + 1


def listed(address: str, capfd: Any) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit):
        main(["runs", address, "format=json"])
    return list(json.loads(capfd.readouterr().out))


def table(runs: str, capfd: Any) -> Any:
    with pytest.raises(SystemExit):
        main(["leaderboard", f"runs={runs}", "format=json"])
    found = json.loads(capfd.readouterr().out)
    return {key: value for key, value in found.items() if key != "command"}


def test_half_of_an_upload_is_what_was_there_before(
    whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = there(tmp_path)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "one"))

    def cut(now: RunProgress) -> None:
        """Let the machine be lost while the files of a checkpoint go out: before the manifest."""
        monkeypatch.setattr("trimtab.benchmarks.training.shelves.text_of_files", lose)

    with pytest.raises(Lost):
        carry_out(address, At(70, cut))
    monkeypatch.undo()
    (manifest,) = folder.rglob(MANIFEST)
    assert any("step-000000000090" in str(path) for path in folder.rglob("*"))
    assert not any(
        "step-000000000090" in name for name in json.loads(manifest.read_text())["files"]
    )
    monkeypatch.setattr(leases, "SETTLES", 0.0)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "two"))
    watched = At(0)
    assert bits(carry_out(address, watched)) == bits(whole)
    assert watched.first == 61
    named = json.loads(manifest.read_text())["files"]  # and nothing is left of what was lost
    assert len([path for path in folder.rglob("*") if path.is_file()]) == len(named) + 1
    # A file that is not what the manifest says is told, and nothing is made of it.
    (arrays,) = folder.rglob("model.safetensors.*")
    arrays.write_bytes(arrays.read_bytes()[:-1])
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "three"))
    with pytest.raises(TrimtabError, match="policy/model.safetensors: what came has .* bytes"):
        carry_out(address)


def test_who_loses_a_run_to_another_process_stops_and_sends_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = there(tmp_path)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "one"))
    monkeypatch.setattr(leases, "SURE_FOR", 0.0)
    other = b'{"host": "elsewhere"}\n'
    before: list[bytes] = []

    def take_over(now: RunProgress) -> None:
        (held,) = folder.rglob(LEASE)
        held.write_bytes(other)
        before.append(next(folder.rglob(MANIFEST)).read_bytes())

    with pytest.raises(TrimtabError, match="another process has taken it over"):
        carry_out(address, At(70, take_over))
    assert next(folder.rglob(MANIFEST)).read_bytes() == before[0]
    assert next(folder.rglob(LEASE)).read_bytes() == other
    monkeypatch.setattr(leases, "STALE_AFTER", 0.3)  # nobody renews it: it is left over
    carry_out(address)
    assert not list(folder.rglob(LEASE))


def test_who_loses_a_folder_by_a_lease_in_it_stops_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_LOCKS", "lease")
    before: dict[Path, int] = {}
    others: list[SoftFileLease] = []

    def take_over(now: RunProgress) -> None:
        (now.folder / "run.lock.held").unlink()
        others.append(SoftFileLease(now.folder / "run.lock.held", lease_duration=60))
        others[0].acquire(timeout=5)
        before.update(files())

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(TrimtabError, match="this one has stopped, and writes no more") as told:
        carry_out(str(tmp_path), At(70, take_over))
    assert told.value.exit_code == 2
    assert before and files() == before


CONTENDERS = """
import sys
from pathlib import Path

from trimtab.benchmarks.training import lease
from trimtab.benchmarks.training.storage import open_store

lease.SETTLES, lease.PAUSE = 0.3, 0.02
store, count = open_store(sys.argv[1], "out"), Path(sys.argv[2])
for _ in range(3):
    held = lease.lease(store, "a/run", wait=True)
    count.write_text(str(int(count.read_text()) + 1))
    held.end()
"""


def test_of_many_that_contend_for_a_lease_one_at_a_time_has_it(tmp_path: Path) -> None:
    address, folder = there(tmp_path)
    count = tmp_path / "count"
    count.write_text("0")
    command = [sys.executable, "-c", CONTENDERS, address, str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    contenders = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait(60) for process in contenders] == [0, 0, 0]
    assert count.read_text() == "9"
    assert not any(path.is_file() for path in folder.rglob("*"))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[str]:
    """An address at which another thread of this process has a run."""
    address, _ = there(tmp_path)
    one = lease(open_store(address, "out"), "a/run", wait=False)
    assert one is not None
    yield address
    one.end()


def test_a_lease_that_another_one_has_is_not_taken(held: str) -> None:
    assert lease(open_store(held, "out"), "a/run", wait=False) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", *WORDS, "out=nfs://host/runs"], "an address begins with one of file://"),
        (["train", *WORDS, "out=file:///"], "out=file:///: name a folder there"),
        (["runs", "s3://"], "runs=s3://: name a folder there"),
        (["runs", "file:///a b"], "a space in it as %20"),
        (["train", *WORDS, "out=file://{}/a-file/in"], "see that it can be reached and written to"),
        (["train", *WORDS, "base=file://{}/none"], "base=file://{}/none: there is no run"),
        (["runs", "file://{}/none"], "runs=file://{}/none: there is no run"),
        (["runs", "file://{}/none?a=b"], "runs=file://{}/none?a=b: "),
        (
            ["train", *WORDS, "base=file://{}/plain/seed0"],
            "files are there that were not written to it as to an address (by out=); give the "
            "plain path: {}/plain/seed0",
        ),
        (["runs", "file://{}/plain"], "give the plain path: {}/plain"),
        (["runs", "repair", "file://{}/plain/seed0"], "give the plain path: {}/plain/seed0"),
        (["train", *WORDS, "out=file:///proc/nope"], "another place with out=…"),
        (["runs", "repair", "file://{}/none"], "what lies at an address is whole or not there"),
        (["leaderboard", "runs=file://{}/none"], "there is no run"),
        (["leaderboard", "out=file://{}/none"], "out=file://{}/none: takes no address"),
        (["evaluate", "policy=s3://bucket/run"], "policy=s3://bucket/run: takes no address"),
        (["bench", "suite=quickstart", "out=s3://bucket/run"], "takes no address"),
    ],
)
def test_wrong_addresses_are_told_in_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "one"))
    (tmp_path / "a-file").touch()
    (tmp_path / "plain" / "seed0").mkdir(parents=True)
    (tmp_path / "plain" / "seed0" / "config.yaml").touch()
    with pytest.raises(SystemExit) as ended:
        main([word.replace("{}", str(tmp_path)) for word in words])
    shown = capfd.readouterr().err
    assert ended.value.code == 2 and shown.count("\n") == 1, shown
    assert told.replace("{}", str(tmp_path)) in shown
