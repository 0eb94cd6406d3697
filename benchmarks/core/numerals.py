"""Numbers as people read them: with the digits that tell them apart."""

from __future__ import annotations

import math

__all__ = [
    "decimals_for", "lone_number", "number_text", "rate_text", "score_words", "time_text",
]  # fmt: skip

_MOST_DECIMALS = 6  # from there on, powers of ten are easier to read than zeros


def decimals_for(value: float, low: float, high: float, least: int = 2) -> int:
    """Return the decimals that an estimate is shown with.

    They are ``least``, unless the interval is narrower than one unit of its last decimal: then as
    many as give the interval's width two digits. Without an interval, a value other than zero that
    is smaller than such a unit is shown with three digits.

    Args:
        value: the estimate.
        low: lower end of its interval; equal to ``high`` where it has none.
        high: upper end.
        least: decimals of an ordinary number.
    """
    width, digits = (high - low, 2) if low < high else (abs(value), 3)
    if not math.isfinite(width) or width == 0 or width >= 10.0**-least:
        return least
    return digits - 1 - math.floor(math.log10(width))


def lone_number(value: float) -> str:
    """Return a number of a line that has no interval beside it: two decimals, or three digits."""
    return number_text(value, decimals_for(value, value, value), thousands="")


def rate_text(rate: float) -> str:
    """Return a rate from 0 to 1 with the digits that tell it from both ends, two or more."""
    return number_text(rate, max(decimals_for(x, x, x) for x in (rate, 1.0 - rate)))


def time_text(seconds: float) -> str:
    """Return how long something takes, in the unit that gives it a few digits."""
    if 0 < seconds < 1:
        return "less than 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def score_words(return_: float | None, success: float | None, held_out: float | None = None) -> str:
    """Return what a line about a run says of its score: the success rate where there is one.

    Args:
        return_: mean return; None where no episode was played.
        success: success rate, or None.
        held_out: error on held-out episodes; None where there are none.
    """
    words = []
    if return_ is not None:
        played = f"return {lone_number(return_)}"
        words.append(played if success is None else f"success {rate_text(success)}")
    if held_out is not None:
        words.append(f"held-out error {lone_number(held_out)}")
    return ", ".join(words)


def number_text(
    value: float, decimals: int = 2, *, signed: bool = False, thousands: str = ","
) -> str:
    """Return a number with ``decimals`` decimals, and with no negative zero.

    With more than six decimals it is written with a power of ten, to the same decimal.

    Args:
        value: the number.
        decimals: how many; :func:`decimals_for` says how many tell estimates apart.
        signed: whether a positive number has a sign.
        thousands: what stands between thousands, ``","`` or nothing.
    """
    value, sign = round(value, decimals) + 0.0, "+" if signed else ""
    if decimals <= _MOST_DECIMALS:
        return f"{value:{sign}{thousands}.{decimals}f}"
    if value == 0:
        return f"{value:{sign}.0f}"
    return f"{value:{sign}.{max(0, decimals + math.floor(math.log10(abs(value))))}e}"
