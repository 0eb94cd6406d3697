"""What worker processes come from: on Linux a server that has imported what every run needs.

Each worker is forked from it, in a few milliseconds, and shares its memory: torch is imported once,
where each fresh interpreter would take more than a second of a core for it. Elsewhere, and where
the server cannot be started, workers are fresh interpreters.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext

import numpy as np

from trimtab.benchmarks.core.signals import interrupts_held

__all__ = ["adopt", "worker_context"]

_SERVER = "trimtab.benchmarks.core.worker_server"


def worker_context() -> ForkServerContext | SpawnContext:
    """Return what starts worker processes, ready to do so."""
    if sys.platform != "linux":  # macOS's own libraries do not all survive a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_SERVER])
    try:
        resource_tracker.ensure_running()  # the next call would; Python then unblocks SIGINT
        with _for_the_server():
            forkserver.ensure_running()
    except OSError:  # such as a temporary folder whose path is too long for a socket
        return multiprocessing.get_context("spawn")
    return context


@contextmanager
def _for_the_server() -> Iterator[None]:
    """Set what the server takes over when it is started.

    It looks for modules in the working directory first, unless it is told not to; one that has
    ended and is started again by Python itself is not told. Ctrl+C is for this process alone, which
    hears of it afterwards: the server holds it back, until it has set that it ignores it.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    with interrupts_held():
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            os.environ["PYTHONSAFEPATH"] = "1"
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            if before is None:
                os.environ.pop("PYTHONSAFEPATH", None)
            else:
                os.environ["PYTHONSAFEPATH"] = before


def adopt(environment: Mapping[str, str]) -> None:
    """Make this worker that of the process that asked for it, not that of the server.

    Args:
        environment: variables of the process that asked; it may have changed them since the server
            was started.
    """
    if dict(os.environ) != environment:
        os.environ.clear()
        os.environ.update(environment)
    np.random.seed()  # noqa: NPY002  (unseeded draws from it differ between workers)
