"""SIGTERM, which cluster schedulers and ``kill`` send before they end a process; and Ctrl+C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from trimtab.errors import Stopped

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "RESUMES", "interrupts_cancel", "interrupts_noted", "sigterm_as_event", "sigterm_as_exit",
    "sigterm_cancels",
]  # fmt: skip

RESUMES = "run the same command to resume"
"""What a person is told whose command was stopped."""


@contextmanager
def _answered(number: signal.Signals, handle: Callable[..., object]) -> Iterator[None]:
    """Call ``handle`` on a signal for as long as this lasts.

    Only a process's main thread may take signals; elsewhere nothing changes. The same holds for
    Ctrl+C where a shell or a caller has this process ignore it.
    """
    ignored = number == signal.SIGINT and signal.getsignal(number) in (signal.SIG_IGN, None)
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def sigterm_as_event() -> Iterator[threading.Event]:
    """Turn SIGTERM into an event: what a run looks at between two decisions.

    A signal that arrives too late to be raised here is sent again on exit, for the outer
    handler.
    """
    told = threading.Event()
    with _answered(signal.SIGTERM, lambda *_: told.set()):
        yield told
    if told.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def sigterm_as_exit(then: str = RESUMES) -> Iterator[None]:
    """Let SIGTERM end this process at once with one line: where nothing that listens is running.

    Args:
        then: what the line says that can be done.

    The line and the exit code are those of work that is stopped later on. No exception is
    raised: during an import or in a callback from C it would be shown as a traceback.
    """
    process = os.getpid()

    def leave(*_: object) -> None:
        if os.getpid() == process:  # and not its fork
            shown = "\033[?25h" if os.isatty(2) else ""  # a progress bar hides the cursor
            line = f"{shown}trimtab: stopped; {then}\n"
            with suppress(OSError):
                os.write(2, line.encode())
        os._exit(Stopped.exit_code)

    with _answered(signal.SIGTERM, leave):
        yield


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Note that SIGINT came. It raises ``KeyboardInterrupt``, as it does without this.

    During an import, or in a callback from C, that may come out as another exception.
    """
    noted = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()
        signal.default_int_handler(number, frame)

    with _answered(signal.SIGINT, note):
        yield noted


@contextmanager
def sigterm_cancels(task: asyncio.Task[None]) -> Iterator[threading.Event]:
    """Let SIGTERM cancel a task, so that it ends as by Ctrl+C; the event notes that it came."""
    loop, told = task.get_loop(), threading.Event()

    def cancel(*_: object) -> None:
        told.set()
        loop.call_soon_threadsafe(task.cancel)

    with _answered(signal.SIGTERM, cancel):
        yield told


@contextmanager
def interrupts_cancel() -> Iterator[None]:
    """Let Ctrl+C cancel what ``asyncio.run`` runs, and be raised when that has ended.

    Raised anywhere in an event loop, it would leave coroutines that were never awaited. asyncio
    takes the signal only where Python's own handler has it.
    """
    with _answered(signal.SIGINT, signal.default_int_handler):
        yield
