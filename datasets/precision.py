"""What float32 rounds away of numbers that were stored more finely, such as time stamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Rounding", "losses", "rounding_of"]

_FEWEST_STEPS = 256  # of float32 within a dimension's range: 8 bits of what was measured
_NEGLIGIBLE = 1e-6  # of the whole range: such a change within an episode is noise
_SMALLEST = 1e-7  # of a unit: a smaller range is what a simulator's constant varies by

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rounding:
    """How far the dimensions of some rows were rounded, and how far they range; ``[D]`` each.

    Attributes:
        low: smallest values before they were rounded.
        high: largest values.
        within: largest range within one episode.
        error: largest difference between a value and its float32.
    """

    low: Numbers
    high: Numbers
    within: Numbers
    error: Numbers

    def joined(self, other: Rounding) -> Rounding:
        """Return what holds for the rows of both."""
        return Rounding(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            np.maximum(self.within, other.within),
            np.maximum(self.error, other.error),
        )

    def losses(self) -> dict[int, str]:
        """Return what is lost, by the dimension that loses most of its variation."""
        whole = self.high - self.low
        ranges = np.where(self.within > _NEGLIGIBLE * whole, self.within, whole)
        lost = (ranges > _SMALLEST) & (ranges < _FEWEST_STEPS * 2 * self.error)
        return {
            dimension: (
                f"its values range over {ranges[dimension]:.3g} near {self.high[dimension]:.10g}, "
                f"where float32 rounds by up to {self.error[dimension]:.2g}: nearly all of their "
                "variation is lost; subtract an offset from them before they are stored"
            )
            for dimension in np.flatnonzero(lost).tolist()
        }


def rounding_of(stored: Any, rounded: npt.NDArray[np.float32]) -> Rounding | None:
    """Return how rows ``[N, D]`` were rounded; None where their type cannot lose anything."""
    kind = getattr(stored, "dtype", None)
    if kind is None or rounded.ndim != 2 or not rounded.size or np.can_cast(kind, np.float32):
        return None
    rows = np.asarray(stored, np.float64)
    low, high = rows.min(axis=0), rows.max(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):  # infinity is refused elsewhere
        return Rounding(low, high, high - low, np.abs(rows - rounded).max(axis=0))


def losses(roundings: Iterable[Mapping[str, Rounding]]) -> list[tuple[str, str]]:
    """Return where a dataset lost precision, such as ``observation 3``, and what was lost.

    Args:
        roundings: of each episode, by the array's name.
    """
    whole: dict[str, Rounding] = {}
    for of_one in roundings:
        for name, rounding in of_one.items():
            whole[name] = whole[name].joined(rounding) if name in whole else rounding
    return [
        (f"{name.removesuffix('s')} {dimension}", what)
        for name, rounding in whole.items()
        for dimension, what in rounding.losses().items()
    ]
