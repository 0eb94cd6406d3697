"""What a part of ``scripts/gpu.py`` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trimtab.benchmarks.speed.measure import Pair

__all__ = ["Part"]


@dataclass(frozen=True)
class Part:
    """A pair that is checked, and then timed.

    Attributes:
        pair: what is timed, and its peer.
        check: raises ``TrimtabError`` where our side does something else than it should; returns
            further numbers of the row.
    """

    pair: Pair
    check: Callable[[], Mapping[str, float]]
