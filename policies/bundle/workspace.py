"""Where a robot may be: a box that its measured position has to stay in.

The position is what the observation says, so this knows no kinematics: it watches the points that
the robot measures, such as its tool's, and no elbow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError, nearest

__all__ = ["Box", "Workspace", "finite_numbers", "tightest"]

_MOST = float(np.finfo(np.float64).max)
_METRES = ("m", "metre", "metres", "meter", "meters")


@dataclass(frozen=True)
class Box:
    """A workspace whose entries have their places in an observation.

    Attributes:
        places: of the entries, among the numbers of an observation.
        names: of the entries.
        low: float32 ``[len(places)]``, in metres; -inf: no limit.
        high: likewise.
        units: of the entries; empty where they are not told.
    """

    places: tuple[int, ...]
    names: tuple[str, ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    units: tuple[str, ...]

    def left_by(self, row: NDArray[Any]) -> str:
        """Return which entry of an observation's numbers is outside, in words; empty for none."""
        for name, place, low, high, unit in zip(
            self.names, self.places, self.low, self.high, self.units, strict=True
        ):
            if not low <= row[place] <= high:
                m = " m" if unit else ""
                return f"{name} is {row[place]:g}{m}, and its workspace is {low:g} to {high:g}{m}"
        return ""


@dataclass(frozen=True)
class Workspace:
    """A box, in metres; its edge belongs to it.

    Attributes:
        position: what measures the position: names of parts of the observation, names of entries,
            or places of entries in an observation of one vector, from 0.
        low: lower limits, a number for all entries or one number an entry; None: none.
        high: upper limits, likewise.
    """

    position: tuple[str | int, ...]
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        given: Any = self.position
        listed = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not listed or not all(type(one) in (str, int) for one in listed):
            raise TrimtabError(
                f"limits: workspace.position={given!r}: name entries of the observation"
            )
        object.__setattr__(self, "position", listed)
        for end in ("low", "high"):
            limit = getattr(self, end)
            if isinstance(limit, np.ndarray | np.generic):  # such as of a robot's own table
                limit = limit.tolist()
            object.__setattr__(self, end, finite_numbers(f"workspace.{end}", limit))
        if self.low is None and self.high is None:
            raise TrimtabError("limits: workspace: has no low and no high; give one of them")

    @classmethod
    def parse(cls, stated: Any) -> Workspace:
        """Return the workspace that JSON or YAML states.

        Raises:
            TrimtabError: if it is malformed, or has no limit.
        """
        known = tuple(one.name for one in fields(cls))
        if not isinstance(stated, Mapping) or "position" not in stated:
            raise TrimtabError(
                "limits: workspace must be a mapping, such as {position: [x, y, z], low: [0, -0.5, "
                "0.02], high: [0.6, 0.5, 0.8]}"
            )
        for name in stated:
            if name not in known:
                raise TrimtabError(
                    f"limits: workspace: there is no entry {name!r}; {nearest(str(name), known)}"
                )
        return cls(**stated)

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`parse` reads."""
        stated = {"position": self.position, "low": self.low, "high": self.high}
        return {name: value for name, value in stated.items() if value is not None}

    def tightened(self, other: Workspace | None) -> Workspace:
        """Return the workspace that is within both.

        Raises:
            TrimtabError: if they are of other entries.
        """
        if other is None:
            return self
        if other.position != self.position:
            raise TrimtabError(
                f"limits: workspace.position={list(other.position)}: that of the bundle is "
                f"{list(self.position)}"
            )
        return Workspace(
            self.position,
            tightest("workspace.low", self.low, other.low, np.maximum),
            tightest("workspace.high", self.high, other.high, np.minimum),
        )

    def box(self, sizes: Mapping[str, int], names: Sequence[str], units: Sequence[str]) -> Box:
        """Return the workspace with its places in an observation.

        Args:
            sizes: how many numbers each part of the observation has, by its name.
            names: of all these numbers.
            units: of all these numbers; empty where they are not told.

        Raises:
            TrimtabError: if an entry is not observed or not in metres, or no position is left.
        """
        found = [place for one in self.position for place in _places(one, sizes, names)]
        if len(set(found)) < len(found):
            raise TrimtabError("limits: workspace.position: has an entry twice")
        for place in found:
            if units[place] and units[place].lower() not in _METRES:
                raise TrimtabError(
                    f"limits: workspace: {names[place]} is observed in {units[place]}, and a "
                    "workspace is in metres"
                )
        ends = []
        for end, none in (("low", -np.inf), ("high", np.inf)):
            given = none if getattr(self, end) is None else getattr(self, end)
            try:
                with np.errstate(over="ignore"):  # beyond float32 there is no limit
                    ends.append(np.broadcast_to(np.asarray(given, np.float32), (len(found),)))
            except ValueError as error:
                raise TrimtabError(
                    f"limits: workspace.{end}={given}: give one number, or {len(found)}"
                ) from error
        low, high = ends
        if not np.all(low < high):
            raise TrimtabError(
                f"limits: workspace: low {self.low} is not below high {self.high} everywhere"
            )
        named, told = (tuple(given[place] for place in found) for given in (names, units))
        return Box(tuple(found), named, low, high, told)


def _places(one: str | int, sizes: Mapping[str, int], names: Sequence[str]) -> list[int]:
    """Return the places of a part, or that of an entry."""
    if isinstance(one, int):
        if len(sizes) > 1 or not 0 <= one < len(names):
            has = f"has the parts {', '.join(sizes)}" if len(sizes) > 1 else f"has {len(names)}"
            raise TrimtabError(
                f"limits: workspace.position: there is no entry {one}; the observation {has}"
            )
        return [one]
    begin = 0
    for part, size in sizes.items():
        if part == one:
            return list(range(begin, begin + size))
        begin += size
    if names.count(one) == 1:
        return [names.index(one)]
    why = "is there twice" if one in names else nearest(one, [*names, *sizes])
    raise TrimtabError(f"limits: workspace.position: the observation's entry {one!r}: {why}")


def tightest(name: str, stated: Any, other: Any, tighter: np.ufunc) -> Any:
    """Return the limit within which two hold: None, a number, or a tuple of them.

    Args:
        name: of the entry of the limits.
        stated: what the bundle has for it.
        other: what is given besides.
        tighter: ``np.maximum`` of lower limits, ``np.minimum`` of others.

    Raises:
        TrimtabError: if they are of different lengths.
    """
    given = [limit for limit in (stated, other) if limit is not None]
    try:
        found = tighter(given[0], given[-1]).tolist() if given else None
    except ValueError as error:
        raise TrimtabError(f"limits: {name}={other}: the bundle states {stated}") from error
    return tuple(found) if isinstance(found, list) else found


def finite_numbers(name: str, value: Any) -> Any:
    """Return a limit: None, a number, or a tuple of them.

    Raises:
        TrimtabError: if it is something else; ``name`` is its entry of the limits.
    """
    listed = value if isinstance(value, list | tuple) else [value]
    if value is not None and not all(type(x) in (int, float) and abs(x) <= _MOST for x in listed):
        raise TrimtabError(f"limits: {name}={value!r}: give a finite number, or a list")
    return tuple(map(float, value)) if isinstance(value, list | tuple) else value
