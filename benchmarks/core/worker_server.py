"""Imported by the server of worker processes alone; see :mod:`trimtab.benchmarks.core.workers`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal

# While this imports, SIGTERM and a hang-up end it: there is no worker yet. The rest is for others.
for _number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(_number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # its starter has blocked it

_NEEDED = (
    "numpy",
    "torch",
    "trimtab.algorithms.base",
    "trimtab.benchmarks.training.settings.config",
    "trimtab.envs.registry",
    "trimtab.policies.registry",
)
"""What every run imports, but for what starts threads (pyarrow, ONNX Runtime): forks lose those."""
_ASKED_BY = os.getppid()

gc.disable()  # what is imported stays, so looking for garbage is in vain
with contextlib.suppress(Exception):  # a worker that needs it meets the same error, and tells it
    for _name in _NEEDED:
        importlib.import_module(_name)
        if os.getppid() != _ASKED_BY:  # it has ended, and this holds its standard output open
            os._exit(0)
gc.enable()
gc.collect()
gc.freeze()  # so that looking for garbage in a worker does not copy what it shares


def _end_at_once(server: int) -> None:
    """End the server, without what its libraries have registered for their end.

    To take apart all that was imported would take a quarter of a second. Workers, which call what
    is registered too, have other numbers.
    """
    if os.getpid() == server:
        os._exit(0)


atexit.register(_end_at_once, os.getpid())
# From here on it takes no notice of what a group of processes is told; the workers have theirs.
# A worker whose server is gone looks as if it were gone itself, while it still saves its run.
for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) != signal.SIG_IGN:  # as it is under nohup, for workers, too
        signal.signal(_number, lambda *_: None)  # a thread of a library's may get it
# A worker is forked with both blocked, and unblocks them when it is ready. A signal that comes
# earlier waits until then. It would be lost otherwise: Python drops what comes during a fork.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
