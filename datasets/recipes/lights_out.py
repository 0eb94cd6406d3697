"""Which buttons solve a Lights Out: each press turns a button and its neighbours by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["presses", "turned_by"]

Bits = NDArray[np.bool_]


def turned_by(rows: int, columns: int) -> Bits:
    """Return which buttons a press turns: ``[pressed, turned]``, both row by row."""
    places = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)
    distances = np.abs(places[:, None] - places[None]).sum(-1)
    turned: Bits = distances <= 1
    return turned


def presses(rows: int, columns: int, differing: Sequence[bool] | Bits) -> Bits | None:
    """Return the fewest buttons to press, each once and in any order, or None if none do.

    Presses add up modulo two, so that they solve a linear system over GF(2), by elimination. Where
    some presses change nothing together (on 4x4, sixteen ways), every way is weighed.

    Args:
        rows: rows of the board.
        columns: columns of the board.
        differing: for each button, row by row, whether it must be turned.
    """
    size = rows * columns
    system = np.concatenate(
        (turned_by(rows, columns).T, np.asarray(differing, bool)[:, None]), axis=1
    )
    pivots: list[int] = []
    for column in range(size):
        row = len(pivots)
        found = np.flatnonzero(system[row:, column])
        if len(found) == 0:
            continue
        system[[row, row + found[0]]] = system[[row + found[0], row]]
        others = system[:, column].copy()
        others[row] = False
        system[others] ^= system[row]
        pivots.append(column)
    if system[len(pivots) :, size].any():
        return None
    free = [column for column in range(size) if column not in pivots]
    best: Bits | None = None
    for chosen in itertools.product((False, True), repeat=len(free)):
        way = np.zeros(size, bool)
        way[free] = chosen
        way[pivots] = system[: len(pivots), size] ^ (
            np.logical_xor.reduce(system[: len(pivots), free] & np.array(chosen, bool), axis=1)
        )
        if best is None or way.sum() < best.sum():
            best = way
    return best
