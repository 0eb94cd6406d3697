"""What tests have workers do; a worker has to be able to import it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time

import numpy as np


def variable(name: str) -> str | None:
    """Return a variable of the worker's environment, after a while for another worker to come."""
    time.sleep(0.3)
    return os.environ.get(name)


def drawn(_: int) -> float:
    """Return what a worker draws that nobody has seeded, after a while."""
    time.sleep(0.3)
    return float(np.random.random())  # noqa: NPY002


def found() -> tuple[bool, int, bool]:
    """Return whether all is imported already, who forked this, and what is set for it.

    It was imported in an order; this is the last of it.
    """
    return "trimtab.policies.registry" in sys.modules, os.getppid(), "PYTHONSAFEPATH" in os.environ


def leave_a_folder() -> str:
    """Return a temporary folder that goes when this worker ends."""
    folder = tempfile.mkdtemp(prefix="of-a-worker-")
    atexit.register(shutil.rmtree, folder)
    return folder


def endings() -> list[bool]:
    """Return for SIGTERM and SIGHUP whether the system itself ends this worker by it."""
    return [signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)]


def blocked() -> set[int]:
    """Return the signals that are blocked in this worker."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
