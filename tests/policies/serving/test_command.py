"""``trimtab serve``: as a process that is ended, and what it refuses."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from trimtab.benchmarks.cli.main import main
from trimtab.policies.serving.codec import pack

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


def refused(*words: object) -> str:
    """The one line with which a command ends that is given something wrong."""
    shown, told = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(told), pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert ended.value.code == 2 and shown.getvalue() == "", told.getvalue()
    (line,) = told.getvalue().splitlines()
    return line


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "trimtab: interrupted; the server is stopped\n"),
        (signal.SIGTERM, 143, "trimtab: the server is stopped\n"),
    ],
)
def test_a_signal_ends_a_server_and_closes_its_clients(
    number: signal.Signals, code: int, line: str, bundle_of: BundleOf
) -> None:
    with serving(bundle_of("flow")) as (process, address):
        assert address.startswith("ws://127.0.0.1:")
        with connect(address, compression=None, proxy=None) as client:
            client.recv(60)
            process.send_signal(number)
            with pytest.raises(ConnectionClosed):
                client.recv(60)
            assert client.close_code == 1001  # going away
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, line)


def test_ctrl_c_ends_a_server_whose_clients_wait(bundle_of: BundleOf) -> None:
    with serving(bundle_of("flow"), "timeout=600") as (process, address), ExitStack() as stack:
        (worker,) = psutil.Process(process.pid).children()
        worker.suspend()
        for _ in range(3):  # one waits for its decision, the others for their turns
            client = stack.enter_context(connect(address, compression=None, proxy=None))
            client.recv(60)
            client.send(pack({"obs": np.zeros(6, np.float32)}))
            assert client.ping().wait(60)  # so that the request has been read
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130 and len(said.splitlines()) == 1, said
        assert not worker.is_running()


def test_a_server_that_is_killed_leaves_no_process(bundle_of: BundleOf) -> None:
    with serving(bundle_of("flow")) as (process, _):
        (worker,) = psutil.Process(process.pid).children()
        process.kill()
        assert psutil.wait_procs([worker], timeout=60)[0]


def test_what_cannot_be_served_ends_in_one_line(bundle_of: BundleOf, tmp_path: Path) -> None:
    assert str(tmp_path) in refused("serve", tmp_path)
    assert "TRIMTAB_SERVE_KEY" in refused("serve", bundle_of("flow"), "host=0.0.0.0")
    with pytest.MonkeyPatch.context() as patch:
        for key in ("schl\u00fcssel", "two\nlines", " sesame"):
            patch.setenv("TRIMTAB_SERVE_KEY", key)
            said = refused("serve", bundle_of("flow"))
            assert said.startswith("trimtab: TRIMTAB_SERVE_KEY: has ") and key[-5:] not in said
    assert "65535" in refused("serve", bundle_of("flow"), "port=65536")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f":{port}: " in refused("serve", bundle_of("flow"), f"port={port}")
