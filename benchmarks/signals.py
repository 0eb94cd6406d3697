"""SIGTERM, which cluster schedulers and ``kill`` send some seconds before they end a process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trimtab.errors import Stopped


@contextmanager
def _on_sigterm(handle: Callable[..., object]) -> Iterator[None]:
    """Call ``handle`` on SIGTERM for as long as this lasts.

    Only a process's main thread may take signals; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_as_event() -> Iterator[threading.Event]:
    """Turn SIGTERM into an event: what a run looks at between two decisions."""
    told = threading.Event()
    with _on_sigterm(lambda *_: told.set()):
        yield told


@contextmanager
def sigterm_as_error() -> Iterator[None]:
    """Turn SIGTERM into :class:`Stopped`: a suite has workers that it must tell, too."""

    def stop(*_: object) -> None:
        raise Stopped("stopped; the runs' states are saved, run the same command to go on")

    with _on_sigterm(stop):
        yield
