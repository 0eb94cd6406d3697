"""Where the command ``trimtab`` starts: before it has imported what carries it out."""

from __future__ import annotations

import signal

__all__ = ["console"]


def console() -> None:
    """Carry out the command line of this process, and end it.

    To import the command line takes a few tenths of a second, in which nothing is begun. Ctrl+C
    ends the process meanwhile, without the traceback that Python would show.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # it is not where a shell has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trimtab.benchmarks.cli.main import console as carry_out

    signal.signal(signal.SIGINT, before)
    carry_out()


if __name__ == "__main__":
    console()
