"""Read what ``torch.save`` or ``pickle.dump`` wrote, without unpickling anything.

``torch.save`` writes a zip with a pickle of names and shapes, ``<name>/data.pkl``, beside raw
numbers, ``<name>/data/<key>``. A pickle is a program for a stack machine that may call any
function. Here it is disassembled by ``pickletools.genops``, which executes nothing, and followed by
a machine that knows the few instructions of nested dictionaries, lists, tuples, numbers, texts,
tensors and arrays. It refuses every other one, and every name but those in its tables.
"""

from __future__ import annotations

import copy
import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError

_MOST_BYTES = 2**30
"""Members that say that they are larger are not read: a file must not fill the memory."""

_MOST_INSTRUCTIONS = 1_000_000
_MOST_DIMENSIONS = 32
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""How files of torch before 1.6 begin, which are no zips."""

_BFLOAT = "bfloat16"
_STORAGES: Mapping[str, str] = {
    "torch DoubleStorage": "<f8", "torch FloatStorage": "<f4", "torch HalfStorage": "<f2",
    "torch BFloat16Storage": _BFLOAT, "torch LongStorage": "<i8", "torch IntStorage": "<i4",
    "torch ShortStorage": "<i2", "torch CharStorage": "|i1", "torch ByteStorage": "|u1",
    "torch BoolStorage": "|b1",
}  # fmt: skip
_NUMBERS = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
"""Types of numpy arrays that are read; none of them holds objects."""
_STUBS = (
    "omegaconf.", "brax.", "flax.", "typing ", "pathlib ", "torch device", "dill._dill _load_type",
    *(f"{module}.multiarray scalar" for module in ("numpy.core", "numpy._core")),
    *(f"{module} {name}" for module in ("builtins", "__builtin__")
      for name in ("bool", "dict", "float", "int", "list", "long", "str", "tuple")),
)  # fmt: skip
"""What names of harmless settings and counters begin with: they become an :class:`Opaque`."""
_KEYS = (str, int, float, bool, bytes, NoneType)
"""Types of a dictionary's keys; a nested tuple as a key would be hashed without a limit."""


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
        if len(self.shape) != len(self.strides) or len(self.shape) > _MOST_DIMENSIONS:
            raise ValueError("a tensor has as many strides as dimensions, and not many of them")
        size = math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((count - 1) * stride for count, stride in steps)
        if size and (last >= self.storage.count or size > self.storage.count):
            raise ValueError("a tensor reaches beyond its numbers")


@dataclass(eq=False)
class StoredArray:
    """A numpy array; empty until the pickle gives its numbers."""

    value: NDArray[Any] | None = None


@dataclass(eq=False)
class Opaque:
    """An object of a class that is not imported: what the pickle would make it of.

    Attributes:
        class_name: module and name of the class.
        arguments: what it would be called with.
        state: what its attributes would be, if the pickle says any.
    """

    class_name: str
    arguments: tuple[Any, ...]
    state: Any = None


