"""Limits of how fast a robot's commands may change."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.limits import NO_LIMITS, Limits, Values
from trimtab.policies.robot.plan import Array

__all__ = ["Limiter", "beyond", "check_limited", "limited_velocity"]


def check_limited(contract: Contract, given: Limits | None, where: str) -> None:
    """Check that somebody states limits of a robot's commands, before a policy drives it.

    Raises:
        TrimtabError: if neither the bundle, which ``where`` names, nor its user does. A workspace
            in the bundle limits no command. ``NO_LIMITS`` is the one object of that name: a
            ``Limits()`` that came out empty was meant to state some.
    """
    if given is NO_LIMITS or (contract.limits or NO_LIMITS).of_commands:
        return
    if given is None or not (given.of_commands or given.workspace):
        empty = "" if given is None else f", and limits={given.to_json()} states none either"
        raise TrimtabError(
            f"{where}: states no limits of the robot's commands{empty}; give "
            "limits=Limits(velocity=…), write them by trimtab export limits=…, or say "
            "limits=NO_LIMITS"
        )


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


def beyond(command: ArrayLike, low: ArrayLike, high: ArrayLike) -> NDArray[np.bool_]:
    """Return which entries of a command are beyond a range, or are no number, ``[A]``.

    Ends are rounded inward to float32 numbers, so an end as it was written may lie beyond it by its
    rounding: that far counts as within.
    """
    values, least, most = (np.asarray(one, np.float32) for one in (command, low, high))
    slack = 2 * np.spacing(np.abs(values))
    inside: NDArray[np.bool_] = (values >= least - slack) & (values <= most + slack)
    return ~inside


class Limiter:
    """Applies limits to one command after another.

    The order is: position, rates, position again. A far position is approached so that the robot
    can stop there within its acceleration, and is not passed; so are the ends of the range. Rates
    are limited from the command in force on (:meth:`begin`), so that the first command is too.

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

    @classmethod
    def of(cls, limits: Limits, low: ArrayLike, high: ArrayLike, period: float | None) -> Limiter:
        """Return what applies limits to a bundle's actions; see :meth:`Limits.resolved`."""
        least, most, most_of = limits.resolved(low, high, period)
        return cls(least, most, most_of, period if limits.of_rates else None, limits.of_velocities)

    def check(self, command: Array | None) -> None:
        """Check that the limits can begin with a command, as of :meth:`begin`.

        Raises:
            TrimtabError: if rates are limited and the command is beyond the range, to which there
                is then no way within the limits.
        """
        if command is None or self._period is None:
            return
        for entry in np.flatnonzero(beyond(command, self.low, self.high)):
            raise TrimtabError(
                f"action: entry {entry} is {command[entry]:g}, beyond the limits of the commands, "
                f"{self.low[entry]:g} to {self.high[entry]:g}, and rates are limited; check its "
                "units; a robot that stands there has to be moved into the range by its own "
                "controller first"
            )

    def begin(self, command: Array | None = None) -> None:
        """Begin at rest.

        Args:
            command: the one in force ``[A]``. None if it is not known: of velocities, it is zero
                then where the range has that, since a robot at rest has no other.

        Raises:
            TrimtabError: as :meth:`check`.
        """
        self.check(command)
        if command is None and self._of_velocities and np.all((self.low <= 0) & (self.high >= 0)):
            command = np.zeros(len(self.low), np.float32)
        self.count = 0
        self._last: Values | None = None
        if command is not None:  # it may be beyond the range by its rounding
            self._last = np.clip(command.astype(np.float64), self.low, self.high)
        self._goal = self._last
        self._rate = np.zeros(len(self.low))  # change of the command a second, at the last tick

    def require_begun(self) -> None:
        """Check that the command in force is known where rates are limited.

        Raises:
            TrimtabError: if not: from an unknown command, the next one may be any leap.
        """
        if self._period is not None and self._last is None:
            raise TrimtabError(
                "limits: rates are limited, and the command in force is not known; write "
                "reset(action=<what the robot was last sent, or where it stands>) before step"
            )

    def apply(self, command: Array, ticks: int = 1) -> Array:
        """Return the command ``[A]`` as far as the limits allow it.

        Args:
            command: what is wanted ``[A]``, finite.
            ticks: control ticks since the last command. On those that were left out, the robot is
                taken to have kept that one: a position at rest, a velocity without acceleration.

        Raises:
            TrimtabError: as :meth:`require_begun`.
        """
        self.require_begun()
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
