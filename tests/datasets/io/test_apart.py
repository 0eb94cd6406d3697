"""Reading in a process apart: never forked from the caller, bounded, and gone when it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from trimtab.datasets.formats.registry import get_format
from trimtab.datasets.io import sandbox as apart
from trimtab.types import TrimtabError

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent


@pytest.fixture
def threads() -> Iterator[None]:
    """Let threads run, torch's among them."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(400, 400) @ torch.ones(400, 400)
    assert len(os.listdir("/proc/self/task")) > 1
    yield
    torch.set_num_threads(before)
    done.set()
    thread.join()


def forbidden(*args: Any) -> Any:
    raise AssertionError("a process with threads must not fork")


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return whether ``condition`` comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def gone(process: psutil.Process | int) -> bool:
    """Return whether a process, or the one of a number, has ended."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def run(script: str, *arguments: object, file: Path | None = None) -> subprocess.Popen[str]:
    """Start Python with a script, as ``-c`` or as a file."""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(FOLDER)])
    how = ["-c", script]
    if file is not None:
        file.write_text(script)
        how = [str(file)]
    return subprocess.Popen(
        [sys.executable, *how, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_caller_is_not_forked_and_the_reader_is_small(
    readers: Any, threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", forbidden)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)  # numpy would start threads when it is imported
    formats = [
        f"trimtab.datasets.formats.{name}.format" for name in ("lerobot", "minari", "robomimic")
    ]
    formats += [f"trimtab.datasets.io.{name}" for name in ("hdf5", "zarr")]
    imports = [*formats, "pandas", "numcodecs"]
    values, _ = apart.read_apart(tmp_path, readers.surroundings, imports=imports)
    assert values["threads"] == [1, 1]
    assert {"h5py", "pyarrow.parquet", *formats} <= set(values["modules"])
    assert not {"torch", "jax"} & set(values["modules"])
    again = apart.read_apart(tmp_path, readers.surroundings)[0]
    assert again["server"] == values["server"]


@pytest.mark.parametrize("kind", ["d4rl", "lerobot", "minari", "robomimic", "blosc"])
def test_strangers_files_are_read_without_a_fork(
    kind: str, foreign: Any, threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", forbidden)
    writers = {**foreign.WRITERS, "blosc": foreign.VARIANTS["blosc diffusion_policy"]}
    name, write = writers[kind]
    write(tmp_path / name)
    format = get_format(kind if kind in foreign.WRITERS else "diffusion_policy")
    assert format.load(tmp_path / name).num_steps > 0


def test_a_relative_path_means_the_same_in_the_reader(
    readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        values, arrays = apart.read_apart(Path("."), readers.here)
        assert values == {"folder": str(folder)}
        assert arrays["numbers"].tolist() == [0, 1, 2]
        assert not arrays["numbers"].flags.writeable


def test_a_closure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="is not a function of a module"):
        apart.read_apart(tmp_path, lambda: None)  # type: ignore[arg-type, return-value]


def test_a_server_that_was_killed_is_started_again(readers: Any, tmp_path: Path) -> None:
    server = psutil.Process(apart.read_apart(tmp_path, readers.surroundings)[0]["server"])
    server.kill()
    assert eventually(lambda: gone(server))
    assert apart.read_apart(tmp_path, readers.surroundings)[0]["server"] != server.pid
    with pytest.raises(TrimtabError, match=f"^dataset {tmp_path}: the process .* ended twice"):
        apart.read_apart(tmp_path, readers.kills_its_supervisor)
    assert apart.read_apart(tmp_path, readers.here)[1]["numbers"].tolist() == [0, 1, 2]


def test_a_server_that_cannot_start_is_one_line(
    readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(TrimtabError, match="^cannot start what reads datasets .No such file"):
        apart.read_apart(tmp_path, readers.here)


def test_readings_side_by_side(readers: Any, tmp_path: Path) -> None:
    """Threads share the server; one that reads for long holds up none of the others."""
    note = tmp_path / "note"
    failed: list[str] = []

    def wait() -> None:
        try:
            apart.read_apart(tmp_path, readers.waits, str(note))
        except TrimtabError as error:
            failed.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: note.is_file() and bool(note.read_text()))
    for _ in range(3):
        assert len(apart.read_apart(tmp_path, readers.here)[1]["numbers"]) == 3
    assert thread.is_alive()
    os.kill(int(note.read_text()), signal.SIGSEGV)
    thread.join()
    assert failed == [
        f"dataset {tmp_path}: damaged (its reader crashed); "
        "make the dataset again or fetch a fresh copy"
    ]


def test_an_interrupted_caller_ends_the_reader(readers: Any, tmp_path: Path) -> None:
    note = tmp_path / "note"

    def interrupt() -> None:
        eventually(lambda: note.is_file() and bool(note.read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    # A shell without job control starts what runs in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            apart.read_apart(tmp_path, readers.waits, str(note))
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    number = int(note.read_text())
    assert eventually(lambda: gone(number))


WAITING = """
import sys, threading
from pathlib import Path
import torch, apart_readers
from trimtab.datasets.io.sandbox import read_apart, spilled_to

