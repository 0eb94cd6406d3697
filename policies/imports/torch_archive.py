"""Read the tensors of a file that ``torch.save`` wrote, without unpickling anything.

Such a file is a zip with a pickle of names and shapes, ``<name>/data.pkl``, beside raw numbers,
``<name>/data/<key>``. A pickle is a program for a stack machine that may call any function. Here it
is disassembled by ``pickletools.genops``, which executes nothing, and followed by a machine that
knows the few instructions of a dictionary of tensors and refuses every other one.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError

_MOST_BYTES = 2**30
"""Members that say that they are larger are not read: a file must not fill the memory."""

_STORAGES: Mapping[str, str] = {
    "torch DoubleStorage": "<f8",
    "torch FloatStorage": "<f4",
    "torch HalfStorage": "<f2",
    "torch LongStorage": "<i8",
}
_DICTIONARY = "collections OrderedDict"
_TENSOR = "torch._utils _rebuild_tensor_v2"


@dataclass(frozen=True)
class _Global:
    """A name that the pickle asks to be imported; it is only ever compared."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """Raw numbers in a file of the zip."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's numbers lie: offset, shape and strides count elements, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.storage.count, self.offset, *self.shape, *self.strides)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a tensor has a size that is no whole number")
        if len(self.shape) != len(self.strides):
            raise ValueError("a tensor has as many strides as dimensions")
        size = math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((count - 1) * stride for count, stride in steps)
        if size and (last >= self.storage.count or size > self.storage.count):
            raise ValueError("a tensor reaches beyond its numbers")


class TensorArchive:
    """The tensors of one file, by name.

    Args:
        data: the file's bytes.
        where: what messages call it.

    Raises:
        TrimtabError: if it is not a dictionary of tensors as ``torch.save`` writes it.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        with readable(where):
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            (pickled,) = (n for n in self._zip.namelist() if n.endswith("/data.pkl"))
            self._folder = pickled.removesuffix("data.pkl")
            order = f"{self._folder}byteorder"
            if order in self._zip.namelist() and member(self._zip, order) != b"little":
                raise TrimtabError(f"{where}: has its numbers in big-endian order")
            self.tensors = _Machine(where).run(member(self._zip, pickled))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a copy of a tensor.

        Raises:
            TrimtabError: if there is none, or its numbers are missing or too few.
        """
        with readable(f"{self.where}: tensor {name}"):
            tensor = self.tensors[name]
            storage, dtype = tensor.storage, np.dtype(tensor.storage.dtype)
            raw = member(self._zip, f"{self._folder}data/{storage.key}")
            if len(raw) != storage.count * dtype.itemsize:
                raise ValueError(f"{len(raw)} bytes for {storage.count} numbers")
            flat = np.frombuffer(raw, dtype)[tensor.offset :]
            strides = [stride * dtype.itemsize for stride in tensor.strides]
            return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides).copy()


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file of a zip.

    Raises:
        KeyError: if there is none.
        ValueError: if it says that it is larger than a gigabyte.
    """
    info = archive.getinfo(name)
    if info.file_size > _MOST_BYTES:
        raise ValueError(f"{name} has {info.file_size} bytes")
    return archive.read(info)


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its readers raise into one line.

    Raises:
        TrimtabError: naming ``where``.
    """
    try:
        yield
    except TrimtabError:
        raise
    except Exception as error:  # zip, JSON, pickletools and numpy each have their own kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise TrimtabError(f"{where}: is damaged, or not what it should be ({reason})") from error


