"""Which stored rows are drawn as the starts of windows, and how often."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.sources.weighting import WeightedEpisodes
from trimtab.errors import TrimtabError

__all__ = ["Starts"]


class Starts:
    """Draws rows by their place, counted from the oldest row; all rows alike.

    Attributes:
        some_left_out: whether there are rows that no batch has.

    Args:
        left_out: rows that are never drawn and that no batch has, oldest first.
        weighted: draws the other rows, counted without those left out; None: all alike.
    """

    def __init__(
        self,
        left_out: npt.ArrayLike = (),
        weighted: WeightedEpisodes | None = None,
    ) -> None:
        self._left_out = np.asarray(left_out, dtype=np.int64)
        self.some_left_out = len(self._left_out) > 0
        # The k-th row that is left is row k plus the left-out rows before it.
        self._passed = self._left_out - np.arange(len(self._left_out))
        self._weighted = weighted

    @classmethod
    def of_episodes(
        cls,
        lengths: npt.NDArray[np.int64],
        whole: npt.NDArray[np.bool_],
        weights: npt.ArrayLike | None,
        id: str,
    ) -> Starts:
        """Return how a dataset's rows are drawn, which are its episodes one after another.

        Args:
            lengths: ``[E]`` steps of each episode.
            whole: ``[E]`` whether all of them are drawn; the last one is not where this is false.
            weights: ``[E]`` with which each step of an episode is drawn; None: all alike.
            id: the dataset's, for errors.

        Raises:
            TrimtabError: if no row is left, or the weights do not fit.
        """
        left_out = (np.cumsum(lengths) - 1)[~whole]
        if len(left_out) == lengths.sum():
            raise TrimtabError(
                f"dataset {id}: none of its steps has a recorded next observation, so that no "
                "value can be learned from it; clone it instead"
            )
        weighted = None if weights is None else WeightedEpisodes(lengths - ~whole, weights)
        return cls(left_out, weighted)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these starts from others; empty where every row is drawn alike."""
        weighted = {} if self._weighted is None else {"weights": self._weighted.digest}
        left_out = {"left_out": len(self._left_out)} if self.some_left_out else {}
        return {**weighted, **left_out}

    def draw(
        self, generator: np.random.Generator, stored: int, count: int
    ) -> npt.NDArray[np.int64]:
        """Return places ``[count]`` of drawn rows, counted from the oldest of ``stored`` rows."""
        if self._weighted is None:
            start = generator.integers(stored - len(self._left_out), size=count)
        else:
            start = self._weighted.draw(generator, count)
        if self.some_left_out:
            start += self._passed.searchsorted(start, side="right")
        return start
