"""A ring in a checkpoint when its process is killed or the disk is full: a whole state stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from disks import files_of_at_most
from loading import load_module

from trimtab.benchmarks.training import segments
from trimtab.benchmarks.training.checkpoint import Checkpoints
from trimtab.files import read_json
from trimtab.types import RowLog, TrimtabError

on_disk = load_module(Path(__file__).with_name("on_disk.py"))
loaded, files = on_disk.loaded, on_disk.files

KILLED = """
import os, shutil, sys
from pathlib import Path

import numpy as np

from trimtab.benchmarks.training import segments
from trimtab.benchmarks.training.checkpoint import Checkpoints
from trimtab.types import RowLog

segments.SMALLEST, segments.FACTOR = 4, 3
folder, step, written = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
left = 0


def count(event, arguments):
    global left
    if event in TOUCHES and left:
        left -= 1
        if not left:
            os._exit(9)


sys.addaudithook(count)
for at in range(1, 1000):
    child = os.fork()
    if not child:
        array = np.zeros(64, np.uint8)
        numbers = np.arange(max(0, written - 64), written)
        array[numbers % 64] = numbers
        place = folder.with_name(f"{folder.name}-{at}")
        shutil.copytree(folder, place)
        checkpoints = Checkpoints(place)
        assert checkpoints.load() is not None
        left = at
        checkpoints.save(step, {"step": step, "ring": RowLog({"a": array}, 64, written, written)})
        left = 0
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        print(at)
        break
    sys.stdout.flush()
"""


@pytest.mark.parametrize(("before", "after", "step"), [(31, 59, 2), (100, 131, 1)])
def test_killed_between_any_two_operations_on_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, step: int
) -> None:
    """The older state or the newer one is there, whole, and the next save cleans up."""
    monkeypatch.setattr(segments, "SMALLEST", 4)
    monkeypatch.setattr(segments, "FACTOR", 3)

    def log(written: int) -> RowLog:
        array = np.zeros(64, np.uint8)
        numbers = np.arange(max(0, written - 64), written)
        array[numbers % 64] = numbers
        return RowLog({"a": array}, 64, written, written)

    Checkpoints(tmp_path / "run").save(1, {"step": 0, "ring": log(before)})
    words = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(step), str(after)]
    child = subprocess.run(words, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    killed = int(child.stdout)
    assert killed > 20  # so many operations there were, and one kill before each
    alone = Checkpoints(tmp_path / "alone")
    alone.save(step, {"step": step, "ring": log(after)})
    found = set()
    for at in range(1, killed):
        folder = tmp_path / f"run-{at}"
        state = loaded(folder)
        older = state["step"] == 0
        found.add(older)
        expected = log(before if older else after)
        assert state["ring"].written == expected.written
        np.testing.assert_array_equal(state["ring"]["a"], expected["a"])
        checkpoints = Checkpoints(folder)
        assert checkpoints.load()["step"] == state["step"]
        if at % 3:  # a save costs the disk's time
            continue
        checkpoints.save(step, {"step": step, "ring": log(after)})
        ours, theirs = files(folder), files(tmp_path / "alone")
        clean = {name for name in ours if ".tmp" not in name}  # a run removes those as it starts
        assert {name for name in clean if "state.json" in name} == {f"step-{step:012d}/state.json"}
        state = loaded(folder)
        np.testing.assert_array_equal(state["ring"]["a"], log(after)["a"])
        assert clean >= {name for name in theirs if not name.startswith("rows/")}
        named = read_json(folder / f"step-{step:012d}" / "state.json", "state")["logs"]
        in_use = {entry["file"] for log_ in named.values() for entry in log_["segments"]}
        assert {path.name for path in (folder / "rows").iterdir()} == in_use
    assert found == {True, False}


def test_the_older_one_stays_when_the_disk_is_full(tmp_path: Path) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.rglob("*"))

    def log(count: int) -> RowLog:
        return RowLog({"a": np.ones((4000, 1000))}, 4000, count, count)

    checkpoints = Checkpoints(tmp_path)
    with files_of_at_most(2_000_000):
        checkpoints.save(1, {"log": log(100)})
        before = names()
        with pytest.raises(TrimtabError, match="cannot write") as error:
            checkpoints.save(2, {"log": log(1000)})  # a long span is longer than the limit
        assert "\n" not in str(error.value) and names() == before
        checkpoints.save(3, {"log": log(110)})
    assert loaded(tmp_path)["log"].written == 110
