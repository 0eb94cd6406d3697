"""A launcher that carries out runs in this process; to start another one takes seconds."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from trimtab.benchmarks.suites.launch import Done, Kind, Launcher, Start, Work, carry_out
from trimtab.errors import TrimtabError

__all__ = ["Here", "launcher_here"]


class Here:
    """A launcher that carries out runs in this process, one after another, when they are awaited.

    Args:
        start: what it is started with.
        before: called before each run, with how many have been carried out.
    """

    def __init__(self, start: Start, before: Callable[[int], None]) -> None:
        self.start, self.before, self.count = start, before, 0
        self.waiting: dict[concurrent.futures.Future[Done], Work] = {}

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        future: concurrent.futures.Future[Done] = concurrent.futures.Future()
        self.waiting[future] = work
        return future

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        future = next(iter(futures))
        self.before(self.count)
        self.count += 1
        try:
            future.set_result(carry_out(self.waiting.pop(future), self.start.tell))
        except TrimtabError as error:
            future.set_exception(error)
        return {future}


def launcher_here(
    before: Callable[[int], None] = lambda count: None, launcher: type[Here] = Here
) -> Kind:
    """Return the kind of this launcher, or of a child of it; for ``before`` see :class:`Here`."""

    @contextmanager
    def started(start: Start) -> Iterator[Launcher]:
        yield launcher(start, before)

    return Kind("here", started)
