"""Frames of a policy server: msgpack with arrays as openpi writes them, decoded strictly.

An array is a map of four entries, ``__ndarray__`` (true), ``data`` (its bytes, in C order),
``dtype`` and ``shape``; a NumPy scalar is one of ``__npgeneric__``, ``data`` and ``dtype``. openpi
writes these keys as bytes and vla-eval as text; both are read. Public decoders hand ``dtype`` to
NumPy as it comes, so that the type ``|O`` turns bytes of the network into pointers. Here a type is
one of a table, and a shape fits its bytes, before NumPy sees either.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError

__all__ = ["DTYPES", "FrameError", "pack", "unpack"]

DTYPES: dict[str, np.dtype[Any]] = {
    text: np.dtype(text)
    for text in (
        "|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8",
    )
}  # fmt: skip
"""The only types of arrays, by the text that names each in a frame."""

_DEPTH = 6
"""Maps and lists within one another; a request of any known client has three."""
_ENTRIES, _CONTAINERS, _DIMENSIONS = 256, 512, 5
"""The most entries of a map or list, maps and lists of a frame, and axes of an array."""
_SIZE = 2**31
"""The most bytes that an array without entries would have if its empty axes were 1."""
_ARRAY, _SCALAR = "__ndarray__", "__npgeneric__"


class FrameError(TrimtabError):
    """Bytes that are no frame of this protocol."""


def pack(value: Any, *, text_keys: bool = False) -> bytes:
    """Return the frame of a value: maps, lists, text, numbers, and arrays of ``DTYPES``.

    Args:
        value: to be sent.
        text_keys: whether the keys of an array are text, as vla-eval's clients read them, and not
            bytes, as openpi's do.

    Raises:
        FrameError: if it holds anything else.
    """
    try:
        frame: bytes = msgpack.packb(value, default=_packed_for_vla_eval if text_keys else _packed)
    except (TypeError, ValueError, OverflowError) as error:
        raise FrameError(f"frame: {error}") from error
    return frame


def unpack(frame: bytes) -> Any:
    """Return the value of a frame; arrays are copies that may be written to.

    Raises:
        FrameError: if the bytes are no frame, a key is there twice, or anything in it is not as the
            module says.
    """
    try:
        value = _Decoder().decode(frame)
    except FrameError:
        raise
    except (ValueError, msgpack.UnpackException) as error:
        what = _words(error)
        raise FrameError(f"frame: is no msgpack, as openpi's clients send it: {what}") from error
    _check_depth(value, _DEPTH)
    return value


def _words(error: Exception) -> str:
    """Return what is wrong with a frame, without the names of msgpack's functions."""
    if isinstance(error, msgpack.ExtraData):
        return "bytes are left after its first value"
    if "incomplete" in str(error):
        return "it ends within a value"
    return " ".join(str(error).split())[:100] or type(error).__name__


def _packed(value: Any) -> Any:
    """Return what msgpack writes for something that it does not know."""
    if isinstance(value, np.ndarray | np.generic):
        dtype = value.dtype.newbyteorder("<")
        if dtype.str not in DTYPES:
            raise TypeError(f"no array of type {value.dtype} can be sent")
        if isinstance(value, np.generic):
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": dtype.str}
        return {
            b"__ndarray__": True,
            b"data": value.astype(dtype, copy=False).tobytes(),
            b"dtype": dtype.str,
            b"shape": value.shape,
        }
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _packed_for_vla_eval(value: Any) -> Any:
    return {key.decode(): entry for key, entry in _packed(value).items()}


