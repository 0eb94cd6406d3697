"""Settings of a class: the keyword-only parameters of its constructor, their types and bounds.

A setting is declared once, in the signature::

    def __init__(self, setup: Setup, *, tau: Share = 0.005, critics: Count = 2)

The values are checked against it before an object is made, whether a file, a command line or a
Python program gives them. A child that names a setting of its parent again keeps the bounds.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from trimtab.errors import TrimtabError

__all__ = [
    "Bounds",
    "CheckedSettings",
    "Count",
    "Natural",
    "NonNegative",
    "Positive",
    "Share",
    "Size",
    "Steps",
    "check_fields",
    "check_settings",
    "fits",
    "keywords_of",
]


@dataclass(frozen=True)
class Bounds:
    """What a number may be.

    Attributes:
        least: smallest value.
        most: largest value.
        above: every value is larger.
        below: every value is smaller.
        least_of: setting whose value is the smallest one, where it has a value.
        most_of: setting whose value is the largest one, where it has a value.
        above_of: setting whose value every one is larger than.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    least_of: str = ""
    most_of: str = ""
    above_of: str = ""

    def with_values(self, values: Mapping[str, Any]) -> Bounds:
        """Return the bounds at the values that other settings have."""
        least, most = values.get(self.least_of), values.get(self.most_of)
        return replace(
            self,
            least=self.least if least is None else least,
            most=self.most if most is None else most,
            above=values.get(self.above_of, self.above),
        )

    def hold(self, number: Any) -> bool:
        """Return whether a number, which may be infinite, is within them."""
        inner = (self.above == -math.inf or number > self.above) and (
            self.below == math.inf or number < self.below
        )
        return bool(inner and self.least <= number <= self.most)

    def __str__(self) -> str:
        """Return them in words."""
        least, most, above, below = (
            "" if math.isinf(limit) else f"{limit:.12g}"
            for limit in (self.least, self.most, self.above, self.below)
        )
        if least and most:
            return f"from {least} to {most}"
        limits = {"at least": least, "above": above, "at most": most, "below": below}
        return " and ".join(f"{name} {limit}" for name, limit in limits.items() if limit)


Count = Annotated[int, Bounds(least=1)]
"""A whole number from 1 on."""
Natural = Annotated[int, Bounds(least=0)]
"""A whole number from 0 on."""
Size = Annotated[int, Bounds(least=1, most=1 << 20)]
"""A whole number of what is held in memory at once, such as rows, widths or networks."""
Steps = Annotated[int, Bounds(least=1, most=10_000)]
"""A whole number of steps that one action takes."""
Share = Annotated[float, Bounds(least=0, most=1)]
"""A number from 0 to 1."""
NonNegative = Annotated[float, Bounds(least=0)]
"""A number from 0 on."""
Positive = Annotated[float, Bounds(above=0)]
"""A number above 0."""


