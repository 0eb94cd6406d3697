"""Worker processes: what becomes of them, and of their work, when one of them or all are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from trimtab.benchmarks.core.pools import call_elsewhere, worker_pool
from trimtab.child import Child, ChildDied, end_children
from trimtab.errors import Stopped, TrimtabError

WORK = """
import atexit, json, os, shutil, signal, sys, tempfile, time
from pathlib import Path
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.child import say
from trimtab.errors import Stopped, TrimtabError

def save_when_told(place):
    with sigterm_as_event() as told:
        say("begun", os.getpid())
        Path(place, "begun").write_text(str(os.getpid()))
        told.wait()
        Path(place, "saved").touch()
        raise Stopped("saved")

def refuse():
    raise TrimtabError("not this one")

def fail():
    return {}["nothing"]

def pass_over_notices():
    print("this is no answer")
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.raise_signal(number)
    return [os.getpid(), os.environ.get("OF_THE_CALLER"), float("nan")]

def die_within_an_answer():
    from trimtab import child
    child._answers.write('{"value": [1, 2')
    child._answers.flush()
    os._exit(3)

def leave_a_folder():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return folder
"""
WAITS = """
import sys, of_workers
from trimtab.benchmarks.core.pools import call_elsewhere
call_elsewhere(of_workers.save_when_told, sys.argv[1], stopped="stopped")
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module whose functions are carried out."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "of_workers.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield __import__("of_workers")
    del sys.modules["of_workers"]


def in_time(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "that moment never came"
        time.sleep(0.02)


def test_a_process_serves_again_and_an_error_is_the_functions(
    work: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "here")
    with worker_pool(1, "stopped") as pool:
        first, variable, nan = pool.call(work.pass_over_notices)
        assert variable == "here" and nan != nan and first != os.getpid()
        with pytest.raises(TrimtabError, match="^not this one$"):
            pool.call(work.refuse)
        assert pool.call(work.pass_over_notices)[0] == first
        with pytest.raises(RuntimeError, match="KeyError: 'nothing'") as raised:
            pool.call(work.fail)
        assert "in fail" in raised.value.__notes__[0]
        folder = Path(pool.call(work.leave_a_folder))
        assert folder.is_dir()
    assert not folder.exists()
    assert not psutil.pid_exists(first)


def test_a_process_that_is_killed_is_one_line_and_the_others_go_on(work: ModuleType) -> None:
    with worker_pool(2, "stopped") as pool:
        killed = pool.threads.submit(pool.call, signal.raise_signal, signal.SIGKILL)
        with pytest.raises(TrimtabError, match=r"a worker process ended .*\(killed by signal 9\)"):
            killed.result()
        assert pool.call(abs, -7) == 7
        with pytest.raises(TrimtabError, match=r"a worker process ended .*\(exit code 5\)"):
            pool.call(os._exit, 5)
        with pytest.raises(Stopped, match="^stopped$"):  # by the machine, which is going down
            pool.call(signal.raise_signal, signal.SIGTERM)
        with pytest.raises(Stopped):
            pool.call(abs, -7)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_at_work_saves_its_state_when_the_caller_is_stopped(
    number: signal.Signals, work: ModuleType, tmp_path: Path
) -> None:
    said: list[object] = []

    def stop() -> None:
        in_time((tmp_path / "begun").exists)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop).start()
    expected = Stopped if number == signal.SIGTERM else KeyboardInterrupt
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # it is sent again for the outer one
    try:
        with pytest.raises(expected), worker_pool(2, "stopped") as pool:

            def call() -> object:
                return pool.call(work.save_when_told, str(tmp_path), tell=lambda *x: said.append(x))

            pool.await_some([pool.threads.submit(call)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "saved").exists()
    assert said == [("begun", int((tmp_path / "begun").read_text()))]


def test_what_is_at_work_saves_its_state_when_the_caller_is_killed(
    work: ModuleType, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(Path(str(work.__file__)).parent), *sys.path])
    caller = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}
    )
    in_time((tmp_path / "begun").exists)
    caller.kill()
    caller.wait()
    in_time((tmp_path / "saved").exists)
    worker = int((tmp_path / "begun").read_text())
    in_time(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie")


def test_a_second_interrupt_kills_what_still_saves() -> None:
    child = Child()
    child.process.send_signal(signal.SIGSTOP)  # it does not get to its end
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        end_children([child])
    assert child.process.returncode == -signal.SIGKILL


def test_a_call_may_be_answered_later() -> None:
    child = Child()
    child.begin(divmod, 7, 2)
    assert child.answer() == [3, 1]
    child.begin(divmod, 7, 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        child.answer()
    assert child.call(divmod, 9, 4) == [2, 1]
    end_children([child])
    assert child.process.returncode == 0
    with pytest.raises(ChildDied, match="exit code 0"):
        child.begin(divmod, 7, 2)


def test_an_exception_while_a_call_is_answered_kills_the_process() -> None:
    child = Child()
    child.begin(time.sleep, 60)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        child.answer()
    assert child.process.returncode == -signal.SIGKILL


def test_half_an_answer_is_none(work: ModuleType) -> None:
    child = Child()
    with pytest.raises(ChildDied, match="exit code 3"):
        child.call(work.die_within_an_answer)


def test_what_ends_its_process_is_told_elsewhere() -> None:
    assert call_elsewhere(divmod, 7, 2, stopped="stopped") == [3, 1]
    with pytest.raises(TrimtabError, match="killed by signal 6"):
        call_elsewhere(os.abort, stopped="stopped")