class _Decoder:
    """Decodes one frame, and counts the maps and lists in it."""

    def __init__(self) -> None:
        self.containers = 0

    def decode(self, frame: bytes) -> Any:
        value = msgpack.unpackb(
            frame,
            object_pairs_hook=self._map,
            list_hook=self._list,
            ext_hook=_refuse_extension,
            strict_map_key=True,
            max_array_len=_ENTRIES,
            max_map_len=_ENTRIES,
        )
        _check_plain(value)
        return value

    def _count(self) -> None:
        self.containers += 1
        if self.containers > _CONTAINERS:
            raise FrameError(f"frame: has more than {_CONTAINERS} maps and lists")

    def _list(self, items: list[Any]) -> list[Any]:
        self._count()
        for item in items:
            _check_plain(item)
        return items

    def _map(self, pairs: list[tuple[str | bytes, Any]]) -> Any:
        self._count()
        entries: dict[str, Any] = {}
        for key, value in pairs:
            name = key.decode("ascii") if isinstance(key, bytes) else key
            if name in entries:
                raise FrameError(f"frame: has the key {name[:50]!r} twice")
            _check_plain(value)
            entries[name] = value
        if _ARRAY in entries:
            return _array(entries)
        return _scalar(entries) if _SCALAR in entries else entries


def _refuse_extension(code: int, data: bytes) -> None:
    raise FrameError(f"frame: has an extension of type {code}")


def _check_plain(value: Any) -> None:
    if isinstance(value, msgpack.Timestamp):  # the one extension that msgpack reads by itself
        raise FrameError("frame: has a time stamp")


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, dict | list):
        if left == 0:
            raise FrameError(f"frame: is nested more than {_DEPTH} deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, left - 1)


def _array(entries: dict[str, Any]) -> NDArray[Any]:
    """Return the array that a map describes."""
    if entries.keys() != {_ARRAY, "data", "dtype", "shape"} or entries[_ARRAY] is not True:
        raise FrameError("frame: an array has the entries __ndarray__, data, dtype and shape")
    data, dtype, shape = entries["data"], _dtype(entries["dtype"]), entries["shape"]
    if type(shape) is not list or len(shape) > _DIMENSIONS:
        raise FrameError(f"frame: an array's shape is a list of at most {_DIMENSIONS} sizes")
    if any(type(size) is not int or size < 0 for size in shape):
        raise FrameError("frame: an array's sizes are whole numbers from 0")
    expected = math.prod(shape) * dtype.itemsize
    if type(data) is not bytes or len(data) != expected:
        raise FrameError(f"frame: an array of shape {shape} does not have its bytes"[:200])
    if math.prod(size or 1 for size in shape) * dtype.itemsize > _SIZE:
        raise FrameError("frame: an array's sizes are too large")
    if dtype.kind == "b" and data.strip(b"\0\1"):
        raise FrameError("frame: an array of truth values has other bytes than 0 and 1")
    array = np.empty(shape, dtype)
    if expected:
        array.reshape(-1)[:] = np.frombuffer(data, dtype)
    return array


def _scalar(entries: dict[str, Any]) -> np.generic:
    """Return the NumPy scalar that a map describes."""
    if entries.keys() != {_SCALAR, "data", "dtype"} or entries[_SCALAR] is not True:
        raise FrameError("frame: a scalar has the entries __npgeneric__, data and dtype")
    data, dtype = entries["data"], _dtype(entries["dtype"])
    if type(data) is not {"b": bool, "f": float}.get(dtype.kind, int):
        raise FrameError(f"frame: {data!r:.50} is no value of type {dtype}")
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= data <= np.iinfo(dtype).max:
        raise FrameError(f"frame: {data} is no value of type {dtype}")
    with np.errstate(over="ignore"):  # a float that this type does not hold is not equal below
        value: np.generic = dtype.type(data)
    if value.item() != data and data == data:
        raise FrameError(f"frame: {data!r:.50} is no value of type {dtype}")
    return value


def _dtype(text: Any) -> np.dtype[Any]:
    if type(text) is not str or text not in DTYPES:
        raise FrameError(f"frame: {text!r:.50} is no type of an array; send {', '.join(DTYPES)}")
    return DTYPES[text]