class CheckedSettings(ABCMeta):
    """Metaclass of classes whose settings are checked before an object is made.

    Such a class has ``section``, what errors call its settings, such as ``algorithm``.
    """

    section: str

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, for help and for those that look a class up."""
        parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature([*parameters][1:])

    def __call__(cls, *given: Any, **settings: Any) -> Any:
        """Make an object.

        Raises:
            TrimtabError: as :func:`check_settings`.
        """
        check_settings(cls, settings, cls.section)
        return super().__call__(*given, **settings)


def check_settings(chosen: type[Any], settings: Mapping[str, Any], section: str) -> None:
    """Check the values that a class's constructor would be given; others have their defaults.

    Args:
        chosen: the class.
        settings: values by name; names that the constructor does not take are left to it.
        section: what errors call these settings, such as ``algorithm``; empty for those of a run.

    Raises:
        TrimtabError: if a value is of another type than it is annotated with, out of bounds, or of
            one of the ``unused_settings`` of the class.
    """
    start = f"{section}." if section else ""
    for name in settings:
        if name in getattr(chosen, "unused_settings", ()):
            raise TrimtabError(f"{start}{name}: has no effect on {chosen.__name__}; leave it out")
    known = keywords_of(chosen)
    bounds = _bounds_of(chosen)
    values = {name: settings.get(name, one.default) for name, one in known.items()}
    for name, parameter in known.items():
        value, kind = values[name], parameter.annotation
        if name in settings and not fits(value, kind):
            raise TrimtabError(f"{start}{name}={value}: must be {_called(kind)}")
        _check_bounds(start, name, values, bounds[name])


def check_fields(chosen: Any, section: str) -> None:
    """Check the fields of a dataclass's object, for its ``__post_init__``, by their annotations.

    Args:
        chosen: the object.
        section: what errors call its fields, such as ``mode``.

    Raises:
        TrimtabError: if a value is of another type than its field, or out of bounds.
    """
    kinds, bounds = (
        next(filter(None, (_hints(one, bounds=bounded) for one in type(chosen).__mro__)), {})
        for bounded in (False, True)
    )  # a user's class may have annotations that cannot be resolved
    values = {one.name: getattr(chosen, one.name) for one in fields(chosen) if one.init}
    for name, value in values.items():
        kind = kinds.get(name, object)
        if not fits(value, kind):
            raise TrimtabError(f"{section}: {name}={str(value)[:80]}: must be {_called(kind)}")
        _check_bounds(f"{section}: ", name, values, _bounds_in(bounds.get(name)))


def _check_bounds(start: str, name: str, values: Mapping[str, Any], bounds: list[Bounds]) -> None:
    """Check a value, a number or several, at the values that other settings have."""
    value = values[name]
    for one in bounds:
        limits = one.with_values(values)
        numbers = value if isinstance(value, list | tuple) else [value]
        if not all(limits.hold(number) for number in numbers if isinstance(number, Real)):
            others = filter(None, (one.least_of, one.most_of, one.above_of))
            by = "".join(f" ({start}{other} is a limit)" for other in others)
            raise TrimtabError(f"{start}{name}={str(value)[:80]}: must be {limits}{by}")


def keywords_of(chosen: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a class's constructor, with types as annotations.

    A constructor that passes ``**keywords`` on to its parent takes the parent's too, but for
    the ``unused_settings`` of the class. The annotation is ``object`` where there is none, or where
    it cannot be resolved.
    """
    found: dict[str, inspect.Parameter] = {}
    unused_settings = getattr(chosen, "unused_settings", ())
    for kind in chosen.__mro__:
        constructor = vars(kind).get("__init__")
        if not isinstance(constructor, types.FunctionType):  # none of its own, or one in C
            continue
        hints = _hints(constructor)
        parameters = inspect.signature(constructor).parameters.values()
        for one in parameters:
            if one.kind is inspect.Parameter.KEYWORD_ONLY and one.name not in unused_settings:
                found.setdefault(one.name, one.replace(annotation=hints.get(one.name, object)))
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            break
    return found


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of the type with which a setting is annotated."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(fits(one, arguments[0]) for one in value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is int:  # of 64 bits, as torch and NumPy have it
        return isinstance(value, Integral) and abs(int(value)) < 2**63
    if kind is float:
        return isinstance(value, Real) and not math.isnan(value)
    try:
        return not isinstance(origin or kind, type) or isinstance(value, origin or kind)
    except TypeError:  # of Any, and of a protocol that is for type checkers alone
        return True


def _called(kind: Any) -> str:
    """Return what an error calls a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_called(one) for one in arguments)
    if origin in (Sequence, list, tuple):
        return f"a list, each {_called(arguments[0])}"
    return _NAMES.get(kind, f"of type {getattr(kind, '__name__', kind)}")


_NAMES: Mapping[Any, str] = types.MappingProxyType(
    {
        int: "a whole number", float: "a number", str: "text", bool: "true or false",
        types.NoneType: "null",
    }
)  # fmt: skip


def _bounds_of(chosen: type[Any]) -> dict[str, list[Bounds]]:
    """Return the bounds of each setting, those of the nearest parent where a class has none."""
    constructors = [vars(kind).get("__init__") for kind in chosen.__mro__]
    hints = [
        _hints(one, bounds=True) for one in constructors if isinstance(one, types.FunctionType)
    ]
    return {
        name: next(filter(None, (_bounds_in(one[name]) for one in hints if name in one)), [])
        for name in keywords_of(chosen)
    }


def _bounds_in(kind: Any) -> list[Bounds]:
    """Return the bounds within an annotation, such as ``Count | None`` or ``Sequence[Count]``."""
    own = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, Bounds)]
    return own + [bound for one in typing.get_args(kind) for bound in _bounds_in(one)]


@functools.cache  # a run's settings are checked against the same few constructors many times
def _hints(annotated: types.FunctionType | type, *, bounds: bool = False) -> dict[str, Any]:
    """Return a constructor's annotations, or a class's, as types; none if one has no meaning."""
    try:
        return typing.get_type_hints(annotated, include_extras=bounds)
    except (NameError, AttributeError, TypeError):  # a user's, written for type checkers alone
        return {}
