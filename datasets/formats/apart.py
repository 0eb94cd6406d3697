"""Reading in a process apart: a damaged file can crash or hang a C library, but not the caller.

The child hands its arrays over in shared memory, so that nothing is copied twice, or in a file
where they are too large for that; beside them only JSON passes, and nothing is unpickled.
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
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError

__all__ = ["Blocks", "Read", "Received", "read_apart", "spilled_to"]


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
Received = tuple[Mapping[str, Any], dict[str, npt.NDArray[Any]]]
"""The same in the calling process."""

_spill: ContextVar[Path | None] = ContextVar("spill", default=None)

_SECONDS = 20.0  # of processor time, before a reader is taken to hang
_BYTES_A_SECOND = 1e6  # further time that a large file gets
_ALIGNMENT = 64
_NO_ROOM = 3  # the child's exit code
_ADVICE = "make the dataset again or fetch a fresh copy"


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


def read_apart(path: Path, read: Callable[[], AbstractContextManager[Read]]) -> Received:
    """Return what is read in a child process; the arrays are read-only.

    Args:
        path: what is read: named in errors, and its size decides the patience.
        read: entered in the child, and left when the arrays are gathered. It may raise
            TrimtabError, and nothing it does to memory or files' positions is seen here.

    Raises:
        TrimtabError: what ``read`` raised, that it crashed or came to no end, or that there is no
            room for its arrays.
    """
    seconds = _SECONDS + _bytes(path) / _BYTES_A_SECOND
    folder = _spill.get()
    store = os.memfd_create("trimtab") if folder is None else _nameless(folder)
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
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _NO_ROOM:
            place = folder or "memory"
            raise TrimtabError(f"dataset {path}: there is no room for its arrays in {place}")
        slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        fault = "its reader came to no end" if slow else "its reader crashed"
        raise TrimtabError(f"dataset {path}: damaged ({fault}); {_ADVICE}")
    finally:
        for descriptor in (store, ended, alive):
            if descriptor >= 0:
                os.close(descriptor)


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


def _child(
    path: Path, store: int, read: Callable[[], AbstractContextManager[Read]], seconds: float
) -> None:
    """Read, write the answer to ``store`` and leave; nothing of the parent is cleaned up."""
    code = 1
    try:
        gc.disable()
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a crash is told by the parent, in one line
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        index: dict[str, Any] = {}
        place = 0
        try:
            described: dict[str, Any] = {}
            with read() as (values, arrays):
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
            index = {"error": f"dataset {path}: not readable ({fault}); {_ADVICE}"}
        text = json.dumps(index).encode()
        os.ftruncate(store, place)  # of an array that was not read whole
        _write(store, place, text + len(text).to_bytes(8, "little"))
        code = 0
    except _NoRoomError:
        code = _NO_ROOM
    finally:
        os._exit(code)


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
