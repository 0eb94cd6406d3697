"""Reading in a separate process: never forked from the caller, bounded, and gone when it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab.datasets.formats.registry import get_format
from trimtab.datasets.io import sandbox as apart
from trimtab.types import TrimtabError

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent


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


def run(script: Path, text: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python with a script."""
    script.write_text(text)
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(FOLDER)])
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", ["d4rl", "lerobot", "minari", "robomimic", "blosc"])
def test_foreign_files_are_read_without_a_fork_in_a_small_process(
    kind: str, readers: Any, foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", forbidden)
    writers = {**foreign.WRITERS, "blosc": foreign.VARIANTS["blosc diffusion_policy"]}
    name, write = writers[kind]
    write(tmp_path / name)
    format = get_format(kind if kind in foreign.WRITERS else "diffusion_policy")
    assert format.load(tmp_path / name).num_steps > 0
    modules = apart.read_apart(tmp_path, readers.surroundings)[0]["modules"]
    assert "trimtab.datasets.io.sandbox" in modules and not {"torch", "jax"} & set(modules)


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


def test_a_process_that_was_killed_is_started_again(readers: Any, tmp_path: Path) -> None:
    first, again = (
        psutil.Process(apart.read_apart(tmp_path, readers.surroundings)[0]["process"])
        for _ in range(2)
    )
    assert first == again
    first.kill()
    first.wait(30)
    assert apart.read_apart(tmp_path, readers.surroundings)[0]["process"] != first.pid


def test_a_process_that_cannot_start_is_one_line(
    readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(TrimtabError, match="^cannot start what reads datasets .No such file"):
        apart.read_apart(tmp_path, readers.here)


def test_an_interrupted_caller_ends_the_reader(readers: Any, tmp_path: Path) -> None:
    note = tmp_path / "note"

    def interrupt() -> None:
        eventually(lambda: note.is_file() and bool(note.read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        apart.read_apart(tmp_path, readers.waits, str(note))
    thread.join()
    assert eventually(lambda: gone(int(note.read_text())))
    assert apart.read_apart(tmp_path, readers.here)[1]["numbers"].tolist() == [0, 1, 2]


WAITING = """
import sys
from pathlib import Path
import apart_readers
from trimtab.datasets.io.sandbox import read_apart, spill_to

with spill_to(Path(sys.argv[1]) / "spill"):
    read_apart(Path(sys.argv[1]), apart_readers.waits, sys.argv[1] + "/note")
"""


def test_nothing_outlives_a_killed_caller(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = run(tmp_path / "script.py", WAITING, tmp_path)
    try:
        assert eventually(lambda: note.is_file() and bool(note.read_text()), 60)
        (left,) = psutil.Process(script.pid).children(recursive=True)
        assert int(note.read_text()) == left.pid
    finally:
        script.kill()
        script.communicate()
    assert eventually(lambda: gone(left))
    assert not list((tmp_path / "spill").iterdir())


SCRIPT = """
import os, resource
from pathlib import Path
import apart_readers
from trimtab.datasets.io import sandbox

def reader():
    return sandbox.read_apart(Path("."), apart_readers.surroundings)[0]["process"]

first = reader()
if (fork := os.fork()) == 0:
    os._exit(reader() == first)
forked = os.waitpid(fork, 0)[1]
sandbox.read_apart(Path("."), apart_readers.fills_memory)
again = reader()
sandbox.stop_reader()
print("once", first == again, forked, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_an_unguarded_script_runs_once_and_its_forks_have_readers_of_their_own(
    tmp_path: Path,
) -> None:
    """And what the process that reads has taken is counted once it has ended."""
    script = run(tmp_path / "unguarded.py", SCRIPT)
    output, errors = script.communicate()
    assert script.returncode == 0, errors
    (line,) = output.splitlines()
    *words, most = line.split()
    assert words == ["once", "True", "0"] and 512e3 < float(most) < 1500e3
