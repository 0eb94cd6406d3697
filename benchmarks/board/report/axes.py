"""The axes of figures: where they end, their ticks, and the text of those."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trimtab.benchmarks.board.model import EnvTable
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["count_text", "nice_ticks", "score_scale", "tick_text"]


def score_scale(table: EnvTable, values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Return the ends of a score axis and the ticks between them."""
    if table.metric == "success":
        return 0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]
    room = 0.05 * ((max(values) - min(values)) or abs(max(values)) or 1.0)
    low, high = min(values) - room, max(values) + room
    return low, high, [tick for tick in nice_ticks(low, high, 6) if low <= tick <= high]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round numbers whose ends enclose ``low`` and ``high``."""
    span = (high - low) or abs(high) or 1.0
    rough = span / max(count - 1, 1)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(m * scale for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * scale >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, max(last, first + 1) + 1)]


def tick_text(value: float, ticks: Sequence[float]) -> str:
    """Return a tick's number with the decimals that tell it from the other ticks."""
    if abs(max(ticks, key=abs)) >= 10_000 or len(ticks) < 2:
        return count_text(value)
    step = ticks[1] - ticks[0]
    return number_text(value, max(0, -math.floor(math.log10(step) + 1e-9) + _halves(step)))


def _halves(step: float) -> int:
    """Return 1 for a step such as 0.25 or 2.5, which needs a decimal more than its size says."""
    return int(round(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 6) == 2.5)


def count_text(value: float) -> str:
    """Return a number with a letter for thousands, millions or billions."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
