"""Pools of processes: what happens to the pool's own thread when workers are killed at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import in_worker
import pytest

from trimtab.benchmarks.core import pools
from trimtab.benchmarks.core.pools import worker_pool
from trimtab.benchmarks.core.workers import worker_context
from trimtab.errors import TrimtabError


def nothing() -> None:
    """What a worker is to do; it never comes to it."""


def stop_the_server() -> None:
    own: Any = forkserver
    own._forkserver._stop()


def number_of_the_server() -> int:
    own: Any = forkserver
    number: int = own._forkserver._forkserver_pid
    return number


def some_workers() -> contextlib.AbstractContextManager[concurrent.futures.Executor]:
    return worker_pool(2, worker_context(), os.getpid, told=threading.Event(), stopped="none")


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server of workers that is started where there is a wrong ``torch``.

    A hang-up ends what these tests start, under nohup as well.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop_the_server()
    folder = tmp_path_factory.mktemp("folder")
    (folder / "torch.py").write_text("raise RuntimeError('not this one')\n")
    with contextlib.chdir(folder):
        assert worker_context().get_start_method() == "forkserver"
        with some_workers() as pool:  # it has imported by now
            pool.submit(abs, 0).result()
    yield
    stop_the_server()
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(params=["server", "spawn"])
def context(request: pytest.FixtureRequest) -> ForkServerContext | SpawnContext:
    """Each of the two things that workers come from."""
    if request.param == "spawn":
        return multiprocessing.get_context("spawn")
    return worker_context()


def test_the_notice_of_a_cluster_does_not_end_a_worker(
    context: ForkServerContext | SpawnContext,
) -> None:
    with worker_pool(1, context, os.getpid, told=threading.Event(), stopped="none") as pool:
        pool.submit(signal.raise_signal, signal.SIGUSR2).result()
        assert pool.submit(abs, -7).result() == 7


def test_workers_that_are_killed_while_others_start_are_one_line(
    context: ForkServerContext | SpawnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker is killed as soon as it is there, and the pool goes on starting others."""
    raised: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: raised.append(told.exc_value))
    others = set(multiprocessing.active_children())
    over = threading.Event()

    def kill() -> None:
        while not over.is_set():
            for worker in set(multiprocessing.active_children()) - others:
                with contextlib.suppress(ValueError):
                    worker.kill()
            time.sleep(0.001)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for _ in range(8):
            with (
                pytest.raises(TrimtabError, match="a worker process ended before its work"),
                worker_pool(
                    6, context, nothing, told=threading.Event(), stopped="stopped",
                ) as pool,
            ):  # fmt: skip
                for _ in range(6):
                    future = pool.submit(nothing)
                future.result()
    finally:
        over.set()
        killer.join()
    assert raised == []
    assert set(multiprocessing.active_children()) == others


def test_workers_of_the_server_are_those_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("first", None, "second"):  # the server was started before
        if value is None:
            monkeypatch.delenv("OF_WHO_ASKS")
        else:
            monkeypatch.setenv("OF_WHO_ASKS", value)
        with some_workers() as pool:
            assert list(pool.map(in_worker.variable, ["OF_WHO_ASKS"] * 2)) == [value] * 2
            first, second = pool.map(in_worker.drawn, range(2))
            assert first != second
            assert pool.submit(in_worker.found).result() == (True, number_of_the_server(), False)
            assert pool.submit(gc.isenabled).result()
            assert pool.submit(gc.get_threshold).result()[0] == 50_000


def test_a_worker_of_the_server_ends_as_a_fresh_one(
    context: ForkServerContext | SpawnContext,
) -> None:
    with worker_pool(1, context, os.getpid, told=threading.Event(), stopped="none") as pool:
        assert pool.submit(in_worker.endings).result() == [True, True]
        folder = Path(pool.submit(in_worker.leave_a_folder).result())
        assert folder.is_dir()
    assert not folder.exists()


def test_a_hang_up_that_is_ignored_is_ignored_by_workers_too() -> None:
    stop_the_server()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with some_workers() as pool:
            assert pool.submit(in_worker.endings).result() == [True, False]
    finally:
        signal.signal(signal.SIGHUP, before)
        stop_the_server()


def test_ctrl_c_while_the_server_starts_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes just after the server has begun, in a group of processes."""
    start: Callable[[], None] = forkserver.ensure_running

    def and_interrupt() -> None:
        start()
        for number in (number_of_the_server(), os.getpid()):
            os.kill(number, signal.SIGINT)

    stop_the_server()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(forkserver, "ensure_running", and_interrupt)
        worker_context()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = number_of_the_server()
    with some_workers() as pool:
        assert pool.submit(in_worker.blocked).result() == set()
        assert pool.submit(os.getppid).result() == number_of_the_server() == before


def test_ctrl_c_while_a_worker_starts_does_not_lose_the_worker(
    context: ForkServerContext | SpawnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the worker has begun, and before the pool has noted that."""
    begun: list[BaseProcess] = []
    start = BaseProcess.start

    def and_interrupt(process: BaseProcess) -> None:
        start(process)
        begun.append(process)
        os.kill(os.getpid(), signal.SIGINT)

    with (
        pytest.raises(KeyboardInterrupt),
        worker_pool(
            1, context, time.sleep, (60,), told=threading.Event(), stopped="stopped"
        ) as pool,
    ):
        monkeypatch.setattr(BaseProcess, "start", and_interrupt)
        pool.submit(nothing)
    (worker,) = begun
    # The pool's own thread asks the server, too, and who asks second is told that it is lost.
    lost = {pools._LOST} if isinstance(context, ForkServerContext) else set()
    assert worker.exitcode in {-signal.SIGTERM} | lost
    assert worker.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_a_worker_that_is_told_to_end_at_its_first_moment_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as before Python itself has noted that it was forked."""
    start = BaseProcess.start
    context = worker_context()

    def and_told_at_once(process: BaseProcess) -> None:
        start(process)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)

    for _ in range(20):
        with (
            pytest.raises(TrimtabError, match="a worker process ended before its work was done"),
            worker_pool(1, context, os.getpid, told=threading.Event(), stopped="stopped") as pool,
        ):
            with monkeypatch.context() as patch:
                patch.setattr(BaseProcess, "start", and_told_at_once)
                future = pool.submit(time.sleep, 20)
            future.result(10)


def test_the_server_outlives_what_a_group_is_told() -> None:
    with some_workers() as pool:
        pool.submit(abs, 0).result()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(number_of_the_server(), number)
        waiting = pool.submit(time.sleep, 0.5)  # so that the next call is another worker's
        assert pool.submit(abs, -7).result() == 7 and waiting.result() is None


def test_a_server_that_is_killed_is_one_line_and_the_next_pool_has_another() -> None:
    with pytest.raises(TrimtabError, match="a worker process ended"), some_workers() as pool:
        worker = pool.submit(os.getpid).result()
        before = number_of_the_server()
        os.kill(before, signal.SIGKILL)
        for _ in range(3):
            pool.submit(time.sleep, 0.2).result()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    with some_workers() as pool:
        assert pool.submit(os.getppid).result() == number_of_the_server() != before


def test_without_room_for_a_socket_workers_are_fresh_interpreters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_the_server()
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    process: Any = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "tempdir", str(deep))
    assert worker_context().get_start_method() == "spawn"
    assert "PYTHONSAFEPATH" not in os.environ
