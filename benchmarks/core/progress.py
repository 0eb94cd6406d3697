"""How far work is, in lines: for where there is no terminal to draw bars on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trimtab.benchmarks.core.numerals import time_text

__all__ = ["EVERY", "Pace", "telling"]

EVERY = 30.0
"""Seconds between two lines."""


class Pace:
    """How long work goes on still, from how long it took until now.

    Args:
        clock: seconds of now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[float, float] | None = None

    def left(self, share: float) -> str:
        """Return how long it still takes, in words.

        What was done before the first call, such as by an earlier process, is not counted.

        Args:
            share: of the work that is done, from 0 to 1.

        Returns:
            Words such as ``12 min left``; none while there is nothing to judge by.
        """
        now = self._clock()
        if self._start is None:
            self._start = now, share
        began, had = self._start
        if share <= had or now <= began:
            return ""
        seconds = (now - began) * (1.0 - share) / (share - had)
        return f"{time_text(seconds)} left"


@contextmanager
def telling(
    describe: Callable[[], str], write: Callable[[str], None], every: float | None = None
) -> Iterator[None]:
    """Write a line every so many seconds while the block runs, also while nothing else happens.

    Args:
        describe: gives the line; an empty one is not written.
        write: takes it.
        every: seconds; by default :data:`EVERY`.
    """
    stop = threading.Event()

    def tell() -> None:
        while not stop.wait(EVERY if every is None else every):
            if line := describe():
                write(line)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
