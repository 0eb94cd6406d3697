"""Reading in a separate process: a damaged file may crash a C library or make it loop.

The process is started with the first reading and kept for the next ones; after a crash the next
reading starts another. It is told what to read by the name of a module's function and by JSON. It
writes its arrays into shared memory, so that nothing is copied twice, or into a file inside
:func:`spill_to`; only JSON passes otherwise, and nothing is unpickled.
"""

from __future__ import annotations

import atexit
import mmap
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trimtab.child import Child, ChildDied, end_children, reference, resolve
from trimtab.errors import TrimtabError

__all__ = ["Blocks", "Read", "Received", "read_apart", "spill_to", "stop_reader"]


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
"""What was read, in the calling process: JSON values, and arrays by their names."""

_SECONDS = 20.0  # of processor time, before a reading is taken to hang
_BYTES_A_SECOND = 1e6  # further time that a large file gets
_MEMORY = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()  # that a reading may ask for
_ALIGNMENT = 64
_ADVICE = "make the dataset again or fetch a fresh copy"
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_spill: ContextVar[Path | None] = ContextVar("spill", default=None)
_lock = threading.Lock()
_reader: Child | None = None


@contextmanager
def spill_to(folder: Path) -> Iterator[None]:
    """Let arrays that are read meanwhile lie in nameless files in ``folder``, not in memory.

    A file is deleted with its last array.
    """
    token = _spill.set(folder)
    try:
        yield
    finally:
        _spill.reset(token)


def read_apart(
    path: Path, read: Callable[..., AbstractContextManager[Read]], *arguments: Any
) -> Received:
    """Return what is read in a separate process; the arrays are read-only.

    Args:
        path: what is read: named in errors; its size sets the time limit.
        read: a module's function. It is called and entered in the separate process, and left when
            the arrays are gathered. It may raise TrimtabError.
        arguments: of ``read``: JSON values, so that a tuple arrives as a list.

    Raises:
        TrimtabError: what ``read`` raised, that it crashed or came to no end, or that there is no
            room for its arrays.
    """
    folder = _spill.get()
    store = os.memfd_create("trimtab") if folder is None else _nameless(folder)
    task = {
        "path": str(path),
        "function": reference(read),
        "arguments": arguments,
        "store": f"/proc/{os.getpid()}/fd/{store}",
        "stored_in": str(folder or "memory"),
        "working_directory": os.getcwd(),
        "seconds": _SECONDS + _bytes(path) / _BYTES_A_SECOND,
        "memory": _MEMORY,
    }
    try:
        return _received(store, *_call(task))
    except ChildDied as died:
        if died.code == -signal.SIGKILL:
            raise TrimtabError(
                f"dataset {path}: its reader was killed, as happens where memory runs out; "
                f"free some, or {_ADVICE}"
            ) from died
        slow = died.code == -signal.SIGXCPU
        fault = "its reader came to no end" if slow else "its reader crashed"
        raise TrimtabError(f"dataset {path}: damaged ({fault}); {_ADVICE}") from died
    finally:
        os.close(store)


def _call(task: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Carry out a reading; return its values, and where its arrays are in the store."""
    global _reader
    with _lock:
        if _reader is None or _reader.process.poll() is not None:
            try:
                _reader = Child(_ONE_THREAD, silent=True)
            except OSError as error:
                fault = error.strerror or error
                raise TrimtabError(f"cannot start what reads datasets ({fault})") from error
        values, places = _reader.call(_carry_out, task)
        return values, places


def stop_reader() -> None:
    """End the process that reads; the next reading starts another.

    It ends with this process anyway. Afterwards ``resource.RUSAGE_CHILDREN`` counts it.
    """
    global _reader
    with _lock:
        if _reader is not None:
            end_children([_reader])
        _reader = None


def _drop_reader_after_fork() -> None:
    """Forget, in a forked child, the reader of its parent."""
    global _lock, _reader
    _lock, _reader = threading.Lock(), None


os.register_at_fork(after_in_child=_drop_reader_after_fork)
atexit.register(stop_reader)


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


def _received(store: int, values: Mapping[str, Any], places: Mapping[str, Any]) -> Received:
    size = os.fstat(store).st_size
    memory = mmap.mmap(store, size, access=mmap.ACCESS_READ) if size else b""
    arrays = {}
    for name, (dtype, shape, place) in places.items():
        count = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(memory, np.dtype(dtype), count, place) if count else np.empty(0, dtype)
        arrays[name] = flat.reshape(shape)
    return values, arrays


# What follows is carried out in the process that reads.


class _NoRoomError(Exception):
    """What takes the arrays is full; told apart from what a reader raises."""


def _carry_out(task: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Read, and write the arrays to the store.

    Returns:
        The values; the type, the shape and the place in the store of each array.
    """
    path = task["path"]
    os.chdir(task["working_directory"])  # relative paths mean what they mean to the caller
    _limit(task["seconds"], task["memory"])
    places = {}
    try:
        with (
            open(task["store"], "r+b", buffering=0) as store,
            resolve(task["function"])(*task["arguments"]) as (values, arrays),
        ):
            for name, array in arrays:
                place = store.tell() + -store.tell() % _ALIGNMENT
                store.seek(place)
                places[name] = [np.dtype(array.dtype).str, array.shape, place]
                _write_array(store, array)
        return values, places
    except TrimtabError:
        raise
    except _NoRoomError as error:
        raise TrimtabError(
            f"dataset {path}: there is no room for its arrays in {task['stored_in']}"
        ) from error
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise TrimtabError(f"dataset {path}: not readable ({fault}); {_ADVICE}") from error


def _limit(seconds: float, memory: int) -> None:
    """Bound the processor time, and what may be asked for besides the memory that is mapped."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, soft in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(time.process_time() + seconds) + 1),
        (resource.RLIMIT_AS, mapped + memory),
    ):
        hard = resource.getrlimit(kind)[1]
        least = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(kind, (least, hard))


def _write_array(store: BinaryIO, array: npt.NDArray[Any] | Blocks) -> None:
    """Write an array.

    Raises:
        ValueError: if blocks do not make up the array that they are of.
    """
    left = np.dtype(array.dtype).itemsize * int(np.prod(array.shape, dtype=np.int64))
    for part in array.read() if isinstance(array, Blocks) else [array]:
        data: Any = np.ascontiguousarray(part, dtype=array.dtype)
        left -= data.nbytes
        if left < 0:
            raise ValueError("more rows than it says")
        view = memoryview(data.reshape(-1).view(np.uint8)) if data.size else memoryview(b"")
        while view:
            try:
                view = view[store.write(view) :]
            except OSError as error:
                raise _NoRoomError from error
    if left:
        raise ValueError("fewer rows than it says")
