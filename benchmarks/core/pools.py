"""Pools of worker processes that end whole: told to stop, or at an error, no worker is left behind.

SIGTERM is only noted while a pool is there, and looked at between two results. An exception out of
the handler itself could come while a process is being started, and leave it without its work; so
SIGINT, which raises one, is held back while a worker is started.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import util
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from trimtab.benchmarks.core.memory import collect_rarely
from trimtab.benchmarks.core.signals import end_with_parent, interrupts_held, sigterm_as_event
from trimtab.benchmarks.core.workers import adopt, worker_context
from trimtab.errors import Stopped, TrimtabError

__all__ = ["await_some", "call_elsewhere", "leave_worker", "worker_pool"]

GRACE = 60.0
"""Seconds that told workers have to save their state, before they are ended by force."""
_LOOK = 0.2
"""Seconds between two looks at whether to stop."""


class _Workers(dict[int, Any]):
    """A pool's workers by their number; a loop over them sees those of its beginning."""

    def values(self) -> Any:
        return list(super().values())


class _Pool(concurrent.futures.ProcessPoolExecutor):
    """A pool whose own thread may look at its workers while one more is being started.

    In Python's that thread ends with a RuntimeError, which is printed, where a worker is killed
    while the dictionary of workers still grows; and a start of one more meets closed pipes.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._processes = _Workers()

    def started(self) -> list[BaseProcess]:
        """Return every worker that was started; none once the pool is shut down."""
        return list((self._processes or _Workers()).values())

    def submit(self, *args: Any, **keywords: Any) -> concurrent.futures.Future[Any]:
        """Hand over a call, as Python's pool does.

        Raises:
            BrokenProcessPool: if a worker has ended by itself.
        """
        try:
            with interrupts_held():  # a worker that has just begun would not be known yet
                return super().submit(*args, **keywords)
        except (OSError, ValueError, EOFError) as error:
            # EOFError and ConnectionError: the server of workers ended before it had started one.
            if self._broken or isinstance(error, EOFError | ConnectionError):
                raise BrokenProcessPool("a worker ended while another one was started") from error
            raise


@contextmanager
def worker_pool(
    workers: int,
    context: ForkServerContext | SpawnContext,
    initializer: Callable[..., None],
    initargs: tuple[Any, ...] = (),
    *,
    told: threading.Event,
    stopped: str,
) -> Iterator[concurrent.futures.Executor]:
    """Yield a pool of worker processes; afterwards none of them is left, whatever happened.

    At an error each worker gets SIGTERM, and :data:`GRACE` seconds to save what it has.

    Args:
        workers: processes side by side.
        context: what starts them, as :func:`~trimtab.benchmarks.core.workers.worker_context` says.
        initializer: called in each of them first.
        initargs: its arguments.
        told: when set, this process stops.
        stopped: the line that it then ends with.

    Raises:
        Stopped: if workers ended because the whole group of processes is told to stop.
        TrimtabError: if a worker ended by itself, such as for want of memory.
    """
    begin = (dict(os.environ), initializer, *initargs)
    pool = _Pool(workers, mp_context=context, initializer=_begin, initargs=begin)
    try:
        if isinstance(context, ForkServerContext):
            _await_server(context)
        yield pool
    except BaseException as error:
        started = pool.started()
        pool.shutdown(wait=False, cancel_futures=True)
        _end(started)
        if isinstance(error, BrokenProcessPool):
            if told.wait(_LOOK):  # the workers may have been told first
                raise Stopped(stopped) from error
            raise TrimtabError(
                "a worker process ended before its work was done, such as for want of memory; "
                "run the same command to go on, with fewer workers if it happens again"
            ) from error
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def call_elsewhere(function: Callable[..., Any], *arguments: Any, stopped: str) -> Any:
    """Return what a function of a module returns in a process of its own.

    Args:
        function: what to call.
        arguments: of it.
        stopped: the line with which this process ends where it is told to stop meanwhile.

    Raises:
        Stopped: if it is.
        TrimtabError: if the other process ended by itself.
        Exception: whatever the function raises.
    """
    with (
        sigterm_as_event() as told,
        worker_pool(1, worker_context(), _begin_call, told=told, stopped=stopped) as pool,
    ):
        future = pool.submit(function, *arguments)
        await_some([future], told, stopped)
        return future.result()


def _begin_call() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's


def _await_server(context: ForkServerContext) -> None:
    """Wait until the server has forked a process that does nothing: then it has imported all.

    An interrupt in these seconds begins no worker, which would miss its queues.

    Raises:
        BrokenProcessPool: if the server ends meanwhile.
    """
    first = context.Process(target=os.getpid)
    try:
        first.start()
    except (EOFError, ConnectionError) as error:
        raise BrokenProcessPool("the server of workers ended while it was started") from error
    first.join()


def _begin(
    environment: Mapping[str, str], initializer: Callable[..., None], *initargs: Any
) -> None:
    """Prepare a worker.

    A cluster may send its notice that a job's time is over to every process of the job. It is for
    the one that started this pool, which tells the workers; by itself the signal would end them.
    """
    for notice in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(notice, signal.SIG_IGN)
    # The server forks with SIGTERM and SIGHUP blocked. One that has come since ends this worker
    # here, as it would end a fresh one. SIGINT is blocked only if the server could not import.
    endings = {signal.SIGTERM, signal.SIGHUP}
    for ending in endings:
        if signal.getsignal(ending) != signal.SIG_IGN:  # as it is under nohup
            signal.signal(ending, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *endings})
    # A forked worker ends without Python's own last calls, which remove temporary folders.
    util.Finalize(None, atexit._run_exitfuncs, exitpriority=-100)
    adopt(environment)
    collect_rarely()
    initializer(*initargs)


def _end(processes: Iterable[BaseProcess]) -> None:
    """Tell processes to end, wait until they have, and end by force those that have not."""
    left = list(processes)
    for process in left:
        _tell(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while any(map(_is_there, left)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in left:
        if _is_there(process):
            _tell(process, signal.SIGKILL)
            process.join()


_LOST = 255
"""The exit code that Python gives a worker whose server is gone; it may be there itself.

