"""What a limit of the shell (ulimit) refuses is one line that names the limit."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, limit_reached

MADE = ("dataset", "make", "two_routes", "dataset.episodes=2")


@pytest.mark.parametrize(
    ("limit", "words", "said"),
    [
        ("-n 6", MADE, "the shell allows 6 open files; raise that with ulimit -n"),
    ],
)
def test_a_command_says_which_limit_ended_it(
    limit: str, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    shell = f'ulimit {limit}; exec "$0" -m trimtab.benchmarks.cli.main "$@"'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("trimtab: ") and said in line and "Traceback" not in done.stderr


@pytest.fixture
def limited() -> Iterator[None]:
    """With a soft limit on processes, files and memory that refuses nothing in a test."""
    names = (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
    before = {name: resource.getrlimit(name) for name in names}
    for name in names:
        most = before[name][1]
        resource.setrlimit(name, (1 << 45 if most == resource.RLIM_INFINITY else most, most))
    yield
    for name in names:
        resource.setrlimit(name, before[name])


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (RuntimeError("can't start new thread"), "-u"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), None),
        (OSError(errno.EFBIG, "File too large"), "-f"),
        (MemoryError(), "-v"),
        (ImportError("x.so: failed to map segment from shared object"), "-v"),
        (OSError(errno.ENOSPC, "No space left on device"), None),
        (RuntimeError("shapes do not match"), None),
    ],
)
def test_what_a_limit_refuses_is_known_from_what_is_not(
    error: Exception, word: str | None, limited: None
) -> None:
    outer = ImportError("numpy cannot be imported")
    outer.__cause__ = error
    for one in (error, outer):
        told = limit_reached(one)
        assert told is None if word is None else str(told).endswith(f"with ulimit {word}")


def test_a_process_that_cannot_start_is_known_from_a_lock_and_a_full_pipe(
    limited: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*given: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "_fork_exec", refused)
    monkeypatch.setattr(os, "fork", refused)
    monkeypatch.setattr("_posixsubprocess.fork_exec", refused)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    held, wants = (os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR) for _ in range(2))
    fcntl.flock(held, fcntl.LOCK_EX)
    for blocked, told in (
        (lambda: subprocess.run(["true"], close_fds=True), True),
        (multiprocessing.get_context("fork").Process(target=print).start, True),
        (multiprocessing.get_context("spawn").Process(target=print).start, True),
        (lambda: fcntl.flock(wants, fcntl.LOCK_EX | fcntl.LOCK_NB), False),
        (lambda: [os.write(writing, bytes(1 << 16)) for _ in range(99)], False),
    ):
        with pytest.raises(BlockingIOError) as error:
            blocked()
        assert (limit_reached(error.value) is not None) is told
    for stream in (held, wants, reading, writing):
        os.close(stream)


def test_without_a_limit_none_is_blamed(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        assert limit_reached(OSError(errno.EFBIG, "File too large")) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(TrimtabError, match="choose a writable folder"):
        atomic_write_bytes(tmp_path / "file" / "below", b"")
