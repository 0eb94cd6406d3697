"""``trimtab serve`` and ``trimtab evaluate policy=ws://…`` as processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BundleOf = Callable[[str], Path]
TRIMTAB = [sys.executable, "-m", "trimtab.benchmarks.cli.start"]


@contextmanager
def serving(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server as a user starts it, and its address."""
    command = [*TRIMTAB, "serve", *map(str, words), "port=0"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process, line.split()[-1] if line else ""
        finally:
            process.kill()


def trimtab(*words: object) -> subprocess.CompletedProcess[str]:
    command = [*TRIMTAB, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def refused(*words: object) -> str:
    """The one line with which a command ends that is given something wrong."""
    done = trimtab(*words)
    assert done.returncode == 2 and done.stdout == "", done
    (line,) = done.stderr.splitlines()
    return line


def test_ctrl_c_ends_a_server_in_one_line(bundle_of: BundleOf) -> None:
    with serving(bundle_of("flow")) as (process, address):
        assert address.startswith("ws://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and len(said.splitlines()) == 1, said


def test_what_cannot_be_served_ends_in_one_line(bundle_of: BundleOf, tmp_path: Path) -> None:
    assert str(tmp_path) in refused("serve", tmp_path)
    assert "TRIMTAB_SERVE_KEY" in refused("serve", bundle_of("flow"), "host=0.0.0.0")
    assert "65535" in refused("serve", bundle_of("flow"), "port=65536")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f":{port}: " in refused("serve", bundle_of("flow"), f"port={port}")