If two threads ask the server for a code at once, the second one gets this, too.
"""


def _is_there(process: BaseProcess) -> bool:
    """Return whether a process has not ended."""
    if process.exitcode != _LOST:
        return process.is_alive()
    assert process.pid is not None
    try:
        os.kill(process.pid, 0)
    except OSError:  # there is none of this number, or it is somebody else's by now
        return False
    return True


def _tell(process: BaseProcess, number: int) -> None:
    """Send a signal to a process that has not ended."""
    if _is_there(process):
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def await_some(
    futures: Collection[concurrent.futures.Future[Any]],
    told: threading.Event,
    stopped: str,
    waiting: Callable[[], None] | None = None,
) -> set[concurrent.futures.Future[Any]]:
    """Return those of the futures that are done, once there is one.

    Args:
        futures: of a :func:`worker_pool`.
        told: when set, this process stops.
        stopped: the line that it then ends with.
        waiting: called several times a second while none is done.

    Raises:
        Stopped: if it is told to stop.
    """
    ready: set[concurrent.futures.Future[Any]] = set()
    while not ready:
        ready, _ = concurrent.futures.wait(
            futures, timeout=_LOOK, return_when=concurrent.futures.FIRST_COMPLETED
        )
        if told.is_set():
            raise Stopped(stopped)
        if waiting is not None:
            waiting()
    return ready


def leave_worker() -> NoReturn:
    """End this worker process now, as one that was told to stop: it takes no further work."""
    # What Python does at the end of such a process: the locks of its own pools are freed.
    util._exit_function()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(Stopped.exit_code)