class TensorArchive:
    """What one file holds, and the tensors of one of its dictionaries by name.

    Args:
        data: the file's bytes.
        where: what messages call it.

    Attributes:
        content: nested dictionaries, lists, tuples, numbers and texts, with :class:`StoredTensor`,
            :class:`StoredArray` and :class:`Opaque` in them.

    Raises:
        TrimtabError: if it holds anything else, or is of torch before 1.6 or of TorchScript.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        self._zip: zipfile.ZipFile | None = None
        with readable(where):
            if data.startswith(_OLD_TORCH):
                raise TrimtabError(
                    f"{where}: is of torch before 1.6; save it again with a newer one"
                )
            pickled = data if data[:1] == b"\x80" else self._opened(data)
            self.content: Any = _Machine(where).run(pickled)

    def _opened(self, data: bytes) -> bytes:
        """Open a zip, and return the pickle in it."""
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        names = self._zip.namelist()
        (pickled,) = (entry for entry in names if entry.endswith("/data.pkl"))
        self._folder = pickled.removesuffix("data.pkl")
        if any(entry.startswith(f"{self._folder}code/") for entry in names):
            raise TrimtabError(
                f"{self.where}: is a program of TorchScript; save the model's state_dict, or "
                "export it as ONNX"
            )
        if any(info.compress_type != zipfile.ZIP_STORED for info in self._zip.infolist()):
            raise ValueError("it is compressed, which torch never does")
        order = f"{self._folder}byteorder"
        if order in names and member(self._zip, order) != b"little":
            raise TrimtabError(f"{self.where}: has its numbers in big-endian order")
        return member(self._zip, pickled)

    def within(self, content: Any) -> TensorArchive:
        """Return this archive with another part of its content for the whole."""
        part = copy.copy(self)
        part.content = content
        return part

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.content if type(name) is str])

    def __contains__(self, name: object) -> bool:
        return isinstance(self.content, dict) and name in self.content

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a copy of a tensor or an array.

        Raises:
            TrimtabError: if there is none, or its numbers are missing or too few.
        """
        with readable(f"{self.where}: tensor {name}"):
            stored = self.content[name]
            if isinstance(stored, StoredArray) and stored.value is not None:
                return stored.value.copy()
            if not isinstance(stored, StoredTensor) or self._zip is None:
                raise ValueError("it is no tensor")
            return self._numbers(self._zip, stored)

    def _numbers(self, archive: zipfile.ZipFile, tensor: StoredTensor) -> NDArray[Any]:
        storage = tensor.storage
        dtype = np.dtype("<u2" if storage.dtype == _BFLOAT else storage.dtype)
        name = f"{self._folder}data/{storage.key}"
        if archive.getinfo(name).file_size != storage.count * dtype.itemsize:
            raise ValueError(f"not {dtype.itemsize} bytes for each of {storage.count} numbers")
        flat = np.frombuffer(member(archive, name), dtype)[tensor.offset :]
        strides = [stride * dtype.itemsize for stride in tensor.strides]
        values = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides).copy()
        if storage.dtype == _BFLOAT:  # the upper half of a single-precision number
            return np.left_shift(values, 16, dtype="<u4").view("<f4")
        return values


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
    """Follows a pickle of weights. It imports nothing, and calls nothing that the pickle names."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, pickled: bytes) -> Any:
        """Return what the pickle holds.

        Raises:
            TrimtabError: at the first instruction that such a pickle does not have.
        """
        for number, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
            follow = _INSTRUCTIONS.get(opcode.name)
            if follow is None:
                raise self.refusal(f"the instruction {opcode.name}")
            if number >= _MOST_INSTRUCTIONS:
                raise self.refusal(f"more than {_MOST_INSTRUCTIONS:,} instructions")
            follow(self, argument)
        (result,) = self.stack
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

    def top(self, count: int) -> tuple[Any, ...]:
        """Take the uppermost values."""
        if len(self.stack) < count:
            raise IndexError("an empty stack")
        values, self.stack[-count:] = self.stack[-count:], []
        return tuple(values)

    def named(self, name: str) -> None:
        """Note a global name, if it is in one of the tables."""
        if name not in _STORAGES and name not in _CALLS and not name.startswith(_STUBS):
            raise self.refusal(f"a call of {name.replace(' ', '.')[:80]!r}")
        self.push(_Global(name))

    def named_by_stack(self, _: Any) -> None:
        """Note a global name whose two parts are on the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:  # a nested tuple may print for hours
            raise self.refusal("a name that is no text")
        self.named(f"{module} {name}")

    def call(self, _: Any) -> None:
        """Do what one of the known functions would do; make a stub of any other object."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or type(arguments) is not tuple:
            raise self.refusal("a call of something that has no name")
        make = _CALLS.get(function.name)
        if make is None and function.name in _STORAGES:
            raise self.refusal("a call that builds no tensor")
        self.push(Opaque(function.name, arguments) if make is None else make(*arguments))

    def storage(self, _: Any) -> None:
        """Note where raw numbers lie."""
        tag, storage, key, _place, count = self.stack.pop()
        if tag != "storage" or type(key) is not str:
            raise self.refusal("a reference to something else than numbers")
        self.push(_Storage(_STORAGES[storage.name], key, count))

    def set_items(self, values: list[Any]) -> None:
        """Put pairs into the dictionary on top of the stack."""
        target, names = self.stack[-1], values[::2]
        if not isinstance(target, dict) or not all(type(name) in _KEYS for name in names):
            raise self.refusal("entries without names")
        target.update(zip(names, values[1::2], strict=True))

    def append(self, values: list[Any]) -> None:
        """Put values at the end of the list on top of the stack."""
        if not isinstance(self.stack[-1], list):
            raise self.refusal("entries of something that is no list")
        self.stack[-1].extend(values)

    def set_attributes(self, _: Any) -> None:
        """Give an array its numbers, a stub its attributes and a type its byte order.

        The attributes of a dictionary are left out: torch keeps versions of modules there.
        """
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StoredArray) and target.value is None:
            target.value = _array(*state)
        elif isinstance(target, Opaque):
            target.state = state
        elif isinstance(target, np.dtype):
            if state[1] not in ("<", "|"):
                raise self.refusal("numbers in big-endian order")
        elif not isinstance(target, dict):
            raise self.refusal("an object with attributes")

    def keep(self, index: int) -> None:
        """Note the value on top of the stack under a number."""
        self.memo[index] = self.stack[-1]


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = False, _hooks: Any = None,
    bits: Any = None,
) -> StoredTensor:  # fmt: skip
    if bits:  # that its numbers are meant negated or conjugated
        raise ValueError("a tensor whose numbers are meant in another way than they are written")
    if not isinstance(storage, _Storage) or (type(shape), type(strides)) != (tuple, tuple):
        raise ValueError("a tensor without numbers or without a shape")
    return StoredTensor(storage, offset, shape, strides)


def _parameter(tensor: Any, *_: Any) -> StoredTensor:
    if not isinstance(tensor, StoredTensor):
        raise ValueError("a parameter that is no tensor")
    return tensor


def _dtype(name: Any, *_: Any) -> np.dtype[Any]:
    if type(name) is not str or name not in _NUMBERS:
        raise ValueError("an array of something else than numbers")
    return np.dtype(name).newbyteorder("<")


def _array(_: Any, shape: Any, dtype: Any, fortran: Any, data: Any) -> NDArray[Any]:
    """Return the array that the state of a pickled one describes."""
    if type(shape) is not tuple or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("an array has a size that is no whole number")
    if not isinstance(dtype, np.dtype) or type(data) not in (bytes, bytearray):
        raise ValueError("an array without numbers")
    if len(shape) > _MOST_DIMENSIONS or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for an array of {len(shape)} dimensions")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _bytes(text: str, encoding: str) -> bytes:
    """Return bytes as pickles before protocol 3 write them; they say latin1 and nothing else."""
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in {encoding[:20]!r}")
    return text.encode("latin1")


_NUMPY = ("numpy.core", "numpy._core")  # before and from numpy 2 on
_CALLS: Mapping[str, Callable[..., Any]] = {
    "collections OrderedDict": lambda: {},
    "collections defaultdict": lambda *_: {},
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "torch Size": lambda sizes=(): tuple(sizes) if type(sizes) in (tuple, list) else (),
    "numpy dtype": _dtype,
    "numpy ndarray": lambda: StoredArray(),
    **{f"{module}.multiarray _reconstruct": lambda *_: StoredArray() for module in _NUMPY},
    **dict.fromkeys(
        [f"{module}.numeric _frombuffer" for module in _NUMPY],
        lambda data, dtype, shape, order: StoredArray(_array(1, shape, dtype, order == "F", data)),
    ),
    "jax._src.array _reconstruct_array": lambda _, __, state, *___: StoredArray(_array(*state)),
    "_codecs encode": _bytes,
}
"""What stands for a call of each known name; none of them imports or calls what it names."""


_Follow = Callable[[_Machine, Any], None]


def _constant(make: Callable[[], Any]) -> _Follow:
    return lambda machine, _: machine.push(make())


_INSTRUCTIONS: Mapping[str, _Follow] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys((
        "BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
        "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    ), _Machine.push),
    "NONE": _constant(NoneType), "NEWTRUE": _constant(lambda: True), "NEWFALSE": _constant(bool),
    "EMPTY_TUPLE": _constant(tuple), "EMPTY_DICT": _constant(dict), "EMPTY_LIST": _constant(list),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "MARK": _Machine.mark,
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.push(machine.top(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.top(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.top(3)),
    "GLOBAL": _Machine.named, "STACK_GLOBAL": _Machine.named_by_stack,
    "REDUCE": _Machine.call, "NEWOBJ": _Machine.call,
    "BINPERSID": _Machine.storage,
    "SETITEM": lambda machine, _: machine.set_items([*machine.top(2)]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "BUILD": _Machine.set_attributes,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.keep),
    "MEMOIZE": lambda machine, _: machine.keep(len(machine.memo)),
    **dict.fromkeys(
        ("BINGET", "LONG_BINGET"), lambda machine, index: machine.push(machine.memo[index])
    ),
}  # fmt: skip
"""What each instruction that a file of weights needs does; there are no others."""
