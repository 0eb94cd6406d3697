"""What an agent remembers of an episode for a policy that reads more than what is observed now.

A policy says what it wants by parts of its input (``Part.remembered``), each with its length in its
shape. An agent keeps one memory for each of them, begins it anew with every episode, and puts it
beside what is observed. It needs numpy alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.observations import REMEMBERED, Part

__all__ = ["MEMORIES", "STATE", "Memory", "NetworkState", "following", "state_parts"]

Array = NDArray[np.float32]
Rows = NDArray[np.bool_]


class Memory(ABC):
    """What is remembered of N rows for one part, ``[N, *part.shape]``, the newest last.

    Attributes:
        chosen: whether the policy's user may say what stands there as an episode begins.
        usual: lower and upper limit of what usually stands there, for rows that prove a bundle.
        values: what is remembered, in double precision, so that sums over an episode are exact.

    Args:
        rows: number N of environments.
        part: what the policy reads.
    """

    chosen: ClassVar[bool] = False
    usual: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(self, rows: int, part: Part) -> None:
        self.values: NDArray[np.float64] = np.full((rows, *part.shape), part.given, np.float64)

    def begin(self, rows: Any, start: Array) -> None:
        """Begin an episode in some rows with what stands before it, of one row."""
        self.values[rows] = start

    def read(self) -> Array:
        """Return what the policy reads, ``[N, *part.shape]``."""
        return self.values.astype(np.float32)

    @abstractmethod
    def decided(self, obs: Array, chunk: Array, rows: Rows) -> None:
        """Take account of a decision.

        Args:
            obs: what was observed, as one vector a row ``[N, O]``.
            chunk: what was decided, as much as is played of it, ``[N, act_steps, A]``.
            rows: ``[N]`` which rows have decided.
        """

    def rewarded(self, reward: NDArray[Any]) -> None:
        """Take account of rewards ``[N]``; most memories need none."""
        del reward

    def _push(self, newest: NDArray[Any], rows: Rows) -> None:
        self.values[rows, :-1] = self.values[rows, 1:]
        self.values[rows, -1] = newest[rows]


class PastObservations(Memory):
    """Observations of the decisions before this one, ``[N, L, O]``."""

    def decided(self, obs: Array, chunk: Array, rows: Rows) -> None:
        """Keep what was observed."""
        self._push(obs, rows)


class PastActions(Memory):
    """Chunks of the decisions before this one, ``[N, L, H, A]``; the last action played repeats."""

    def decided(self, obs: Array, chunk: Array, rows: Rows) -> None:
        """Keep what was decided."""
        lacking = self.values.shape[2] - chunk.shape[1]
        self._push(np.pad(chunk, ((0, 0), (0, lacking), (0, 0)), mode="edge"), rows)


class ReturnsToGo(Memory):
    """What was still to be collected at the last decisions, ``[N, L]``, the one of now included.

    It starts with the return that is asked for and falls by each reward. Where no rewards are
    reported, it stays as it is.
    """

    chosen = True

    def __init__(self, rows: int, part: Part) -> None:
        super().__init__(rows, part)
        self._begun = np.zeros(rows, np.bool_)  # what came before the first decision is no reward

    def begin(self, rows: Any, start: Array) -> None:
        """Ask for a return."""
        super().begin(rows, start)
        self._begun[rows] = False

    def decided(self, obs: Array, chunk: Array, rows: Rows) -> None:
        """Make room for what is to be collected after this decision."""
        self._push(self.values[:, -1], rows)
        self._begun |= rows

    def rewarded(self, reward: NDArray[Any]) -> None:
        """Take off what was collected."""
        self.values[self._begun, -1] -= reward[self._begun]


class NetworkState(Memory):
    """What the policy itself hands on from one decision to the next, ``[N, S]``.

    A recurrent network's hidden state, its last output, its clock. The policy computes the next one
    (``PolicyInputs.advance``), and an agent keeps it.
    """

    def decided(self, obs: Array, chunk: Array, rows: Rows) -> None:
        """Wait for :meth:`keep`: the state is no function of what was observed and decided."""

    def keep(self, state: Array, rows: Rows) -> None:
        """Keep the state ``[N, S]`` after a decision of some rows."""
        self.values[rows] = state[rows]


class Steps(Memory):
    """Decisions of the episode before this one, ``[N, 1]``."""

    usual = (0.0, 100.0)

    def decided(self, obs: Array, chunk: Array, rows: Rows) -> None:
        """Count the decision."""
        self.values[rows] += 1


MEMORIES: Mapping[str, type[Memory]] = dict(
    zip(REMEMBERED, (PastObservations, PastActions, ReturnsToGo, Steps, NetworkState), strict=True)
)
"""The kinds of memory by the names that parts ask for them with."""

STATE = "state"
"""The name of the kind that the policy computes itself."""


def state_parts(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return the parts that a policy hands on to its own next decision."""
    return {name: part for name, part in parts.items() if part.remembered == STATE}


def following(part: str) -> str:
    """Return what a graph calls the next value of a part that it hands on."""
    return f"next_{part}"
