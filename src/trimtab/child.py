"""A process that carries out functions: it is given JSON, and answers in JSON.

It is a fresh interpreter: nothing is forked or unpickled, and the caller's script does not run a
second time. It has a session of its own, so that Ctrl+C in a terminal reaches the caller alone. Its
end follows from its standard input. When that is closed, which also happens when the caller is
killed, an idle process ends at once. One that is at work is told by SIGTERM, and has :data:`GRACE`
seconds to save what it has.
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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import IO, Any

from trimtab.errors import Stopped, TrimtabError

__all__ = ["GRACE", "Child", "ChildDied", "end", "reference", "resolve", "say", "serve"]

GRACE = 60.0
"""Seconds that a process has to save its state, before it is ended by force."""
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from trimtab.child import serve; serve()"
)


class ChildDied(Exception):
    """A process ended before it answered.

    Attributes:
        code: its exit code; the negative number of the signal that killed it, if one did.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        self.code = code


def reference(function: Callable[..., Any]) -> str:
    """Return the name ``module:function`` by which another process finds a function.

    Raises:
        TypeError: if it is not a function of a module, but a closure, for example.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    if getattr(sys.modules[function.__module__], function.__qualname__, None) is not function:
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
        environment: variables that it has besides those of this process.
        silent: whether nothing that it prints is shown; otherwise that goes to standard error.
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
        """Return what a function returns in the process, after it has come through JSON.

        If an exception arises here meanwhile, such as by Ctrl+C, the process is killed.

        Args:
            function: of a module.
            arguments: JSON values; a tuple arrives as a list.
            tell: called with what the function says by :func:`say`.

        Raises:
            ChildDied: if the process ends before it answers.
            TrimtabError: if the function raises it.
            RuntimeError: if the function raises anything else; its traceback is a note.
        """
        task = json.dumps([reference(function), arguments])
        try:
            answer = self._answer(task, tell)
        except BaseException:
            self.process.kill()
            raise
        if answer is None:
            raise ChildDied(self.process.wait())
        if "value" in answer:
            return answer["value"]
        if "traceback" in answer:
            error = RuntimeError(answer["error"])
            error.add_note(answer["traceback"])
            raise error
        raise (Stopped if answer["stopped"] else TrimtabError)(answer["error"])

    def _answer(self, task: str, tell: Callable[..., None]) -> dict[str, Any] | None:
        """Hand over a task; return the answer, None if the process is gone."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{task}\n".encode())
            self.process.stdin.flush()
        except (OSError, ValueError):  # it has died, or is told to end
            return None
        for line in self.process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "said" not in answer:
                return answer
            tell(*answer["said"])
        return None


def end(children: Iterable[Child], seconds: float = GRACE) -> None:
    """Tell processes to end, wait until they have, and kill those that have not.

    Args:
        children: the processes.
        seconds: how long to wait. An exception, such as by Ctrl+C, ends the waiting.
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


_answers: IO[str]
_writing = threading.Lock()


def serve() -> None:
    """Carry out what standard input asks for: what a :class:`Child` does."""
    global _answers
    # Ctrl+C is for the caller. A cluster may send its notice that a job's time is over to every
    # process of the job; the one that was started by the cluster answers it.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # The first that is registered is called last. C++ libraries with threads of their own may abort
    # the process while Python takes it apart after that.
    atexit.register(_leave)
    asked = os.fdopen(os.dup(0), "rb")
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what is printed is no answer
    tasks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(asked, tasks, busy), daemon=True).start()
    while (task := tasks.get()) is not None:
        answer = _carry_out(task)
        busy.clear()  # before the answer, which the next task may follow at once
        _write(answer)


def say(*said: Any) -> None:
    """Tell the caller something, JSON values, from within a function that a process carries out."""
    _write(json.dumps({"said": said}))


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _listen(
    asked: IO[bytes], tasks: queue.SimpleQueue[bytes | None], busy: threading.Event
) -> None:
    """Pass tasks on, and end this process when no more can come."""
    for task in asked:
        busy.set()
        tasks.put(task)
    tasks.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def _carry_out(task: bytes) -> str:
    """Carry out a task; return its answer as JSON."""
    name, arguments = json.loads(task)
    try:
        return json.dumps({"value": resolve(name)(*arguments)})
    except TrimtabError as error:
        return json.dumps({"error": str(error), "stopped": isinstance(error, Stopped)})
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return json.dumps(told)


def _write(line: str) -> None:
    with _writing, suppress(OSError):  # the caller is gone; what is at work here saves its state
        _answers.write(f"{line}\n")
        _answers.flush()
