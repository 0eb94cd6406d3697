"""SIGTERM, which cluster schedulers and ``kill`` send some seconds before they end a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

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


_GRACE = 20.0  # seconds to save a state in
_told = threading.Event()


def told_to_end() -> bool:
    """Return whether this process was told to end while something here listened."""
    return _told.is_set()


@contextmanager
def sigterm_as_event() -> Iterator[threading.Event]:
    """Turn SIGTERM into an event: what a run looks at between two decisions.

    A signal that arrives too late to be raised here is sent again on exit, for the outer
    handler.
    """
    told = threading.Event()

    def note(*_: object) -> None:
        _told.set()
        told.set()

    with _on_sigterm(note):
        yield told
    if told.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM end this process at once with one line: where nothing that listens is running.

    The line and the exit code are those of work that is stopped later on. No exception is
    raised: during an import or in a callback from C it would be shown as a traceback.
    """
    process = os.getpid()

    def leave(*_: object) -> None:
        if os.getpid() == process:  # and not its fork
            shown = "\033[?25h" if os.isatty(2) else ""  # a progress bar hides the cursor
            line = f"{shown}trimtab: stopped; run the same command to go on\n"
            with suppress(OSError):
                os.write(2, line.encode())
        os._exit(Stopped.exit_code)

    with _on_sigterm(leave):
        yield


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Note that SIGINT came. It raises ``KeyboardInterrupt``, as it does without this.

    During an import, or in a callback from C, that may come out as another exception.
    """
    noted = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:  # such as ignored, without a terminal
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupt_as_event(waits_for: str = "") -> Iterator[threading.Event]:
    """Yield what SIGINT sets, in place of the exception that it raises; for a short while.

    Args:
        waits_for: what lasts longer, at times; a line says that, and a second SIGINT ends the
            process at once.
    """
    told, process = threading.Event(), os.getpid()
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before in (signal.SIG_IGN, None):
        yield told
        return

    def note(*_: object) -> None:
        if waits_for and os.getpid() == process:
            if told.is_set():
                os._exit(130)
            if os.isatty(2):
                with suppress(OSError):
                    line = f"trimtab: waiting for {waits_for}; once more ends it now\n"
                    os.write(2, line.encode())
        told.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let SIGINT have its effect after this, and none during it; for a short while.

    Nothing changes outside of the main thread, and where SIGINT is ignored. What it raises could
    otherwise come between a process's start and the note that it was started.
    """
    told = threading.Event()
    try:
        with interrupt_as_event() as told:
            yield
    finally:
        if told.is_set():
            signal.raise_signal(signal.SIGINT)


def end_with_parent() -> None:
    """End this process soon after the one that started it, however that ended; for pools' workers.

    A worker that nobody gives work to would wait for ever. It is told by SIGTERM first, so that a
    run saves its state.
    """
    # Known from before this process began: its parent may be gone by now.
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a pool's workers have a parent"

    def watch() -> None:
        while parent.is_alive():
            parent.join(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
