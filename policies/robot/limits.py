"""Limits of how fast a robot's commands may change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError
from trimtab.limits import inward
from trimtab.policies.robot.plan import Array

__all__ = ["Limiter", "Limits", "limited_velocity"]

Values = NDArray[np.float64]


def limited_velocity(
    wanted: ArrayLike,
    velocity: ArrayLike,
    acceleration: ArrayLike,
    *,
    period: float,
    low: ArrayLike = -np.inf,
    high: ArrayLike = np.inf,
    most_acceleration: ArrayLike = np.inf,
    most_jerk: ArrayLike = np.inf,
) -> tuple[Values, Values]:
    """Return the next velocity and acceleration on the way to a wanted velocity.

    The jerk that would reach it at once is clipped to +-J; the acceleration that follows is bounded
    above by min(r (high - v), A) and below by -min(r (v - low), A). r = J/A lets the acceleration
    fade within the jerk limit before an end is reached (libfranka, ``rate_limiting.cpp``, with
    -low = high). Libfranka has periods of 1 ms; at a longer one J/A may exceed 1/period, and the
    end would be passed, so r is at most 1/period here.

    Args:
        wanted: velocity to reach, ``[A]``.
        velocity: the one of the tick before, ``[A]``, from low to high.
        acceleration: the one of the tick before, ``[A]``.
        period: of a tick, in seconds.
        low: least velocity.
        high: greatest velocity.
        most_acceleration: A.
        most_jerk: J; where it is finite, A is finite too.

    Returns:
        The velocity ``[A]`` and the acceleration ``[A]``. A velocity that can be reached is the
        wanted one to the bit.
    """
    goal, v, a, least_v, most_v, most_a, most_j = (
        np.asarray(x, np.float64)
        for x in (wanted, velocity, acceleration, low, high, most_acceleration, most_jerk)
    )
    with np.errstate(invalid="ignore"):  # no jerk limit: inf/inf
        fading = np.where(np.isfinite(most_j), np.minimum(most_j / most_a, 1 / period), 1 / period)
    asked = (goal - v) / period
    found = np.clip(asked, a - most_j * period, a + most_j * period)
    found = np.minimum(found, np.minimum(fading * (most_v - v), most_a))
    found = np.maximum(found, -np.minimum(fading * (v - least_v), most_a))
    return np.where(found == asked, goal, v + found * period), found


@dataclass(frozen=True)
class Limits:
    """Limits of commands, each a number for all entries or one number an entry; None: no limit.

    Attributes:
        low: lower limits of the command, raw units, tighter than those of the bundle.
        high: upper limits, likewise.
        velocity: most change a second. If the commands are velocities, the most speed.
        acceleration: most change of the velocity a second.
        jerk: most change of the acceleration a second, of commands that are velocities; it needs
            ``acceleration``. A position that is reached with a limited jerk needs a planner.
        of_velocities: whether the commands are velocities and not positions.
    """

    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    velocity: float | tuple[float, ...] | None = None
    acceleration: float | tuple[float, ...] | None = None
    jerk: float | tuple[float, ...] | None = None
    of_velocities: bool = False

    def __post_init__(self) -> None:
        if self.jerk is not None and self.acceleration is None:
            raise TrimtabError("limits: jerk needs a limit of acceleration beside it")
        if self.jerk is not None and not self.of_velocities:
            raise TrimtabError(
                "limits: jerk is limited of velocities alone (of_velocities=True): a far position "
                "would be passed again and again; limit velocity and acceleration"
            )
        for name in ("velocity", "acceleration", "jerk"):
            value = getattr(self, name)
            try:
                right = value is None or bool(np.all(np.asarray(value, np.float64) > 0))
            except (TypeError, ValueError):
                right = False
            if not right:
                raise TrimtabError(f"limits: {name}={value}: give positive numbers")

    def limiter(self, low: Array, high: Array, period: float | None) -> Limiter:
        """Return what applies the limits.

        Args:
            low: lower limits of the bundle's actions ``[A]``.
            high: upper limits, likewise.
            period: of a control tick in seconds; None if the bundle names no control rate.

        Raises:
            TrimtabError: if a limit does not fit, or rates are limited and there is no period.
        """
        rates = (self.velocity, self.acceleration, self.jerk)
        if period is None and any(rate is not None for rate in rates):
            raise TrimtabError(
                "limits: the bundle names no control rate, so that a change a second has no "
                "meaning; give low and high alone"
            )
        dim = len(low)
        least, most = inward(
            np.maximum(low, self._of(self.low, -np.inf, dim, "low")),
            np.minimum(high, self._of(self.high, np.inf, dim, "high")),
        )
        if not np.all(least <= most):
            raise TrimtabError(
                f"limits: low={self.low} and high={self.high} leave no command within those of "
                f"the bundle, {low.tolist()} to {high.tolist()}"
            )
        names = ("velocity", "acceleration", "jerk")
        most_of = [
            self._of(rate, np.inf, dim, name) for rate, name in zip(rates, names, strict=True)
        ]
        if self.of_velocities:
            least, most = np.maximum(least, -most_of[0]), np.minimum(most, most_of[0])
        limited = any(rate is not None for rate in rates)
        return Limiter(least, most, most_of, period if limited else None, self.of_velocities)

    @staticmethod
    def _of(value: ArrayLike | None, otherwise: float, dim: int, name: str) -> Values:
        try:
            found = np.broadcast_to(
                np.asarray(otherwise if value is None else value, np.float64), (dim,)
            )
        except (TypeError, ValueError) as error:
            raise TrimtabError(f"limits: {name}={value!r}: give one number, or {dim}") from error
        if np.isnan(found).any():
            raise TrimtabError(f"limits: {name}={value!r}: is not a number")
        return found


class Limiter:
    """Applies limits to one command after another.

    The order is: position, rates, position again. A far position is approached so that the robot
    can stop there within its acceleration, and is not passed; so are the ends of the range. The
    first command of an episode is a start: it is limited in position alone, unless the command in
    force is told (:meth:`begin`).

    Attributes:
        low: lower limits of all commands ``[A]``.
        high: upper limits, likewise.
        count: ticks since the last ``begin`` on which a limit changed the command.

    Args:
        low: lower limits ``[A]``.
        high: upper limits ``[A]``.
        most: of velocity, acceleration and jerk, ``[A]`` each; infinite: none.
        period: of a tick in seconds; None if no rate is limited.
        of_velocities: whether the commands are velocities.
    """

    def __init__(
        self,
        low: ArrayLike,
        high: ArrayLike,
        most: list[Values],
        period: float | None,
        of_velocities: bool,
    ) -> None:
        self.low, self.high = (np.asarray(end, np.float64) for end in (low, high))
        self._most = most
        self._period, self._of_velocities = period, of_velocities
        self.begin()

    def begin(self, command: Array | None = None) -> None:
        """Begin at rest.

        Args:
            command: the one in force ``[A]``; None if there is none.

        Raises:
            TrimtabError: if rates are limited and the command is beyond the range, to which there
                is then no way within the limits.
        """
        beyond = command is not None and np.any((command < self.low) | (command > self.high))
        if beyond and self._period is not None:
            raise TrimtabError(
                f"action {command}: is beyond the limits of the commands, {self.low} to "
                f"{self.high}, and rates are limited; check its units, or clip it"
            )
        self.count = 0
        self._last = self._goal = None if command is None else command.astype(np.float64)
        self._rate = np.zeros(len(self.low))  # change of the command a second, at the last tick

    def apply(self, command: Array, ticks: int = 1) -> Array:
        """Return the command ``[A]`` as far as the limits allow it.

        Args:
            command: what is wanted ``[A]``, finite.
            ticks: control ticks since the last command. On those that were left out, the robot is
                taken to have kept that one: a position at rest, a velocity without acceleration.
        """
        goal = np.clip(command.astype(np.float64), self.low, self.high)
        allowed = goal
        if self._period is not None and self._last is not None and self._goal is not None:
            if ticks > 1:
                self._rate = np.zeros(len(self.low))
            goal_rate = (goal - self._goal) / (ticks * self._period)
            allowed = self._rates(goal, goal_rate, self._last, self._period)
        self._last, self._goal = allowed, goal
        found: Array = allowed.astype(np.float32)
        self.count += not np.array_equal(found, command)
        return found

    def _rates(self, goal: Values, goal_rate: Values, last: Values, period: float) -> Values:
        velocity, acceleration, jerk = self._most
        if self._of_velocities:
            found, self._rate = limited_velocity(
                goal, last, self._rate, period=period, low=self.low, high=self.high,
                most_acceleration=acceleration, most_jerk=jerk,
            )  # fmt: skip
        else:
            wanted = self._velocity_to(goal, goal_rate, last, period)
            self._rate, _ = limited_velocity(
                wanted, self._rate, 0.0, period=period, low=-velocity, high=velocity,
                most_acceleration=acceleration,
            )  # fmt: skip
            there = (goal - last) / period == self._rate  # which may round, where goal does not
            found = np.where(there, goal, last + self._rate * period)
        inside: Values = np.clip(found, self.low, self.high)  # it may round
        return inside

    def _velocity_to(self, goal: Values, goal_rate: Values, last: Values, period: float) -> Values:
        """Return the velocity to ask for: that of the goal, and one that closes the distance.

        It is never so fast that the robot could not stop at the end of the range.
        """
        distance = goal - last - goal_rate * period
        wanted = goal_rate + np.sign(distance) * self._closing(np.abs(distance), period)
        wanted = np.where(distance == 0, (goal - last) / period, wanted)
        slow: Values = np.clip(
            wanted,
            -self._closing(last - self.low, period),
            self._closing(self.high - last, period),
        )
        return slow

    def _closing(self, distance: Values, period: float) -> Values:
        """Return the greatest velocity from which the robot can be at rest after a distance.

        To be at rest at a distance e after n ticks of which each is A period slower than the one
        before, the speed is v = e / (n period) + A period (n - 1) / 2, with the fewest n that reach
        e. A faster robot passes a far goal, and passes it again on the way back.
        """
        most = self._most[1]
        ticks = np.ceil((np.sqrt(1 + 8 * distance / (most * period**2)) - 1) / 2)
        ticks = np.maximum(ticks, 1)
        with np.errstate(invalid="ignore"):  # no limit of acceleration: 0 inf
            braking = np.where(ticks > 1, most * period * (ticks - 1) / 2, 0.0)
        closing: Values = distance / (ticks * period) + braking
        return closing
