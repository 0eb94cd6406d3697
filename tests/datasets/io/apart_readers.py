"""What tests let a process apart do. It is imported there, so it imports no more than it needs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.datasets.io.sandbox import Read


def crashes(file: Any) -> Read:
    os.abort()


def spins(file: Any) -> Read:
    while True:
        pass


def fails(file: Any) -> Read:
    raise ZeroDivisionError("of its own")


def asks_for_memory(file: Any) -> Read:
    return {}, [("a", np.ones(1 << 27))]  # a gigabyte


@contextmanager
def fills_memory() -> Iterator[Read]:
    """Touch half a gigabyte for a moment."""
    yield {"sum": float(np.ones(1 << 26).sum())}, []


def is_killed(file: Any) -> Read:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}, []


def sends_objects(file: Any) -> Read:
    return {}, [("a", np.array([{}, None], dtype=object))]


def hands_over_nothing(file: Any, name: str) -> Read:
    return {name: [1]}, [("a/b", np.zeros((0, 2)))]


@contextmanager
def surroundings() -> Iterator[Read]:
    """Say what is in this process."""
    yield {"modules": sorted(sys.modules), "process": os.getpid()}, []


@contextmanager
def waits(note: str) -> Iterator[Read]:
    """Write this process's number and wait for ever."""
    Path(note).write_text(str(os.getpid()))
    while True:
        time.sleep(60)
    yield {}, []


@contextmanager
def here() -> Iterator[Read]:
    yield {"folder": os.getcwd()}, [("numbers", np.arange(3))]
