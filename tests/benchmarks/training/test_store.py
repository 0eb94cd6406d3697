"""Runs at an address: lost on one machine, continued on another one.

A machine is a scratch folder of its own here; the address is ``file://``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import SoftFileLease

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training import store
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.result import Result
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.store import MANIFEST, RemoteRun, join_address, scratch_of, sibling
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError

WORDS = [
    "env=gym/InvertedPendulum-v5", "env_options.horizon=30", "algorithm=sac",
    "algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=20", "num_envs=1",
    "online_steps=120", "eval_episodes=2", "eval_every=60", "checkpoint_every=30",
]  # fmt: skip


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


def lose(*now: object) -> None:
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
    assert line["state"] == "stopped"
    assert line["run"] == str(whole.folder.relative_to(whole.folder.parents[4]))
    watched = At(0)
    result = carry_out(address, watched)
    assert watched.first == 91  # one step after its last checkpoint
    assert bits(result) == bits(whole)
    assert result.place == join_address(address, line["run"]) and not result.already_done
    config = (result.folder / "config.yaml").read_text()
    assert f"out: {address}" in config and str(tmp_path / "two") not in config
    # It is done for everybody, and a table is that of the run in a folder.
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "three"))
    sent = next(folder.rglob(MANIFEST)).read_bytes()
    assert carry_out(address).already_done
    assert next(folder.rglob(MANIFEST)).read_bytes() == sent
    assert list((tmp_path / "two").rglob("arrays.safetensors"))
    assert not list((tmp_path / "three").rglob("arrays.safetensors"))  # they stayed where they are
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


def test_a_run_that_a_callback_stopped_resumes_on_another_machine(
    whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = there(tmp_path)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "one"))
    carry_out(address, At(70, lambda now: now.stop()))
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "two"))
    assert carry_out(address, At(0)).already_done
    resumed = carry_out(address)
    assert not resumed.already_done and bits(resumed) == bits(whole)
    (manifest,) = folder.rglob(MANIFEST)
    assert "result.json" in json.loads(manifest.read_text())["files"]


def test_half_of_an_upload_is_what_was_there_before(
    whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = there(tmp_path)
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "one"))

    def cut(now: RunProgress) -> None:
        """Let the machine be lost when the files of a checkpoint are out, and not the manifest."""
        monkeypatch.setattr(store.BlobStore, "write", lose)

    with pytest.raises(Lost):
        carry_out(address, At(70, cut))
    monkeypatch.undo()
    (manifest,) = folder.rglob(MANIFEST)
    assert any("step-000000000090" in str(path) for path in folder.rglob("*"))
    assert not any(
        "step-000000000090" in name for name in json.loads(manifest.read_text())["files"]
    )
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "two"))
    watched = At(0)
    assert bits(carry_out(address, watched)) == bits(whole)
    assert watched.first == 61
    # A file that is not what the manifest says is told, and nothing is made of it.
    (arrays,) = folder.rglob("model.safetensors.*")
    arrays.write_bytes(arrays.read_bytes()[:-1])
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / "three"))
    with pytest.raises(
        TrimtabError, match="policy/model.safetensors: the downloaded file does not match"
    ):
        carry_out(address)


def test_a_run_that_loses_its_lease_stops_before_it_writes(
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


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a//b", "a/../../b", "", ".", "a\\b", "a\0b"])
def test_a_manifest_names_no_file_outside_of_its_folder(name: str) -> None:
    entry = {"size": 1, "sha256": "0" * 64}
    assert "a/b" in store._parse_manifest(json.dumps({"files": {"a/b": entry}}).encode(), "there")
    with pytest.raises(TrimtabError, match="invalid entry"):
        store._parse_manifest(json.dumps({"files": {name: entry}}).encode(), "there")
    for wrong in ({"size": -1}, {"sha256": "../a"}):
        with pytest.raises(TrimtabError, match="invalid entry"):
            store._parse_manifest(
                json.dumps({"files": {"a/b": {**entry, **wrong}}}).encode(), "there"
            )
    with pytest.raises(TrimtabError, match="is not a run's manifest"):
        store._parse_manifest(b"[]", "there")


def test_a_copy_that_lacks_a_file_is_read_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PAUSE", 0.0)
    here, there = tmp_path / "here", store.open_store(f"file://{tmp_path}/there", "out")
    here.mkdir()
    (here / "rows").write_text("1")
    RemoteRun(there, "a/seed0", here).upload()
    (sent,) = (tmp_path / "there").rglob("rows.*")
    sent.rename(tmp_path / "aside")
    with pytest.raises(TrimtabError, match="a/seed0: lacks files that its manifest.json names"):
        RemoteRun(there, "a/seed0", tmp_path / "other").download()
    (tmp_path / "aside").rename(sent)
    (here / "passing").touch()  # what was not sent did not happen
    assert RemoteRun(there, "a/seed0", here).download() and [x.name for x in here.iterdir()] == [
        "rows"
    ]


def test_a_scratch_folder_is_its_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_SCRATCH", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert scratch_of("s3://a/b").parent == tmp_path / f"trimtab-{os.getuid()}"
    assert scratch_of("s3://a/b").parent.stat().st_mode & 0o777 == 0o700
    scratch_of("s3://a/b").parent.rmdir()
    (tmp_path / f"trimtab-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(TrimtabError, match="is another user's; name a folder with TRIMTAB_SCRATCH"):
        scratch_of("s3://a/b")


@pytest.mark.parametrize("place", ["a-file", "a-file/in", "/proc/nope"])
def test_a_scratch_folder_that_cannot_be_written_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("TRIMTAB_SCRATCH", str(tmp_path / place))
    with pytest.raises(TrimtabError, match="cannot be written: .*; set TRIMTAB_SCRATCH to a wr"):
        scratch_of("s3://a/b")


def test_an_address_that_is_no_text_is_told() -> None:
    for scheme in ("s3", "file"):
        with pytest.raises(TrimtabError, match=f"out={scheme}://b.*write an address as s3://"):
            store.open_store(f"{scheme}://b\udcff/x", "out")


def test_the_files_of_a_store_have_no_empty_part_in_their_paths(tmp_path: Path) -> None:
    opened = store.open_store(f"file://{tmp_path}/bucket", "out")
    assert opened._path("/manifest.json") == f"{tmp_path}/bucket/manifest.json"
    assert opened._path("") == f"{tmp_path}/bucket"


def test_addresses_keep_their_options_at_their_end() -> None:
    address = "s3://bucket/runs?endpoint_override=host:9000&scheme=http"
    run = "s3://bucket/runs/a/seed0?endpoint_override=host:9000&scheme=http"
    assert join_address(address, "a/seed0") == run
    assert sibling(run, "seed${seed}") == run.replace("seed0", "seed${seed}")
    assert sibling("runs/a/seed0", "seed1") == "runs/a/seed1"


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
        (["train", *WORDS, "base=file://{}/plain/seed0"], "that out=<address> uploaded; see trimt"),
        (["runs", "file://{}/plain"], "there is no run that out=<address> uploaded; give a path"),
        (["train", *WORDS, "out=file:///proc/nope"], "another place with out=…"),
        (["leaderboard", "runs=file://{}/none"], "there is no run"),
        (["leaderboard", "out=file://{}/none"], "out=file://{}/none: takes no address"),
        (["evaluate", "policy=s3://bucket/run"], "policy=s3://bucket/run: takes no address"),
        (["bench", "suite=quickstart", "out=s3://bucket/run"], "takes no address"),
    ],
)
def test_wrong_addresses_are_one_line(
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
