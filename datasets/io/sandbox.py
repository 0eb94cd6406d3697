"""Reading in a process apart: a damaged file can crash or hang a C library, but not the caller.

The caller is never forked, for it may have threads (torch's, JAX's): a small server, started in a
fresh interpreter when the first file is read, forks for each reading (``sandbox_server.py``). It
is told what to read by the name of a module's function and by JSON. The reader hands its arrays
over in shared memory, so that nothing is copied twice, or in a file where they are too large for
that; beside them only JSON passes, and nothing is unpickled.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.io.sandbox_server import ADVICE, NO_ROOM, Blocks, Read, resolve
from trimtab.errors import TrimtabError

__all__ = [
    "Blocks", "Read", "Received", "read_apart", "reference", "resolve", "spilled_to", "stop_server",
]  # fmt: skip

Received = tuple[Mapping[str, Any], dict[str, npt.NDArray[Any]]]
"""What was read, in the calling process: JSON values, and arrays by their names."""

_spill: ContextVar[Path | None] = ContextVar("spill", default=None)

_SECONDS = 20.0  # of processor time, before a reader is taken to hang
_BYTES_A_SECOND = 1e6  # further time that a large file gets
_MEMORY = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()  # that a reader may ask for
_PATIENCE = 5.0  # seconds that the server gets to end
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from trimtab.datasets.io.sandbox_server import serve; serve(int(sys.argv[1]))"
)
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


@contextmanager
def spilled_to(folder: Path) -> Iterator[None]:
    """Let arrays that are read meanwhile lie in nameless files in ``folder``, not in memory.

    They go when the last array is let go of.
    """
    token = _spill.set(folder)
    try:
        yield
    finally:
        _spill.reset(token)


def reference(function: Callable[..., Any]) -> str:
    """Return the name ``module:function`` by which a process apart finds a function.

    Raises:
        TypeError: if it is not one of a module, but a closure, say.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    if getattr(sys.modules[function.__module__], function.__qualname__, None) is not function:
        raise TypeError(f"{name} is not a function of a module")
    return name


def read_apart(
    path: Path,
    read: Callable[..., AbstractContextManager[Read]],
    *arguments: Any,
    imports: Sequence[str] = (),
) -> Received:
    """Return what is read in a process apart; the arrays are read-only.

    Args:
        path: what is read: named in errors, and its size decides the patience.
        read: a module's function. It is called and entered in the process apart, and left when the
            arrays are gathered. It may raise TrimtabError, and nothing it does to memory or files'
            positions is seen here.
        arguments: of ``read``: JSON values, so that a tuple arrives as a list.
        imports: further modules that the server is to import once, and not each reader anew.

    Raises:
        TrimtabError: what ``read`` raised, that it crashed or came to no end, or that there is no
            room for its arrays.
    """
    request = {
        "path": str(path),
        "function": reference(read),
        "arguments": arguments,
        "imports": [read.__module__, *imports],
        "seconds": _SECONDS + _bytes(path) / _BYTES_A_SECOND,
        "memory": _MEMORY,
    }
    folder = _spill.get()
    store = os.memfd_create("trimtab") if folder is None else _nameless(folder)
    try:
        answer = _answer(request, store)
        status = answer["status"]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return _received(store)
    finally:
        os.close(store)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == NO_ROOM:
        place = folder or "memory"
        raise TrimtabError(f"dataset {path}: there is no room for its arrays in {place}")
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if killed_by == signal.SIGKILL and not answer["slow"]:
        raise TrimtabError(
            f"dataset {path}: its reader was killed, as happens where memory runs out; "
            f"free some, or {ADVICE}"
        )
    slow = answer["slow"] or killed_by == signal.SIGXCPU
    fault = "its reader came to no end" if slow else "its reader crashed"
    raise TrimtabError(f"dataset {path}: damaged ({fault}); {ADVICE}")


def _answer(request: Mapping[str, Any], store: int) -> dict[str, Any]:
    """Let the server carry out a request and return how the reader ended.

    Raises:
        TrimtabError: if the server cannot be started, or is killed time and again.
    """
    with os.fdopen(os.memfd_create("trimtab"), "wb") as task:
        task.write(json.dumps(request).encode())
        task.flush()
        here = os.open(".", os.O_PATH)  # relative paths mean the same there
        try:
            for _ in range(2):
                mine, theirs = socket.socketpair()
                with mine:  # closing it, as an interrupt does, ends the reader
                    with theirs:
                        _server.send([task.fileno(), store, here, theirs.fileno()])
                    with mine.makefile("rb") as end:
                        text = end.read()
                if text:
                    answer: dict[str, Any] = json.loads(text)
                    return answer
                _server.stop()
        finally:
            os.close(here)
    raise TrimtabError(
        f"dataset {request['path']}: the process that reads datasets ended twice without an "
        "answer, as happens where memory runs out; free some and try again"
    )


class _Server:
    """This process's reading server: started when it is first needed, ended with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def send(self, descriptors: Sequence[int]) -> None:
        """Hand over a request, to a fresh server where the last one was killed.

        Raises:
            TrimtabError: if no server can be started.
        """
        with self._lock:
            for _ in range(2):
                try:
                    if self._control is None:
                        self._start()
                    assert self._control is not None
                    socket.send_fds(self._control, [b"."], descriptors)
                    return
                except ConnectionError:
                    self._end()
                except OSError as error:
                    fault = error.strerror or error
                    raise TrimtabError(f"cannot start what reads datasets ({fault})") from error
            raise TrimtabError("cannot start what reads datasets (it ends at once)")

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = theirs.fileno()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, str(end), *filter(_is_text, sys.path)],
                    env={**os.environ, **_ONE_THREAD},
                    pass_fds=[end],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is the caller's to answer
                )
            except OSError:
                self._end()
                raise

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None

    def stop(self) -> None:
        """End the server; the next reading starts another."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Leave the server to the process that this one was forked from."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # it is not this process's to wait for
        self._control = self._process = None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_server = _Server()
os.register_at_fork(after_in_child=_server.forget)
atexit.register(_server.stop)


def stop_server() -> None:
    """End the process that readings are forked from; the next reading starts another.

    It ends with this process anyway. Afterwards ``resource.RUSAGE_CHILDREN`` counts the readers.
    """
    _server.stop()


def _bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _nameless(folder: Path) -> int:
    """Return a descriptor of a new file without a name: it goes with its last user."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise TrimtabError(f"cannot write in {folder}: {error.strerror or error}") from error


def _received(store: int) -> Received:
    size = os.fstat(store).st_size
    memory = mmap.mmap(store, size, access=mmap.ACCESS_READ)
    length = int.from_bytes(memory[size - 8 :], "little")
    index = json.loads(memory[size - 8 - length : size - 8])
    if "error" in index:
        raise TrimtabError(index["error"])
    arrays = {}
    for name, (dtype, shape, place) in index["arrays"].items():
        count = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(memory, np.dtype(dtype), count, place) if count else np.empty(0, dtype)
        arrays[name] = flat.reshape(shape)
    return index["values"], arrays
