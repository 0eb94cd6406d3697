"""What a robot plays when nothing else is to be played: no observation, no plan, no finite action.

A fallback is a command and not a safety function. The receiver of the commands must time out by
itself, because a program that hangs sends no fallback.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.policies.robot.limits import beyond
from trimtab.policies.robot.plan import Array
from trimtab.settings import Bounds, Natural, check_fields

Limit = NDArray[np.floating[Any]]

__all__ = ["FALLBACKS", "Damp", "Fallback", "Hold", "PlayOut", "SafeAction"]


@dataclass(frozen=True, kw_only=True)
class Fallback(ABC):
    """What is played without an observation, a plan or a finite action.

    Attributes:
        patience: ticks in a row without an observation on which the plan is still played. With 0,
            one missing observation drops the plan: the next observation gets a new one.
    """

    patience: Natural = 0

    def __post_init__(self) -> None:
        check_fields(self, "fallback")

    @abstractmethod
    def action(self, last: Array | None, planned: Array | None) -> Array | None:
        """Return the action ``[A]`` of a tick, or None if there is nothing to go by.

        Args:
            last: the action of the tick before ``[A]``; None at the start of an episode.
            planned: what the plan has for the tick ``[A]``; None if it has nothing.
        """

    def check(self, low: Limit, high: Limit) -> None:
        """Check that the fallback fits a robot with commands from ``low`` to ``high`` ``[A]``.

        Raises:
            TrimtabError: if not.
        """
        del low, high


@dataclass(frozen=True, kw_only=True)
class Hold(Fallback):
    """Repeat the last action: right for positions, dangerous for velocities and torques."""

    def action(self, last: Array | None, planned: Array | None) -> Array | None:
        """Return the last action."""
        del planned
        return last


@dataclass(frozen=True, kw_only=True)
class PlayOut(Fallback):
    """Play the plan to its end, and then repeat the last action."""

    def action(self, last: Array | None, planned: Array | None) -> Array | None:
        """Return the planned action, or else the last one."""
        return last if planned is None else planned


@dataclass(frozen=True, kw_only=True)
class SafeAction(Fallback):
    """Play a stated action, such as zero velocities.

    Without ``patience`` it is played at once, so that one lost observation stops the robot.

    Attributes:
        safe: the action ``[A]``, raw units.
    """

    safe: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            safe = tuple(float(x) for x in self.safe)
        except (TypeError, ValueError) as error:
            raise TrimtabError(f"fallback: safe={self.safe!r}: give a tuple of numbers") from error
        object.__setattr__(self, "safe", safe)
        super().__post_init__()

    def action(self, last: Array | None, planned: Array | None) -> Array | None:
        """Return the safe action."""
        del last, planned
        return np.array(self.safe, np.float32)

    def check(self, low: Limit, high: Limit) -> None:
        """Check that the safe action has the robot's length and is within its limits."""
        safe = np.array(self.safe, np.float32)
        if len(safe) != len(low) or beyond(safe, low, high).any():
            raise TrimtabError(
                f"fallback: safe={list(self.safe)}: give {len(low)} numbers within the limits of "
                f"the commands, {low.tolist()} to {high.tolist()}"
            )


@dataclass(frozen=True, kw_only=True)
class Damp(SafeAction):
    """Let the last action fade to the safe one: action = safe + keep (last - safe).

    Attributes:
        keep: share of the difference that is left after a tick, at least 0 and below 1.
    """

    keep: Annotated[float, Bounds(least=0, below=1)] = 0.8

    def action(self, last: Array | None, planned: Array | None) -> Array | None:
        """Return the last action, a step nearer to the safe one."""
        safe = super().action(last, planned)
        if last is None or safe is None:
            return safe
        nearer: Array = safe + np.float32(self.keep) * (last - safe)
        return nearer


FALLBACKS: dict[str, type[Fallback]] = {
    one.__name__: one for one in (Hold, PlayOut, SafeAction, Damp)
}
"""The fallbacks by the names that a log has for them."""