class _Machine:
    """Follows a pickle of a dictionary of tensors. It imports and calls nothing."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, pickled: bytes) -> dict[str, StoredTensor]:
        """Return the tensors by name.

        Raises:
            TrimtabError: at the first instruction that such a pickle does not have.
        """
        for opcode, argument, _ in pickletools.genops(pickled):
            follow = _INSTRUCTIONS.get(opcode.name)
            if follow is None:
                raise self.refusal(f"the instruction {opcode.name}")
            follow(self, argument)
        result = self.stack.pop()
        if not isinstance(result, dict) or self.stack:
            raise self.refusal("no dictionary of tensors")
        for name, value in result.items():
            if not isinstance(value, StoredTensor):
                raise self.refusal(f"an entry {name[:80]!r} that is no tensor")
        return result

    def refusal(self, what: str) -> TrimtabError:
        """Return the error that says what else than tensors is in the pickle."""
        return TrimtabError(f"{self.where}: refused, nothing was executed: it holds {what}")

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def mark(self, _: Any) -> None:
        """Remember the stack's height."""
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """Take what was put on the stack since the last mark."""
        height = self.marks.pop()
        values, self.stack[height:] = self.stack[height:], []
        return values

    def joined(self, count: int) -> None:
        """Make a tuple of the uppermost values."""
        if len(self.stack) < count:
            raise IndexError("an empty stack")
        values, self.stack[-count:] = self.stack[-count:], []
        self.push(tuple(values))

    def named(self, name: str) -> None:
        """Note a global name, if it is one of those that tensors need."""
        if name not in _STORAGES and name not in (_DICTIONARY, _TENSOR):
            raise self.refusal(f"a call of {name.replace(' ', '.')[:80]!r}")
        self.push(_Global(name))

    def named_by_stack(self, _: Any) -> None:
        """Note a global name whose two parts are on the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        self.named(f"{module} {name}")

    def call(self, _: Any) -> None:
        """Do what one of the two known functions would do."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if function == _Global(_DICTIONARY) and arguments == ():
            self.push({})
        elif function == _Global(_TENSOR) and isinstance(arguments[0], _Storage):
            storage, offset, shape, strides = arguments[:4]
            self.push(StoredTensor(storage, offset, tuple(shape), tuple(strides)))
        else:
            raise self.refusal("a call that builds no tensor")

    def storage(self, _: Any) -> None:
        """Note where raw numbers lie."""
        tag, storage, key, _place, count = self.stack.pop()
        if tag != "storage" or type(key) is not str:
            raise self.refusal("a reference to something else than numbers")
        self.push(_Storage(_STORAGES[storage.name], key, count))

    def set_items(self, values: list[Any]) -> None:
        """Put pairs into the dictionary on top of the stack."""
        target = self.stack[-1]
        names = values[::2]
        if not isinstance(target, dict) or not all(type(name) is str for name in names):
            raise self.refusal("entries without names")
        target.update(zip(names, values[1::2], strict=True))

    def set_item(self, _: Any) -> None:
        """Put one pair into the dictionary below it."""
        self.joined(2)
        self.set_items(list(self.stack.pop()))

    def set_attributes(self, _: Any) -> None:
        """Leave out the attributes of a dictionary: torch keeps versions of modules there."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            raise self.refusal("an object with attributes")

    def keep(self, index: int) -> None:
        """Note the value on top of the stack under a number."""
        self.memo[index] = self.stack[-1]


_Follow = Callable[[_Machine, Any], None]


def _value(machine: _Machine, argument: Any) -> None:
    machine.push(argument)


def _constant(make: Callable[[], Any]) -> _Follow:
    return lambda machine, _: machine.push(make())


def _tuple(count: int) -> _Follow:
    return lambda machine, _: machine.joined(count)


def _nothing(machine: _Machine, argument: Any) -> None:
    pass


_INSTRUCTIONS: Mapping[str, _Follow] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _nothing),
    **dict.fromkeys(
        ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _value
    ),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_TUPLE": _constant(tuple),
    "EMPTY_DICT": _constant(dict),
    "MARK": _Machine.mark,
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "GLOBAL": _Machine.named,
    "STACK_GLOBAL": _Machine.named_by_stack,
    "REDUCE": _Machine.call,
    "BINPERSID": _Machine.storage,
    "SETITEM": _Machine.set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "BUILD": _Machine.set_attributes,
    "BINPUT": _Machine.keep,
    "LONG_BINPUT": _Machine.keep,
    "MEMOIZE": lambda machine, _: machine.keep(len(machine.memo)),
    "BINGET": lambda machine, index: machine.push(machine.memo[index]),
    "LONG_BINGET": lambda machine, index: machine.push(machine.memo[index]),
}
"""What each instruction that a dictionary of tensors needs does; there are no others."""
