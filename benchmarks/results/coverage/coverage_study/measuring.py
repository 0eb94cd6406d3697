"""What is measured of a situation: how often its intervals hold the truth, and their width."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.benchmarks.board.stats import Interval

NEW_DRAWS, OLD_DRAWS, RESAMPLES = 1000, 300, 400
"""Draws of a cell for the new and the old interval, and resamples of the old one."""


@dataclass(frozen=True)
class Cell:
    """One situation: how data are drawn, the truth, and both intervals of the data."""

    situation: str
    setting: str
    runs: int
    episodes: int
    truth: float
    draw: Callable[[np.random.Generator], Any]
    new: Callable[[Any], Interval]
    old: Callable[[Any], Interval]


@dataclass(frozen=True)
class Row:
    """What was measured of a cell."""

    situation: str
    setting: str
    runs: int
    episodes: int
    truth: float
    coverage: float
    width: float
    old_coverage: float
    old_width: float
    draws: int
    old_draws: int


def measure(cell: Cell, draws: int, old_draws: int) -> Row:
    """Return the coverage and mean width of a cell's intervals, always from the same draws."""
    name = f"{cell.situation}, {cell.setting}, {cell.runs}, {cell.episodes}"
    found = []
    for make, count in ((cell.new, draws), (cell.old, old_draws)):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        made = [make(cell.draw(rng)) for _ in range(count)]
        # Where both ends are the truth up to rounding, the truth is held.
        held = [x.low - 1e-9 <= cell.truth <= x.high + 1e-9 for x in made]
        found += [float(np.mean(held)), float(np.mean([x.high - x.low for x in made]))]
    return Row(
        cell.situation, cell.setting, cell.runs, cell.episodes, round(cell.truth, 6),
        *(round(x, 4) for x in found), draws, old_draws,
    )  # fmt: skip
