"""Reading in a process apart: a damaged file can crash or hang a C library, but not the caller.

The child hands its arrays over in shared memory, so that nothing is copied twice; beside them only
JSON passes, and nothing is unpickled.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import mmap
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["Read", "read_apart"]

Read = tuple[Mapping[str, Any], Mapping[str, npt.NDArray[Any]]]
"""JSON values and arrays of numbers, each by name."""

_SECONDS = 20.0  # of processor time, before a reader is taken to hang
_BYTES_A_SECOND = 1e6  # further time that a large file gets
_ALIGNMENT = 64
_ADVICE = "make the dataset again or fetch a fresh copy"


def read_apart(path: Path, read: Callable[[], Read]) -> Read:
    """Return what ``read()`` returns in a child process; the arrays are read-only.

    Args:
        path: what is read: named in errors, and its size decides the patience.
        read: called in the child. It may raise TrimtabError, and nothing it does to memory or
            files' positions is seen here.

    Raises:
        TrimtabError: what ``read`` raised, or that it crashed or came to no end.
    """
    seconds = _SECONDS + (path.stat().st_size if path.is_file() else 0) / _BYTES_A_SECOND
    store = os.memfd_create("trimtab")
    ended, alive = os.pipe()
    try:
        with warnings.catch_warnings():
            # The child only reads and leaves by _exit; no thread of the parent is needed in it.
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            _child(path, store, read, seconds)
        os.close(alive)
        alive = -1
        status = _wait(child, ended, 10 * seconds)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return _received(store)
        slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        fault = "its reader came to no end" if slow else "its reader crashed"
        raise TrimtabError(f"dataset {path}: damaged ({fault}); {_ADVICE}")
    finally:
        for descriptor in (store, ended, alive):
            if descriptor >= 0:
                os.close(descriptor)


def _wait(child: int, ended: int, seconds: float) -> int:
    """Return the child's status; ``ended`` becomes readable when it is gone."""
    try:
        if not select.select([ended], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitpid(child, 0)[1]


def _child(path: Path, store: int, read: Callable[[], Read], seconds: float) -> None:
    """Read, write the answer to ``store`` and leave; nothing of the parent is cleaned up."""
    code = 1
    try:
        gc.disable()
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a crash is told by the parent, in one line
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        index: dict[str, Any]
        try:
            values, arrays = read()
        except TrimtabError as error:
            index, arrays = {"error": str(error)}, {}
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            index, arrays = {"error": f"dataset {path}: not readable ({fault}); {_ADVICE}"}, {}
        else:
            index = {"values": values, "arrays": {}}
        place = 0
        for name, array in arrays.items():
            place += -place % _ALIGNMENT
            data = np.ascontiguousarray(array)
            index["arrays"][name] = [data.dtype.str, data.shape, place]
            _write(store, place, data.reshape(-1).view(np.uint8) if data.size else b"")
            place += data.nbytes
        text = json.dumps(index).encode()
        _write(store, place, text + len(text).to_bytes(8, "little"))
        code = 0
    finally:
        os._exit(code)


def _write(store: int, place: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(store, view[: 1 << 30], place)
        view, place = view[count:], place + count


def _received(store: int) -> Read:
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
