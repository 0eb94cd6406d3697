"""Names of methods in figures: short enough, never two alike, and apart from one another."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["short_names", "spread"]


def short_names(labels: Sequence[str], limit: int) -> list[tuple[str, ...]]:
    """Return each label as one or two lines of at most ``limit`` letters, no two alike.

    What does not fit loses its middle, because the marks that tell two apart stand at the end.
    """
    found = [_lines(label, limit) for label in labels]
    for place, name in enumerate(found):
        if name in found[:place]:
            number = f" #{place + 1}"
            found[place] = (*name[:-1], name[-1][: limit - len(number)] + number)
    return found


def _lines(label: str, limit: int) -> tuple[str, ...]:
    """Return a label in at most two lines, broken where it has a space."""
    if len(label) <= limit:
        return (label,)
    broken = textwrap.wrap(label, limit, break_on_hyphens=False, break_long_words=False)
    head, *rest = broken
    tail = " ".join(rest)
    return tuple(_cut(line, limit) for line in (head, tail) if line)


def _cut(line: str, limit: int) -> str:
    """Return a line without its middle, where it is too long."""
    if len(line) <= limit:
        return line
    end = (limit - 1) * 2 // 3
    return f"{line[: limit - 1 - end]}…{line[-end:]}"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least ``gap`` apart within the limits, near the sorted wanted ones."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else max(place, low))
    ceiling = max(high, low + gap * (len(places) - 1))
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places
