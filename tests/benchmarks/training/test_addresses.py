"""Addresses of runs: the copies that lie there, and the scratch folders that stand in for them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trimtab.benchmarks.training import mirror, storage
from trimtab.benchmarks.training.away import scratch_of
from trimtab.benchmarks.training.mirror import Copy, Entry, files_of_text
from trimtab.benchmarks.training.storage import beside, child_of
from trimtab.errors import TrimtabError


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a//b", "a/../../b", "", ".", "a\\b", "a\0b"])
def test_a_manifest_names_no_file_outside_of_its_folder(name: str) -> None:
    entry = {"size": 1, "sha256": "0" * 64}
    assert "a/b" in files_of_text(json.dumps({"files": {"a/b": entry}}).encode(), "there")
    with pytest.raises(TrimtabError, match="names the file"):
        files_of_text(json.dumps({"files": {name: entry}}).encode(), "there")
    for wrong in ({"size": -1}, {"sha256": "../a"}):
        with pytest.raises(TrimtabError, match="names the file"):
            files_of_text(json.dumps({"files": {"a/b": {**entry, **wrong}}}).encode(), "there")
    with pytest.raises(TrimtabError, match="is no manifest of a run"):
        files_of_text(b"[]", "there")


class Replaced:
    """A shelf whose copies lack a file; a newer manifest has come each time, or has not."""

    def __init__(self, newer: bool) -> None:
        self.newer, self.read = newer, 0

    def files(self, where: str) -> dict[str, Entry]:
        self.read += 1
        return {"rows": Entry(self.read if self.newer else 1, "0" * 64)}

    def bring(self, *_: object) -> None:
        raise FileNotFoundError

    def take(self, *_: object) -> None:
        raise AssertionError("nothing is sent")


@pytest.mark.parametrize(
    ("newer", "read", "told"),
    [
        (True, 5, "there: its copy was replaced by a newer one each time that it was read; try"),
        (
            False,
            2,
            "there: its copy lacks files that its manifest.json names, and cannot be mended",
        ),
    ],
)
def test_a_copy_that_is_replaced_while_it_is_read_is_not_called_broken(
    newer: bool, read: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_BETWEEN", 0.0)
    shelf = Replaced(newer)
    with pytest.raises(TrimtabError, match=told):
        Copy(shelf, "there", tmp_path / "here").fetch()
    assert shelf.read == read


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


def test_what_an_address_needs_on_this_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def from_uri(address: str) -> None:
            raise OSError("Unable to load libjvm")

    monkeypatch.setattr(storage.pa_fs, "FileSystem", Refusing)
    for address, told in (
        ("hdfs://host:1/z", "Unable to load libjvm; hdfs:// needs Java and Hadoop on this machine"),
        ("s3://host/z", "Unable to load libjvm; see that it can be reached from here, or name ano"),
    ):
        with pytest.raises(TrimtabError, match=told):
            storage.open_store(address, "out")


def test_an_address_that_is_no_text_is_told() -> None:
    for scheme in ("s3", "file"):
        with pytest.raises(TrimtabError, match=f"out={scheme}://b.*write an address as s3://"):
            storage.open_store(f"{scheme}://b\udcff/x", "out")


def test_addresses_keep_their_options_at_their_end() -> None:
    address = "s3://bucket/runs?endpoint_override=host:9000&scheme=http"
    run = "s3://bucket/runs/a/seed0?endpoint_override=host:9000&scheme=http"
    assert child_of(address, "a/seed0") == run
    assert beside(run, "seed${seed}") == run.replace("seed0", "seed${seed}")
    assert beside("runs/a/seed0", "seed1") == "runs/a/seed1"
