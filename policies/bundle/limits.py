"""Limits that a bundle, or whoever drives a robot, states for its commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError, nearest
from trimtab.limits import inward
from trimtab.policies.bundle.workspace import Workspace, finite_numbers, tightest
from trimtab.settings import fits

__all__ = ["NO_LIMITS", "Limits", "Values"]

Values = NDArray[np.float64]

_RATES = ("velocity", "acceleration", "jerk")
_TIGHTER: dict[str, np.ufunc] = {"low": np.maximum, "high": np.minimum}
_TIGHTER |= {name: np.minimum for name in _RATES}
"""How two limits become one, by their names."""


@dataclass(frozen=True)
class Limits:
    """Limits of commands, each a number for all entries or one number an entry.

    None is no limit, as are infinite numbers.

    Attributes:
        low: lower limits of the command, raw units, tighter than those of the bundle.
        high: upper limits, likewise.
        velocity: most change a second. If the commands are velocities, the most speed.
        acceleration: most change of the velocity a second.
        jerk: most change of the acceleration a second, of commands that are velocities; it needs
            ``acceleration``. A position that is reached with a limited jerk needs a planner.
        of_velocities: whether the commands are velocities and not positions.
        workspace: where the robot's measured position has to stay (also a mapping, which becomes
            one). It limits no command: a robot that leaves it goes to its fallback.
    """

    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    velocity: float | tuple[float, ...] | None = None
    acceleration: float | tuple[float, ...] | None = None
    jerk: float | tuple[float, ...] | None = None
    of_velocities: bool = False
    workspace: Workspace | None = None

    def __post_init__(self) -> None:
        for name in _TIGHTER:
            value = getattr(self, name)
            if isinstance(value, list | np.ndarray):  # such as a robot's own table
                value = tuple(value)
                object.__setattr__(self, name, value)
            listed = value if isinstance(value, tuple) else () if value is None else (value,)
            signed = name not in _RATES
            if not all(fits(one, float) and (signed or one > 0) for one in listed):
                kind = "numbers" if signed else "positive numbers"
                raise TrimtabError(f"limits: {name}={value}: give {kind}")
        box: Any = self.workspace
        if box is not None and not isinstance(box, Workspace):  # such as of a robot's own YAML
            object.__setattr__(self, "workspace", Workspace.parse(box))
        if self.jerk is not None and self.acceleration is None:
            raise TrimtabError("limits: jerk needs a limit of acceleration beside it")
        if self.jerk is not None and not self.of_velocities:
            raise TrimtabError(
                "limits: jerk is limited of velocities alone (of_velocities=True): a far position "
                "would be passed again and again; limit velocity and acceleration"
            )

    @classmethod
    def parse(cls, stated: Any, where: str) -> Limits:
        """Return the limits that JSON or YAML states: at least one, by the names of the fields.

        Raises:
            TrimtabError: if an entry is unknown or of another type, or none is a limit; ``where``
                names what states them.
        """
        kinds: dict[str, Callable[[str, Any], Any]] = {name: finite_numbers for name in _TIGHTER}
        kinds |= {"of_velocities": _flag, "workspace": lambda _, value: value}
        if not isinstance(stated, Mapping):
            raise TrimtabError(f"{where}: limits must be a mapping, such as {{velocity: 1.0}}")
        for name in stated:
            if name not in kinds:
                hint = nearest(str(name), kinds)
                raise TrimtabError(f"{where}: limits: there is no entry {name!r}; {hint}")
        try:
            found = cls(**{name: kinds[name](name, value) for name, value in stated.items()})
        except TrimtabError as error:
            raise TrimtabError(f"{where}: {error}") from error
        if found == cls(of_velocities=found.of_velocities):
            raise TrimtabError(
                f"{where}: limits: states none; give one of {', '.join(_TIGHTER)}, workspace, or "
                "leave it out: a robot is told by load_policy(…, limits=NO_LIMITS) that there are "
                "none"
            )
        return found

    def fitting(self, low: ArrayLike, high: ArrayLike, rate: float | None, where: str) -> Limits:
        """Return these limits if they fit actions ``[A]`` of a control rate in Hz.

        Raises:
            TrimtabError: as :meth:`resolved`; ``where`` names what states them.
        """
        try:
            self.resolved(low, high, None if rate is None else 1.0 / rate)
        except TrimtabError as error:
            raise TrimtabError(f"{where}: {error}") from error
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the limits that there are, as :meth:`parse` reads them."""
        stated = {**asdict(self), "workspace": self.workspace and self.workspace.to_json()}
        return {key: x for key, x in stated.items() if x is not None and x is not False}

    def tightened(self, other: Limits) -> Limits:
        """Return the limits within which both hold.

        Raises:
            TrimtabError: if one is of velocities and the other of positions.
        """
        if NO_LIMITS in (self, other):
            return self if other == NO_LIMITS else other
        # A workspace says nothing of what the commands are.
        kinds = {x.of_velocities for x in (self, other) if x.of_commands or x.of_velocities}
        if len(kinds) > 1:
            kind = "velocities" if self.of_velocities else "positions"
            raise TrimtabError(
                f"limits: of_velocities={other.of_velocities}: the bundle's limits are of {kind}; "
                f"write Limits(…, of_velocities={self.of_velocities}), or leave limits= out: those "
                "of the bundle hold"
            )
        both: dict[str, Any] = {}
        for name, tighter in _TIGHTER.items():
            both[name] = tightest(name, getattr(self, name), getattr(other, name), tighter)
        box = self.workspace.tightened(other.workspace) if self.workspace else other.workspace
        return Limits(**both, of_velocities=True in kinds, workspace=box)

    def resolved(
        self, low: ArrayLike, high: ArrayLike, period: float | None
    ) -> tuple[Values, Values, list[Values]]:
        """Return the least and the greatest command ``[A]``, and the most of each rate ``[A]``.

        Args:
            low: lower limits of the bundle's actions ``[A]``.
            high: upper limits, likewise.
            period: of a control tick in seconds; None if the bundle names no control rate.

        Raises:
            TrimtabError: if a limit does not fit, or rates are limited and there is no period.
        """
        if period is None and self.of_rates:
            raise TrimtabError(
                "limits: the bundle names no control rate, so that a change a second has no "
                "meaning; give low and high alone"
            )
        dim = np.size(low)
        most_of = [self._of(name, np.inf, dim) for name in _RATES]
        speed = most_of[0] if self.of_velocities else np.full(dim, np.inf)
        least, most = (
            end.astype(np.float64)
            for end in inward(
                np.maximum(low, np.maximum(self._of("low", -np.inf, dim), -speed)),
                np.minimum(high, np.minimum(self._of("high", np.inf, dim), speed)),
            )
        )
        if not np.all(least <= most):
            raise TrimtabError(
                f"limits: {self.to_json()} leave no command within those of the bundle, "
                f"{np.asarray(low).tolist()} to {np.asarray(high).tolist()}"
            )
        return least, most, most_of

    @property
    def of_commands(self) -> bool:
        """Whether a command is limited, and not the workspace alone."""
        return any(_limiting(getattr(self, name)) for name in _TIGHTER)

    @property
    def of_rates(self) -> bool:
        """Whether a rate is limited, and not positions alone."""
        return any(_limiting(getattr(self, name)) for name in _RATES)

    def _of(self, name: str, otherwise: float, dim: int) -> Values:
        value = getattr(self, name)
        try:
            return np.broadcast_to(
                np.asarray(otherwise if value is None else value, np.float64), (dim,)
            )
        except ValueError as error:
            raise TrimtabError(f"limits: {name}={value!r}: give one number, or {dim}") from error


def _limiting(value: Any) -> bool:
    """Return whether a limit bounds any entry."""
    return value is not None and not np.all(np.isinf(value))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TrimtabError(f"limits: {name}={value!r}: give true or false")
    return value


NO_LIMITS = Limits()
"""Says that a robot's commands need no limits besides those of its bundle."""
