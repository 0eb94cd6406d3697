"""The process that readings are forked from: small, of one thread, and without torch and JAX.

A process with threads must not fork: a lock that another thread holds at that moment stays locked
in the child for ever. So the caller (``apart.py``) starts this server in a fresh interpreter, and
the server forks twice for each reading: a supervisor, and the reader that it bounds in time.

Python's own forkserver does the same and does not serve here. It imports the caller's script again
in every process, which starts an unguarded script anew; it unpickles what it is sent; and daemonic
workers of a pool may not use it.

A request is one byte with four descriptors: the task as JSON, the store for the arrays, the working
directory, and a socket for the answer. To close the other end of that socket ends the
reading; to close the other end of the requests ends the server.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["ADVICE", "NO_ROOM", "Blocks", "Read", "resolve", "serve"]


@dataclass(frozen=True)
class Blocks:
    """An array that is read a part at a time, because all of it may not fit into memory.

    Attributes:
        dtype: of the numbers.
        shape: of the whole.
        read: yields consecutive rows.
    """

    dtype: npt.DTypeLike
    shape: tuple[int, ...]
    read: Callable[[], Iterable[npt.NDArray[Any]]]


Read = tuple[Mapping[str, Any], Iterable[tuple[str, npt.NDArray[Any] | Blocks]]]
"""JSON values, which are complete once all arrays are read, and arrays of numbers with names."""

NO_ROOM = 3
"""The exit code of a reader whose arrays found no room."""
ADVICE = "make the dataset again or fetch a fresh copy"

_DESCRIPTORS = 4
_ALIGNMENT = 64


def serve(control: int) -> None:
    """Carry out requests from the socket ``control`` until its other end is closed."""
    faulthandler.disable()
    with socket.socket(fileno=control) as requests:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, _DESCRIPTORS)
            if not message:
                break
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            task, store, folder, answer = descriptors
            request = json.loads(os.pread(task, os.fstat(task).st_size, 0))
            for module in request["imports"]:
                with suppress(Exception):  # the reader meets it again, and says so
                    importlib.import_module(module)
            if os.fork() == 0:
                requests.close()
                _supervise(request, store, folder, answer)
            for descriptor in descriptors:
                os.close(descriptor)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def resolve(reference: str) -> Callable[..., Any]:
    """Return the function that ``module:name`` names."""
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _supervise(request: Mapping[str, Any], store: int, folder: int, answer: int) -> None:
    """Start the reader, end it if it takes too long or nobody waits for it, and say how it ended.

    This is a process of its own and does not return.
    """
    try:
        ended, alive = os.pipe()  # readable when the reader is gone
        reader = os.fork()
        if reader == 0:
            os.close(answer)
            _read(request, store, folder)
        os.close(alive)
        events = select.poll()
        for descriptor in (ended, answer):
            events.register(descriptor, 0)  # that its other end was closed
        happened = dict(events.poll(10_000 * request["seconds"]))
        if ended not in happened:
            os.kill(reader, signal.SIGKILL)
        status = os.waitpid(reader, 0)[1]
        os.write(answer, json.dumps({"status": status, "slow": not happened}).encode())
    finally:
        os._exit(0)


def _read(request: Mapping[str, Any], store: int, folder: int) -> None:
    """Read, write the answer to ``store`` and leave."""
    code = 1
    path = request["path"]
    try:
        gc.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a crash is told by the caller, in one line
        os.fchdir(folder)
        _limit(int(request["seconds"]), request["memory"])
        index: dict[str, Any] = {}
        place = 0
        try:
            described: dict[str, Any] = {}
            with resolve(request["function"])(*request["arguments"]) as (values, arrays):
                for name, array in arrays:
                    place += -place % _ALIGNMENT
                    described[name] = [np.dtype(array.dtype).str, array.shape, place]
                    place = _write_array(store, place, array)
            index = {"values": values, "arrays": described}
        except TrimtabError as error:
            index = {"error": str(error)}
        except _NoRoomError:
            raise
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            index = {"error": f"dataset {path}: not readable ({fault}); {ADVICE}"}
        text = json.dumps(index).encode()
        os.ftruncate(store, place)  # of an array that was not read whole
        _write(store, place, text + len(text).to_bytes(8, "little"))
        code = 0
    except _NoRoomError:
        code = NO_ROOM
    finally:
        os._exit(code)


def _limit(seconds: int, memory: int) -> None:
    """Bound processor time, and what may be asked for beside the memory that is mapped already."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    for kind, soft, spare in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, seconds + 1, 1),
        (resource.RLIMIT_AS, mapped + memory, 0),
    ):
        most = resource.getrlimit(kind)[1]
        hard = soft + spare if most == resource.RLIM_INFINITY else min(soft + spare, most)
        resource.setrlimit(kind, (min(soft, hard), hard))


class _NoRoomError(Exception):
    """What takes the arrays is full; told apart from what a reader raises."""


def _write_array(store: int, place: int, array: npt.NDArray[Any] | Blocks) -> int:
    """Write an array and return the place behind it.

    Raises:
        ValueError: if blocks do not make up the array that they are of.
    """
    parts = array.read() if isinstance(array, Blocks) else [array]
    end = place + np.dtype(array.dtype).itemsize * int(np.prod(array.shape, dtype=np.int64))
    for part in parts:
        data = np.ascontiguousarray(part, dtype=array.dtype)
        if place + data.nbytes > end:
            raise ValueError("more rows than it says")
        _write(store, place, data.reshape(-1).view(np.uint8) if data.size else b"")
        place += data.nbytes
    if place != end:
        raise ValueError("fewer rows than it says")
    return place


def _write(store: int, place: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        try:
            count = os.pwrite(store, view[: 1 << 30], place)
        except OSError as error:
            raise _NoRoomError from error
        view, place = view[count:], place + count
