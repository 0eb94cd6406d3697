"""A child process that runs functions: calls arrive as JSON, answers return as JSON.

The child is a fresh interpreter: nothing is forked or unpickled, and the caller's script does not
run again. It has its own session, so that Ctrl+C in a terminal reaches only the caller. It ends
when its standard input is closed, which also happens when the caller is killed: at once if it is
idle; otherwise it sends itself SIGTERM and has :data:`GRACE` seconds to save its state.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from trimtab.errors import Stopped, TrimtabError

__all__ = [
    "GRACE", "Child", "ChildDied", "end_children", "killed_after", "reference", "resolve", "say",
    "serve",
]  # fmt: skip

GRACE = 60.0
"""Seconds that a process has to save its state before it is killed."""
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from trimtab.child import serve; serve()"
)


class ChildDied(Exception):
    """The child process ended before it answered.

    Attributes:
        code: its exit code, or minus the number of the signal that killed it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        self.code = code


def reference(function: Callable[..., Any]) -> str:
    """Return the name ``module:function`` by which another process finds a function.

    Raises:
        TypeError: if it is not a function at the top level of a module that a child can import.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    known = getattr(sys.modules[function.__module__], function.__qualname__, None)
    if known is not function or function.__module__ == "__main__":
        raise TypeError(f"{name} is not a function of a module")
    return name


def resolve(name: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


class Child:
    """A process that carries out one function after another.

    Args:
        environment: variables to set in addition to those of this process.
        silent: whether to discard what it prints; otherwise that goes to standard error.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, silent: bool = False):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _START, *map(str, sys.path)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if silent else None,
            start_new_session=True,
        )

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        tell: Callable[..., None] = lambda *said: None,
    ) -> Any:
        """Call a function in the process; return its value as JSON gives it back.

        An exception that is raised here meanwhile, such as by Ctrl+C, kills the process.

        Args:
            function: a function at the top level of a module.
            arguments: JSON values; a tuple arrives as a list.
            tell: called with the values that the function passes to :func:`say`.

        Raises:
            ChildDied: if the process ends before it answers.
            TrimtabError: if the function raises it.
            RuntimeError: if the function raises another exception; a note has its traceback.
        """
        self.begin(function, *arguments)
        return self.answer(tell)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a call, as :meth:`call` does; :meth:`answer` ends it, before the next one begins.

        Raises:
            ChildDied: if the process has ended.
        """
        assert self.process.stdin is not None
        request = json.dumps([reference(function), arguments])
        with self._killed_by_an_exception():
            try:
                self.process.stdin.write(f"{request}\n".encode())
                self.process.stdin.flush()
                return
            except (OSError, ValueError):  # it has ended, or end_children has closed its input
                pass
        raise ChildDied(self.process.wait())

    def answer(self, tell: Callable[..., None] = lambda *said: None) -> Any:
        """Wait for the value of the call that was begun, and return it; raise as :meth:`call`."""
        with self._killed_by_an_exception():
            answer = self._read(tell)
        if answer is None:
            raise ChildDied(self.process.wait())
        if "value" in answer:
            return answer["value"]
        if "traceback" in answer:
            error = RuntimeError(answer["error"])
            error.add_note(answer["traceback"])
            raise error
        raise (Stopped if answer["stopped"] else TrimtabError)(answer["error"])

    @contextmanager
    def _killed_by_an_exception(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.process.kill()
            self.process.wait()  # so that its caller sees at once that it has ended
            raise

    def _read(self, tell: Callable[..., None]) -> dict[str, Any] | None:
        """Return the answer to a request, or None if the process has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):  # the process ended while it wrote
                return None
            answer: dict[str, Any] = json.loads(line)
            if "said" not in answer:
                return answer
            tell(*answer["said"])
        return None


def end_children(children: Iterable[Child], seconds: float = GRACE) -> None:
    """Close the input of processes, wait for their end, and kill those that still run.

    Args:
        children: the processes.
        seconds: how long to wait; an exception, such as by Ctrl+C, ends the wait.
    """
    children = list(children)
    deadline = time.monotonic() + seconds
    try:
        for child in children:
            assert child.process.stdin is not None
            with suppress(OSError):
                child.process.stdin.close()
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(deadline - time.monotonic(), 0.0))
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()


@contextmanager
def killed_after(child: Child, seconds: float) -> Iterator[threading.Event]:
    """Kill a child that is still busy after a while; the event that is yielded tells so."""
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        child.process.kill()

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), kill)
    timer.daemon = True
    timer.start()
    try:
        yield killed
    finally:
        timer.cancel()


# What follows is carried out in the child process.

_answers: IO[str]
_exit_code = 0
_writing = threading.Lock()


def serve() -> None:
    """Answer the calls on standard input; this is all that a :class:`Child` runs."""
    global _answers
    # The caller handles Ctrl+C. A cluster may signal the end of a job's time to every process of
    # the job; the process that the cluster started handles it.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Registered first, so called last: it exits before Python's own teardown, in which threads of
    # C++ libraries may abort the process.
    atexit.register(_leave)
    incoming = os.fdopen(os.dup(0), "rb")
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # prints go to standard error; standard output is for answers
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(incoming, requests, busy), daemon=True).start()
    while (request := requests.get()) is not None:
        answer = _answer_call(request)
        busy.clear()  # before the answer: the next request may arrive as soon as it is written
        _write(answer)


def say(*said: Any) -> None:
    """Send JSON values to the caller, from a function that runs in a child."""
    _write(json.dumps({"said": said}))


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_code)


def _listen(
    incoming: IO[bytes], requests: queue.SimpleQueue[bytes | None], busy: threading.Event
) -> None:
    """Queue requests as they arrive; end this process when the input is closed."""
    for request in incoming:
        busy.set()
        requests.put(request)
    requests.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)  # this is a daemon thread: an idle process has ended long before
    os._exit(1)


def _answer_call(request: bytes) -> str:
    """Call the function that a request names; return the answer as JSON."""
    global _exit_code
    name, arguments = json.loads(request)
    try:
        return json.dumps({"value": resolve(name)(*arguments)})
    except SystemExit as error:  # the function ends this process, and says how
        _exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except TrimtabError as error:
        return json.dumps({"error": str(error), "stopped": isinstance(error, Stopped)})
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return json.dumps(answer)


def _write(line: str) -> None:
    with (
        _writing,
        suppress(OSError),
    ):  # the caller has ended; the running function may still save its state
        _answers.write(f"{line}\n")
        _answers.flush()
