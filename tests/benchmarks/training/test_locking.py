"""A run's folder is of one process at a time, also on a file system without locks."""

from __future__ import annotations

import errno
import fcntl
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
from filelock import SoftFileLease

from trimtab.benchmarks.training import locking
from trimtab.benchmarks.training.locking import LEASE_FILE, in_use, locked
from trimtab.types import TrimtabError

HOLDER = """
import sys
from pathlib import Path
from trimtab.benchmarks.training import locking
locking.RENEWED_EVERY = 0.3
with locking.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
CONTENDER = """
import sys
from pathlib import Path
from trimtab.benchmarks.training.locking import locked
folder, count = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(10):
    with locked(folder, wait=True):
        count.write_text(str(int(count.read_text()) + 1))
"""


@pytest.fixture(params=["locks", "lease"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a folder is locked, also by the processes that a test starts."""
    if request.param == "lease":
        monkeypatch.setenv("TRIMTAB_LOCKS", "lease")
    way: str = request.param
    return way


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of this process that are left over soon."""
    monkeypatch.setattr(locking, "RENEWED_EVERY", 0.1)
    monkeypatch.setattr(locking, "STALE_AFTER", 1.0)


@pytest.fixture
def holder(tmp_path: Path, way: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder ``run``."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let the operating system answer as a file system without locks does."""

    def flock(descriptor: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_has_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse(monkeypatch, code)
    with locked(tmp_path / "run"):
        assert names(tmp_path / "run") == ["run.lock", LEASE_FILE]
        assert in_use(tmp_path / "run")
    assert names(tmp_path / "run") == ["run.lock"]


def test_a_folder_is_held_and_given_up(tmp_path: Path, way: str, quick: None) -> None:
    folder = tmp_path / "run"
    with locked(folder) as check:
        check()
        assert in_use(folder)
        with pytest.raises(TrimtabError) as error, locked(folder):
            raise AssertionError("held twice")
        assert "in use by another process; wait" in str(error.value)
        assert "\n" not in str(error.value)
    assert names(folder) == ["run.lock"] and not in_use(folder)
    with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
        raise KeyError
    assert names(tmp_path) == ["run"]


def test_another_process_has_it_and_gives_it_up(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    assert in_use(tmp_path / "run")
    with pytest.raises(TrimtabError, match="in use"), locked(tmp_path / "run"):
        raise AssertionError("held twice")
    assert holder.stdin is not None
    threading.Timer(0.5, holder.stdin.close).start()
    with locked(tmp_path / "run", wait=True):
        assert holder.wait(30) == 0
    assert names(tmp_path / "run") == ["run.lock"]


def test_what_a_killed_process_left_is_taken_over_at_once(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    begun = time.monotonic()
    with locked(tmp_path / "run"):
        assert time.monotonic() - begun < locking.STALE_AFTER / 2
        assert in_use(tmp_path / "run")
    assert names(tmp_path / "run") == ["run.lock"]


def test_of_many_that_contend_one_at_a_time_has_it(tmp_path: Path, way: str) -> None:
    folder, count = tmp_path / "run", tmp_path / "count"
    count.write_text("0")
    words = [sys.executable, "-c", CONTENDER, str(folder), str(count)]
    contenders = [subprocess.Popen(words) for _ in range(3)]
    assert [one.wait(120) for one in contenders] == [0, 0, 0]
    assert count.read_text() == "30"
    assert names(folder) == ["run.lock"]


def of_another_machine(folder: Path) -> Path:
    """Leave a lease that a process elsewhere wrote and renews no more."""
    path = folder / LEASE_FILE
    with SoftFileLease(path, lease_duration=locking.STALE_AFTER):
        text = path.read_text()
    assert os.uname().nodename in text
    path.write_text(text.replace(os.uname().nodename, "elsewhere"))
    return path


def test_a_lease_of_another_machine_counts_while_it_is_renewed(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_LOCKS", "lease")
    path = of_another_machine(tmp_path)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.2):
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    with pytest.raises(TrimtabError, match="in use"), locked(tmp_path):
        raise AssertionError("held twice")
    ended.set()
    thread.join()
    begun = time.monotonic()
    with locked(tmp_path):
        assert time.monotonic() - begun > 0.9


def test_a_process_that_lost_its_lease_says_so_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a process that was suspended for a night."""
    monkeypatch.setenv("TRIMTAB_LOCKS", "lease")
    with locked(tmp_path) as check:
        check()
        (tmp_path / LEASE_FILE).unlink()
        other = SoftFileLease(tmp_path / LEASE_FILE, lease_duration=locking.STALE_AFTER)
        other.acquire(timeout=5)
        with pytest.raises(TrimtabError, match="another process .* writes no more there"):
            check()
    assert other.token is not None and other.token in (tmp_path / LEASE_FILE).read_text()
    other.release()


def test_a_lease_that_was_not_renewed_for_long_is_of_nobody(tmp_path: Path) -> None:
    (tmp_path / LEASE_FILE).touch()
    assert in_use(tmp_path)
    os.utime(tmp_path / LEASE_FILE, (0, 0))
    assert not in_use(tmp_path)


def test_another_error_of_a_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EIO)
    with (
        pytest.raises(TrimtabError, match="cannot lock .*choose a local folder with out="),
        locked(tmp_path),
    ):
        raise AssertionError("held")


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path, way: str) -> None:
    (tmp_path / {"locks": "run.lock", "lease": LEASE_FILE}[way]).mkdir()
    with pytest.raises(TrimtabError, match="cannot (write|lock) "), locked(tmp_path):
        raise AssertionError("held")


def test_a_lock_that_leads_nowhere_is_told(tmp_path: Path, way: str) -> None:
    (tmp_path / "run.lock").symlink_to(tmp_path / "gone" / "run.lock")
    with pytest.raises(TrimtabError, match="cannot write .*; choose a writable folder"):
        locked(tmp_path).__enter__()


def test_another_word_for_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_LOCKS", "leases")
    with pytest.raises(TrimtabError, match="TRIMTAB_LOCKS=leases: must be lease"), locked(tmp_path):
        raise AssertionError("held")
