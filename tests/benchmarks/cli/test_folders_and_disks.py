"""Folders that are in use or not to be written, and disks that are full, end a run in one line."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from disks import files_of_at_most

from trimtab.benchmarks.training.locking import locked, remove_leftovers
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.files import atomic_directory, atomic_file, atomic_write_bytes, sha256_file
from trimtab.types import TrimtabError

MAIN = """
import sys
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.types import TrimtabError
try:
    train(compose_run(sys.argv[1:]))
except TrimtabError as error:
    sys.exit(str(error))
"""
HOLDER = """
import sys
from pathlib import Path
from trimtab.benchmarks.training.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_directory_in_use(tiny: Any, tmp_path: Path) -> None:
    done = train(compose_run([*tiny.task(tmp_path), "algorithm=frozen", f"base={tiny.base}"]))
    (done.folder / "result.json").unlink()
    words = [*tiny.task(tmp_path), "algorithm=frozen", f"base={tiny.base}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(done.folder)], **pipes) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        before = sorted(done.folder.rglob("*"))
        with pytest.raises(TrimtabError, match="is in use by another process; wait for") as error:
            train(compose_run(words))
        assert str(done.folder) in str(error.value) and "\n" not in str(error.value)
        assert sorted(done.folder.rglob("*")) == before
        holder.communicate()
    assert train(compose_run(words)).summary["success"] == done.summary["success"]


def test_a_lock_is_let_go_of(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder), pytest.raises(TrimtabError, match="in use"), locked(folder):
        raise AssertionError("held twice")
    with pytest.raises(KeyError), locked(tmp_path / "run"):
        raise KeyError
    with locked(tmp_path / "run", wait=True):
        assert (tmp_path / "run" / "run.lock").exists()


def test_a_block_that_fails_at_once_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyError), locked(tmp_path / "there/a/b"):
        (tmp_path / "there/a/b/c/d").mkdir(parents=True)
        raise KeyError
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    with pytest.raises(KeyError), locked(tmp_path / "there"):  # it was there before
        raise KeyError
    assert (tmp_path / "there").is_dir()
    with pytest.raises(KeyError), locked(tmp_path / "a/b"):
        (tmp_path / "a/b/kept.txt").write_text("x")
        raise KeyError
    assert (tmp_path / "a/b/kept.txt").is_file()
    with pytest.raises(KeyError), locked(tmp_path / "a/c"):
        raise KeyError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_who_waits_for_a_folder_that_is_removed_makes_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "a/run"
    with contextlib.ExitStack() as stack:
        with pytest.raises(KeyError), locked(folder):
            code = HOLDER.replace("argv[1])", "argv[1]), wait=True")
            code = code.replace("with locked", "print('waits', flush=True)\nwith locked")
            words = [sys.executable, "-c", code, str(folder)]
            waiting = stack.enter_context(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert waiting.stdout is not None and waiting.stdin is not None
            assert waiting.stdout.readline() == "waits\n"
            time.sleep(0.5)
            raise KeyError
        assert waiting.stdout.readline() == "held\n"
        with pytest.raises(TrimtabError, match="in use"), locked(folder):
            raise AssertionError("held twice")
        waiting.stdin.close()
        assert waiting.wait() == 0
    assert [path.name for path in folder.iterdir()] == ["run.lock"]


@pytest.mark.parametrize("name", ["checkpoint", "metrics.jsonl", "episodes.parquet", "policy"])
def test_something_else_in_a_files_place(name: str, tiny: Any, tmp_path: Path) -> None:
    """A folder that cannot be written, as root too: what should be a file is a folder, or the
    reverse.
    """
    words = tiny.cloning(tmp_path)
    folder = train(compose_run(words)).folder
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoint")
    path = folder / name
    if path.is_file():
        path.unlink()
        (path / "inside").mkdir(parents=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("not a folder")
    with pytest.raises(TrimtabError, match=f"{name}") as error:
        train(compose_run(words))
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    assert not (folder / "result.json").exists() and not list(folder.rglob("*.tmp"))


@pytest.fixture(scope="module")
def never_full(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights of a run that had room enough."""
    words = [*tiny.online(tmp_path_factory.mktemp("room"), "sac"), "env=gym/Hopper-v5"]
    folder = train(compose_run(words)).folder
    return sha256_file(folder / "policy" / "model.safetensors")


@pytest.mark.parametrize(
    ("limit", "file"), [(500, "config.yaml"), (3_000, "checkpoint"), (9_000, "")]
)
def test_a_full_disk(limit: int, file: str, tiny: Any, tmp_path: Path, never_full: str) -> None:
    words = [*tiny.online(tmp_path, "sac"), "env=gym/Hopper-v5"]
    with files_of_at_most(limit), pytest.raises(TrimtabError) as error:
        train(compose_run(words))
    line = str(error.value)
    assert "\n" not in line
    assert "cannot write" in line and str(tmp_path) in line and file in line
    assert "raise that with ulimit -f" in line
    assert not list(tmp_path.rglob("*.tmp")) + list(tmp_path.rglob("result.json"))
    folder = train(compose_run(words)).folder  # with room again it goes on to the same end
    assert sha256_file(folder / "policy" / "model.safetensors") == never_full


def test_no_room_for_a_simulators_own_files(tiny: Any, tmp_path: Path) -> None:
    """The maze writes its XML where temporary files are."""
    words = tiny.cloning(tmp_path)
    child = subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert child.returncode == 1
    (line,) = child.stderr.strip().splitlines()
    assert "cannot write" in line and "raise that with ulimit -f" in line
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_a_dataset_is_made(tiny: Any, tmp_path: Path) -> None:
    words = [w for w in tiny.cloning(tmp_path) if not w.startswith("dataset=")]
    words += ["dataset=two_routes", "dataset.episodes=2"]
    with files_of_at_most(10_000), pytest.raises(TrimtabError) as error:
        train(compose_run(words))
    line = str(error.value)
    assert "\n" not in line
    assert "cannot write" in line and str(tmp_path / "datasets") in line
    assert not list(tmp_path.rglob("*"))


def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    file.write_text("mine")
    for place in (pipe, link, tmp_path):
        with pytest.raises(TrimtabError, match="what is there is no file"):
            atomic_write_bytes(place, b"x")
        with pytest.raises(TrimtabError, match="is no file"), atomic_file(place):
            raise AssertionError("it may be written")
    for place in (pipe, link, file):
        with pytest.raises(TrimtabError, match="is no folder"), atomic_directory(place):
            raise AssertionError("it may be written")
    with pytest.raises(TrimtabError, match="it is a folder; name a file"):
        atomic_write_bytes(Path("."), b"x")
    assert pipe.is_fifo() and file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "file"}


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / ".step-1.7.ab.tmp" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoint" / "step-1").mkdir()
    (tmp_path / ".result.json.7.ab.tmp").write_text("{")
    (tmp_path / "notes.tmp").write_text("mine")
    remove_leftovers(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["checkpoint", "checkpoint/step-1", "notes.tmp"]
