"""Where two objects of anybody's making differ in what they hold."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from types import CellType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["MISSING", "PLAIN", "differences"]

PLAIN = (Number, np.generic, str, bytes, type(None), type, ModuleType, torch.dtype, torch.device)
"""What is compared by its value, and has no parts."""
MISSING = "nothing"
"""Stands for what only one of two objects has."""
_OF_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: its parts by name, which are looked at as its own, and its hooks."""


def differences(first: Any, second: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names of what differs, such as ``counts[3].seen``, with both values.

    It looks into attributes, slots, items, closures, random generators, tensors and arrays, these
    to the last bit. What cannot be looked into, such as a lock or an open file, counts as equal;
    so do the attributes that an object's class names in ``unsaved``, also those of its parts
    (``optimizer.learning_rates``), and what a ``cached_property`` remembers.
    """
    return _Comparison().of(first, second, "")


class _Comparison:
    """One comparison of two objects."""

    def __init__(self) -> None:
        # Objects refer to others in circles. Pairs are held: no other object gets their identity.
        self.seen: dict[tuple[int, int], tuple[Any, Any]] = {}
        self.left_out: set[str] = set()

    def of(self, first: Any, second: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
        """Yield how two objects differ that ``path`` leads to."""
        if first is second or path in self.left_out or (id(first), id(second)) in self.seen:
            return
        self.seen[id(first), id(second)] = first, second
        if _kind(first) is not _kind(second) or not _equal(_value(first), _value(second)):
            yield path.partition(" ")[0].lstrip("."), first, second
            return
        for kind in type(first).__mro__:
            self.left_out |= {f"{path}.{name}" for name in vars(kind).get("unsaved", ())}
        one, other = _parts(first), _parts(second)
        for key in [*one, *(key for key in other if key not in one)]:
            usual = getattr(type(first), key[1:], MISSING)
            if not isinstance(usual, functools.cached_property) or key in one.keys() & other.keys():
                yield from self.of(one.get(key, usual), other.get(key, usual), path + key)


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
    return bool(first == second or (first != first and second != second))  # two that are no number


def _value(value: Any) -> Any:
    """Return what decides whether two objects are equal, besides their parts."""
    if isinstance(value, Tensor):
        bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return value.dtype, value.shape, value.requires_grad, bits
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, FunctionType):
        return value.__code__
    if isinstance(value, GeneratorType):
        return None if value.gi_frame is None else value.gi_frame.f_lasti
    if isinstance(value, set | frozenset):
        return len(value), {one for one in value if isinstance(one, PLAIN)}
    return value if isinstance(value, PLAIN) else None


def _parts(value: Any) -> dict[str, Any]:
    """Return what an object is made of; a name with a space in it is not shown."""
    if isinstance(value, (*PLAIN, Tensor, torch.Generator, set, frozenset)):
        return {}
    if isinstance(value, np.ndarray):
        return _items(value.ravel().tolist()) if value.dtype.hasobject else {}
    if isinstance(value, torch.optim.Optimizer):
        return {".state_dict()": value.state_dict()}
    if isinstance(value, FunctionType):
        held = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        closure = {f".{name}": cell for name, cell in held}
        return closure | {
            " defaults": [value.__defaults__, value.__kwdefaults__],
            " own": vars(value),
        }
    if isinstance(value, CellType):
        return {"": value.cell_contents} if value != CellType() else {}
    if isinstance(value, GeneratorType):
        return _named(inspect.getgeneratorlocals(value))
    own = getattr(value, "__dict__", {})
    if isinstance(value, Mapping):
        plain = all(isinstance(key, PLAIN) for key in value)
        pairs = {f"[{key!r}]" if plain else f"[{i}]": value[key] for i, key in enumerate(value)}
        return pairs | _named(own)
    if isinstance(value, list | tuple):
        return _items(value) | _named(own)
    if isinstance(value, nn.Module):
        parts = value._parameters | value._buffers | value._modules
        rest = {name: one for name, one in own.items() if name not in _OF_MODULE}
        return _named(parts | rest)
    return _copied_by(value, own)


def _items(values: Sequence[Any]) -> dict[str, Any]:
    return {f"[{index}]": value for index, value in enumerate(values)}


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f".{name}": value for name, value in attributes.items()}


def _copied_by(value: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an object would be copied by: attributes, slots, items, a state of its own."""
    try:
        made = value.__reduce_ex__(4)
    except Exception:  # a lock or a file has nothing that it could be copied by
        return _named(own)
    if isinstance(made, str):  # the name of what there is once
        return _named(own)
    _, arguments, state, items, pairs = (*made, None, None, None)[:5]
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], Mapping):
        state = {**(state[0] or {}), **state[1]}  # attributes, and slots
    attributes = state if isinstance(state, Mapping) else own
    others = [None if state is attributes else state, list(items or ()), list(pairs or ())]
    return _named(attributes) | {" arguments": arguments, " others": others}
