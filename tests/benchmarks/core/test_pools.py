"""Pools of processes: what happens to the pool's own thread when workers are killed at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time

import pytest

from trimtab.benchmarks.core.pools import worker_pool
from trimtab.errors import TrimtabError


def nothing() -> None:
    """What a worker is to do; it never comes to it."""


def test_the_notice_of_a_cluster_does_not_end_a_worker() -> None:
    with worker_pool(
        1, multiprocessing.get_context("spawn"), os.getpid, told=threading.Event(), stopped="none"
    ) as pool:
        pool.submit(signal.raise_signal, signal.SIGUSR2).result()
        assert pool.submit(abs, -7).result() == 7


def test_workers_that_are_killed_while_others_start_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
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
                    6, multiprocessing.get_context("spawn"), nothing,
                    told=threading.Event(), stopped="stopped",
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
