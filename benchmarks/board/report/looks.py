"""How methods are told apart in a figure: colours, and turns of lines that lie on one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

__all__ = ["COLOURS", "LIGHT", "colours_of", "dashes", "swelling", "turns"]

LIGHT = (
    "#0066a6", "#d55e00", "#007a50", "#c2417f", "#6b5200", "#1591ab", "#7757d9", "#2b333d",
)  # fmt: skip
"""Colours for light ground, each with three times less light than it. No two are closer than 15
units of CIELAB, nor are they to the eyes of those who lack red or green."""
COLOURS = len(LIGHT)
"""Number of colours, and so the most methods that a panel names."""

_STROKE = 8.0  # length of a dash, in pixels or points
_SAMPLES = 64  # places at which two lines are compared
_HIDDEN = 0.4  # of the shorter line: how much of it another has to cover
Line = Sequence[tuple[float, float]]


def colours_of(panels: Sequence[Sequence[str]]) -> list[dict[str, int]]:
    """Return for each panel a colour number of each method that it names, all different.

    A method keeps its colour from panel to panel, unless another that is before it has the same.

    Args:
        panels: labels of methods, at most :data:`COLOURS` a panel.
    """
    usual: dict[str, int] = {}
    used: Counter[int] = Counter()
    found = []
    for labels in panels:
        chosen: dict[str, int] = {}
        for label in labels:
            if label in usual and usual[label] not in chosen.values():
                chosen[label] = usual[label]
        # Colours that somebody of this panel's company has elsewhere are taken last.
        company = {usual[other] for p in panels if set(p) & set(labels) for other in p
                   if other in usual}  # fmt: skip
        for label in labels:
            if label not in chosen:
                free = set(range(COLOURS)) - set(chosen.values())
                chosen[label] = min(free, key=lambda c: (c in company, used[c], c))
                usual.setdefault(label, chosen[label])
                used[chosen[label]] += 1
        found.append({label: chosen[label] for label in labels})
    return found


def turns(lines: Sequence[Line], near: float = 1.5) -> list[tuple[int, int]]:
    """Return for each line its turn among those that lie on it, and how many turns there are.

    A line that stands free has turn 0 of 1. Of lines that cover one another for a good part of the
    shorter one, only the last that is drawn would be seen; drawn in turns, each as a dash in the
    others' gaps, all are.

    Args:
        lines: corners (x, y) of each, in the order of x.
        near: distance below which two lines cannot be told apart, in the unit of the corners.
    """
    taken: list[int] = []
    group = list(range(len(lines)))  # of all that are joined by lines between them
    for second in range(len(lines)):
        meets = [first for first in range(second) if _covered(lines[first], lines[second], near)]
        others = {taken[first] for first in meets}
        taken.append(next(turn for turn in range(len(lines)) if turn not in others))
        joined = {group[first] for first in meets}
        group = [second if which in joined else which for which in group]
    counts = [
        1 + max(turn for turn, which in zip(taken, group, strict=True) if which == own)
        for own in group
    ]
    return list(zip(taken, counts, strict=True))


def _covered(one: Line, other: Line, near: float) -> bool:
    """Whether two lines are nearly the same for a good part of the shorter one."""
    ours, theirs = np.array(one, np.float64), np.array(other, np.float64)
    low, high = max(ours[0, 0], theirs[0, 0]), min(ours[-1, 0], theirs[-1, 0])
    if high < low:
        return False
    at = np.linspace(low, high, _SAMPLES)
    apart = np.abs(np.interp(at, *ours.T) - np.interp(at, *theirs.T))
    shorter = min(ours[-1, 0] - ours[0, 0], theirs[-1, 0] - theirs[0, 0])
    common = (high - low) / shorter if shorter > 0 else 1.0
    return bool((apart < near).mean() * common >= _HIDDEN)


def swelling(turn: tuple[int, int]) -> float:
    """Return how much larger the marks of a line are, so that they show below those of later turns.

    It is in units of the marks' usual radius.
    """
    place, count = turn
    return 0.0 if count == 1 else min(0.6, 1.2 / (count - 1)) * (count - 1 - place)


def dashes(turn: tuple[int, int]) -> tuple[float, tuple[float, float]] | None:
    """Return the offset and the (dash, gap) of a line at its turn; None for a line that is whole.

    Along one path the dashes of all turns fill it without a gap and without an overlap.
    """
    place, count = turn
    if count == 1:
        return None
    return (-_STROKE * place) % (_STROKE * count), (_STROKE, _STROKE * (count - 1))
