"""Starts the command ``trimtab``: Ctrl+C during the imports ends it quietly."""

from __future__ import annotations

import signal
import threading

__all__ = ["console"]


def console() -> None:
    """Carry out the command line of this process, and end it.

    To import the command line takes a few tenths of a second, in which nothing is begun. Ctrl+C
    ends the process meanwhile, without the traceback that Python would show.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()  # another may set no handler
    # A shell may have set SIGINT to be ignored; then it stays so.
    quiet = main and before is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trimtab.benchmarks.cli.main import console as carry_out

    if quiet:
        signal.signal(signal.SIGINT, before)
    carry_out()


if __name__ == "__main__":
    console()
