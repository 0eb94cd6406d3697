"""Folders on a file system without locks: one process at a time has them all the same."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.core import lockfile
from trimtab.benchmarks.core.rundir import LOCK_FILE, locked
from trimtab.types import TrimtabError

WITHOUT_LOCKS = """
import errno, fcntl, os, sys
from pathlib import Path

def refuse(descriptor, how):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

fcntl.flock = refuse
from trimtab.benchmarks.core import lockfile
from trimtab.benchmarks.core.rundir import locked
"""
HOLDER = """
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
CONTENDERS = """
lockfile.PAUSE = 0.001
folder, count = Path(sys.argv[1]), Path(sys.argv[2])
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        for _ in range(25):
            with locked(folder, wait=True):
                count.write_text(str(int(count.read_text()) + 1))
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def without_locks(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, request.param)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOLCK)


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let the operating system answer as a file system without locks does."""

    def flock(descriptor: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder ``run``."""
    words = [sys.executable, "-c", WITHOUT_LOCKS + HOLDER, str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_held_and_let_go_of(tmp_path: Path, without_locks: None) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        assert names(folder) == ["run.lock", LOCK_FILE]
        with pytest.raises(TrimtabError) as error, locked(folder):
            raise AssertionError("held twice")
        assert "in use by another process; wait" in str(error.value)
        assert "\n" not in str(error.value)
    assert names(folder) == ["run.lock"]
    with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
        raise KeyError
    assert names(tmp_path) == ["run"]


def test_locks_that_other_machines_do_not_see_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_LOCKS", "lease")
    with locked(tmp_path):
        assert names(tmp_path) == ["run.lock", LOCK_FILE]


def test_another_error_of_a_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EIO)
    with (
        pytest.raises(TrimtabError, match="cannot lock .*choose a local folder with out="),
        locked(tmp_path),
    ):
        raise AssertionError("held")


def test_a_lock_file_that_cannot_be_made_is_told(tmp_path: Path, no_locks: None) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with (
        pytest.raises(TrimtabError, match="cannot write .*choose a writable folder with out="),
        locked(tmp_path),
    ):
        raise AssertionError("held")


def test_another_process_has_it_and_lets_go(
    tmp_path: Path, no_locks: None, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(TrimtabError, match="in use"), locked(tmp_path / "run"):
        raise AssertionError("held twice")
    assert holder.stdin is not None
    threading.Timer(0.5, holder.stdin.close).start()
    with locked(tmp_path / "run", wait=True):
        assert holder.wait(30) == 0
    assert names(tmp_path / "run") == ["run.lock"]


def test_what_a_killed_process_left_is_taken_over_and_said_so(
    tmp_path: Path, no_locks: None, holder: subprocess.Popen[str], caplog: Any
) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert names(tmp_path / "run") == ["run.lock", LOCK_FILE]
    with caplog.at_level(logging.WARNING), locked(tmp_path / "run"):
        (line,) = [record.getMessage() for record in caplog.records]
        assert f"its lock was left by process {holder.pid} on" in line and "taken over" in line
        with pytest.raises(TrimtabError, match="in use"), locked(tmp_path / "run"):
            raise AssertionError("held twice")
    assert names(tmp_path / "run") == ["run.lock"]


@pytest.mark.parametrize("left_over", [False, True])
def test_of_many_that_contend_one_at_a_time_has_it(tmp_path: Path, left_over: bool) -> None:
    folder, count = tmp_path / "run", tmp_path / "count"
    folder.mkdir()
    count.write_text("0")
    if left_over:
        (folder / LOCK_FILE).write_bytes(
            lockfile.text_of({**lockfile.note_of_this_process(), "started": "1"})
        )
    words = [sys.executable, "-c", WITHOUT_LOCKS + CONTENDERS, str(folder), str(count)]
    child = subprocess.run(words, capture_output=True, text=True)
    assert child.stdout == "[0, 0, 0, 0]\n", child.stderr
    assert count.read_text() == "100"
    assert child.stderr.count("taken over") == left_over
    assert names(folder) == ["run.lock"]


def left(folder: Path, **changes: Any) -> Path:
    """Write a lock of this process with some entries changed."""
    path = folder / LOCK_FILE
    path.write_bytes(lockfile.text_of({**lockfile.note_of_this_process(), **changes}))
    return path


def test_a_number_that_another_process_has_by_now_is_no_life(
    tmp_path: Path, no_locks: None
) -> None:
    left(tmp_path, started="1")
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["process"] == os.getpid()


def test_a_killed_process_that_nobody_has_asked_after_is_no_life(
    tmp_path: Path, no_locks: None
) -> None:
    """Such a one (a zombie) keeps its number and its start until its parent waits for it."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = lockfile._started(child.pid)
    left(tmp_path, process=child.pid, started=started)
    with pytest.raises(TrimtabError, match="in use by another process"), locked(tmp_path):
        pass
    child.kill()
    deadline = time.monotonic() + 20
    while lockfile._started(child.pid) == started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        with locked(tmp_path):
            assert json.loads((tmp_path / LOCK_FILE).read_text())["process"] == os.getpid()
    finally:
        child.communicate()


@pytest.mark.parametrize("where", [{"host": "elsewhere"}, {"boot": "x"}, {"processes": "pid:[1]"}])
def test_another_machines_lock_counts_while_it_is_renewed(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    monkeypatch.setattr(lockfile, "STALE_AFTER", 1.5)
    path = left(tmp_path, **where, process=2**22 + 1)
    renewing = threading.Event()

    def renew() -> None:
        note = json.loads(path.read_text())
        while not renewing.wait(0.3):
            path.write_bytes(lockfile.text_of(note))

    thread = threading.Thread(target=renew)
    thread.start()
    with pytest.raises(TrimtabError, match="in use"), locked(tmp_path):
        raise AssertionError("held twice")
    renewing.set()
    thread.join()
    begun = time.monotonic()
    with locked(tmp_path):
        assert time.monotonic() - begun > 1.5


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": 3}'])
def test_a_lock_that_says_nothing_is_left_over_after_a_while(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(lockfile, "STALE_AFTER", 0.3)
    (tmp_path / LOCK_FILE).write_bytes(content)
    with locked(tmp_path):
        assert (tmp_path / LOCK_FILE).stat().st_size > 10


def test_a_held_lock_is_renewed(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfile, "RENEWED_EVERY", 0.05)
    with locked(tmp_path):
        before = (tmp_path / LOCK_FILE).read_bytes()
        until = time.monotonic() + 30
        while (now := (tmp_path / LOCK_FILE).read_bytes()) == before:
            assert time.monotonic() < until
        assert len(now) == len(before)
        assert json.loads(now)["token"] == json.loads(before)["token"]


def test_who_was_taken_over_says_so_and_leaves_the_others_lock(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Such as a process that was suspended for longer than its lock counts."""
    monkeypatch.setattr(lockfile, "RENEWED_EVERY", 0.05)
    with locked(tmp_path) as check:
        check()
        (tmp_path / LOCK_FILE).unlink()
        other = left(tmp_path, host="elsewhere").read_bytes()
        until = time.monotonic() + 30
        while "another process has taken it over" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(TrimtabError, match="another process .* writes no more there"):
            check()
    assert (tmp_path / LOCK_FILE).read_bytes() == other


def test_who_was_taken_over_knows_it_before_it_renews(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that goes on after a night's sleep writes nothing before it has looked."""
    monkeypatch.setattr(lockfile, "SURE_FOR", 0.0)
    with locked(tmp_path) as check:
        left(tmp_path, host="elsewhere")
        with pytest.raises(TrimtabError, match="another process has taken it over"):
            check()


def test_another_word_for_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_LOCKS", "leases")
    with pytest.raises(TrimtabError, match="TRIMTAB_LOCKS=leases: must be lease"), locked(tmp_path):
        raise AssertionError("held")


def test_a_lease_outlives_a_store_that_is_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lockfile, "RENEWED_EVERY", 0.01)
    monkeypatch.setattr(lockfile, "SURE_FOR", 0.0)
    note = lockfile.note_of_this_process()
    away, renewed = threading.Event(), threading.Event()

    def read() -> bytes:
        if away.is_set():
            raise TrimtabError("s3://bucket: no answer")
        return lockfile.text_of(note)

    def renew(text: bytes) -> bool:
        read()
        renewed.set()
        return True

    held = lockfile.Renewed("s3://bucket, run", note, read, renew, lambda: None)
    away.set()
    held.check()  # the lease counts still, whoever looks
    time.sleep(0.05)
    renewed.clear()
    away.clear()
    assert renewed.wait(20)
    held.check()
    away.set()
    monkeypatch.setattr(lockfile, "STALE_AFTER", 0.0)
    with pytest.raises(TrimtabError, match="another process"):  # or it may have by now
        held.check()
    held.end()


def test_a_crash_while_a_lock_is_removed_is_told(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfile, "STALE_AFTER", 0.3)
    left(tmp_path, started="1")
    (tmp_path / (LOCK_FILE + ".removal")).touch()
    with (
        pytest.raises(TrimtabError, match=r"run.lock.held.removal is left .*; remove it"),
        locked(tmp_path),
    ):
        raise AssertionError("held")