with spilled_to(Path(sys.argv[1]) / "spill"):
    read_apart(Path(sys.argv[1]), apart_readers.waits, sys.argv[1] + "/note")
"""


def test_nothing_outlives_a_killed_caller(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = run(WAITING, tmp_path)
    try:
        assert eventually(lambda: note.is_file() and bool(note.read_text()), 60)
        left = psutil.Process(script.pid).children(recursive=True)
        assert len(left) == 3 and int(note.read_text()) in [process.pid for process in left]
    finally:
        script.kill()
        script.communicate()
    assert eventually(lambda: all(map(gone, left)))
    assert not list((tmp_path / "spill").iterdir())


ONCE = """
import sys
from pathlib import Path
import apart_readers
from trimtab.datasets.io.sandbox import read_apart

print("once", read_apart(Path("."), apart_readers.surroundings)[0]["server"])
"""


@pytest.mark.parametrize("name", [None, "unguarded.py"])
def test_the_callers_script_runs_once(name: str | None, tmp_path: Path) -> None:
    """A script without a guard, and one that is no file, as in a notebook."""
    script = run(ONCE, file=None if name is None else tmp_path / name)
    output, errors = script.communicate()
    assert script.returncode == 0, errors
    (line,) = output.splitlines()
    word, server = line.split()
    assert word == "once" and not psutil.pid_exists(int(server))


POOL = """
import multiprocessing, sys
from pathlib import Path
import apart_readers
from trimtab.datasets.io.sandbox import read_apart

def server(_):
    assert multiprocessing.current_process().daemon or _ is None
    return read_apart(Path("."), apart_readers.surroundings)[0]["server"]

if __name__ == "__main__":
    servers = [server(None)]
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            servers += pool.map(server, [1])
    assert server(None) == servers[0]
    print(*servers)
"""


def test_daemonic_workers_of_a_pool_read_with_servers_of_their_own(tmp_path: Path) -> None:
    script = run(POOL, file=tmp_path / "script.py")
    output, errors = script.communicate()
    assert script.returncode == 0, errors
    servers = {int(server) for server in output.split()}
    assert len(servers) == 3
    for server in servers:
        assert eventually(lambda s=server: gone(s))  # type: ignore[misc]


MEASURED = """
import resource
from pathlib import Path
import apart_readers
from trimtab.datasets.io import sandbox as apart

apart.read_apart(Path("."), apart_readers.fills_memory)
apart.stop_server()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000)
"""


def test_a_readers_memory_is_counted_once_the_server_has_ended() -> None:
    output, errors = run(MEASURED).communicate()
    assert 512 < float(output) < 1500, errors
