"""Where two objects of anybody's making differ in what they hold."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from numbers import Number
from types import (
    BuiltinMethodType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["MISSING", "PLAIN", "differences", "is_closed_iterator"]

PLAIN = (Number, np.generic, str, bytes, type(None), type, ModuleType, torch.dtype, torch.device)
"""What is compared by its value, and has no parts."""
MISSING = "nothing"
"""Stands for what only one of two objects has."""
_USUAL = frozenset({int, float, bool, str, bytes, type(None), np.float32, np.float64, np.int64})
"""The types of most items of long lists."""
_OF_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: its parts by name, which are looked at as its own, and its hooks."""


def differences(first: Any, second: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names of what differs, such as ``counts[3].seen``, with both values.

    It looks into attributes, containers, random generators, what functions close over, tensors and
    arrays, these to the last bit. An iterator that cannot be looked into differs from any other.
    Whatever else cannot be looked into counts as equal: locks, objects in a set, and whatever
    raises when it is looked at. So do the attributes that an object's class names in
    ``unsaved``, also those of its parts (``optimizer.learning_rates``), and what a
    ``cached_property`` remembers.
    """
    # Objects refer to others in circles. Pairs are held: no other object gets their identity.
    seen: dict[tuple[int, int], tuple[Any, Any]] = {}
    left_out: set[str] = set()
    waiting = [("", first, second)]
    while waiting:
        path, one, other = waiting.pop()
        if path in left_out or (id(one), id(other)) in seen:
            continue
        seen[id(one), id(other)] = one, other
        try:
            same = _kind(one) is _kind(other) and _equal(one, other)
            pairs = _pairs(one, other) if same else []
            left_out |= {f"{path}.{name}" for name in _unsaved(one)}
        except Exception:  # an object of anybody's may raise anything
            continue
        if not same:
            yield path.lstrip("."), one, other
        waiting += [(path + key, *both) for key, *both in reversed(pairs)]


def _kind(value: Any) -> type:
    """Return a type; types that a checkpoint does not keep apart count as one."""
    kinds: dict[type, Any] = {
        Number: (Number, np.generic),
        Tensor: Tensor,
        Mapping: Mapping,
        list: tuple,
    }
    return next((one for one, several in kinds.items() if isinstance(value, several)), type(value))


def _equal(first: Any, second: Any) -> bool:
    """Return whether two objects of a kind are equal, apart from their parts."""
    if isinstance(first, Tensor) and first.layout == torch.strided:
        about = [(one.dtype, one.shape, one.requires_grad) for one in (first, second)]
        return about[0] == about[1] and bool(_bits(first) == _bits(second))
    if isinstance(first, np.ndarray):
        bits = first.dtype.hasobject or first.tobytes() == second.tobytes()
        return (first.dtype, first.shape) == (second.dtype, second.shape) and bits
    if isinstance(first, torch.Generator):
        return torch.equal(first.get_state(), second.get_state())
    if isinstance(first, set | frozenset):
        return len(first) == len(second) and _values(first) == _values(second)
    if isinstance(first, PLAIN) or _is_value(first):
        return bool(first == second or (first != first and second != second))  # no number
    return not is_closed_iterator(first)


def is_closed_iterator(value: Any) -> bool:
    """Return whether an object is an iterator that does not show where it is."""
    return isinstance(value, Iterator) and not hasattr(value, "__dict__") and not _parts(value)


def _bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _values(members: Any) -> set[Any]:
    """Return what in a set is equal by its value, which tensors and most objects are not."""
    return {one for one in members if isinstance(one, PLAIN) or _is_value(one) or _is_tuple(one)}


def _is_tuple(value: Any) -> bool:
    return isinstance(value, tuple | frozenset) and len(_values(value)) == len(set(value))


def _is_value(value: Any) -> bool:
    """Return whether an object without attributes says itself what it equals, such as a date."""
    says = type(value).__eq__ is not _BY_IDENTITY and not callable(value)
    return says and not hasattr(value, "__dict__") and not isinstance(value, _LOOKED_INTO)


_BY_IDENTITY: Any = object.__eq__
_LOOKED_INTO = (Tensor, torch.Generator, np.ndarray, Mapping, list, tuple, deque, set, frozenset)


def _pairs(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Return the parts of two objects that are not surely equal, by name."""
    found = []
    if isinstance(one, list | tuple | deque):
        both = enumerate(zip_longest(one, other, fillvalue=MISSING))
        found = [(f"[{index}]", *pair) for index, pair in both if not _same(*pair)]
    mine, theirs = _parts(one), _parts(other)
    for key in {**mine, **theirs}:
        usual = MISSING if key in mine and key in theirs else getattr(type(one), key[1:], MISSING)
        pair = mine.get(key, usual), theirs.get(key, usual)
        if not isinstance(usual, functools.cached_property) and not _same(*pair):
            found.append((key, *pair))
    return found


def _same(one: Any, other: Any) -> bool:
    """Return whether two parts are surely equal, which is quick for long lists of numbers."""
    return one is other or (type(one) is type(other) and type(one) in _USUAL and bool(one == other))


def _parts(value: Any) -> dict[str, Any]:
    """Return what an object has by name, but for the items of lists."""
    if isinstance(value, Tensor):
        if value.layout != torch.sparse_coo:
            return {}
        whole = value.detach().coalesce()
        return {".shape": whole.shape, ".indices()": whole.indices(), ".values()": whole.values()}
    if isinstance(value, np.ndarray):
        return {"": value.ravel().tolist()} if value.dtype.hasobject else {}
    if isinstance(value, np.random.Generator):
        return {".bit_generator.state": value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {".get_state()": value.get_state(legacy=False)}
    if isinstance(value, random.Random):
        return {".getstate()": value.getstate()}
    if isinstance(value, torch.optim.Optimizer):
        return {".state_dict()": value.state_dict()}
    if isinstance(value, FunctionType) and value.__closure__:
        names = value.__code__.co_freevars
        return {
            f".{n}": cell.cell_contents for n, cell in zip(names, value.__closure__, strict=True)
        }
    if isinstance(value, BuiltinMethodType | MethodType | MethodWrapperType):
        return {".__self__": value.__self__}
    if isinstance(value, PLAIN):
        return {}
    items = {}
    if isinstance(value, Mapping):
        plain = all(isinstance(key, PLAIN) for key in value)
        items = {f"[{key!r}]" if plain else f"[{i}]": value[key] for i, key in enumerate(value)}
    return items | _attributes(value)


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        inner = value._parameters | value._buffers | value._modules
        found = inner | {name: one for name, one in found.items() if name not in _OF_MODULE}
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            slots = [n for n, one in vars(kind).items() if isinstance(one, MemberDescriptorType)]
            found |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {f".{name}": one for name, one in found.items()}


def _unsaved(value: Any) -> set[str]:
    return {name for kind in type(value).__mro__ for name in vars(kind).get("unsaved", ())}
