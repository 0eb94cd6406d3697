"""How the chunks of a policy become actions: which entries a tick plays, when a chunk is asked for.

A chunk has H entries and belongs to the tick of its observation, or to a later one if the robot
stood still until the answer came. The interval s is the number of ticks between two chunks that are
asked for. The answer may be d ticks late; d + s must not exceed H, or the plan ends too early.

Two modes tell the policy what is being played, so that the next chunk goes on from it: real-time
chunking and real-time iteration. Their bundles have inputs for it, which ``trimtab export
chunking=rtc`` and ``chunking=rti`` make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.policies.agent import PREVIOUS, RESTART, WEIGHTS, PolicyInputs
from trimtab.policies.memory import STATE
from trimtab.policies.robot.plan import Array, Chunk
from trimtab.settings import Bounds, Count, Natural, check_fields

Weights = NDArray[np.float64]

__all__ = [
    "MODES", "SCHEDULES", "Blended", "Mode", "RealTimeChunking", "RealTimeIteration",
    "RecedingHorizon", "TemporalEnsemble", "check_mode", "chunk_weights",
]  # fmt: skip

_PositiveShare = Annotated[float, Bounds(above=0, most=1)]


@dataclass
class Mode(ABC):
    """Chooses the action of every tick from the chunks that were received.

    An object holds the plan of one robot; a runner makes its own with the same settings.

    Attributes:
        interval: ticks from one chunk to the next that is asked for, at least 1.
        needs: inputs of the policy that the mode fills, and what ``trimtab export chunking=`` has
            to be for a bundle with them.
    """

    needs: ClassVar[tuple[tuple[str, ...], str]] = ((), "")
    interval: Count = 1
    _newest: Chunk | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "mode")

    def begin(self) -> None:
        """Forget all chunks."""
        self._newest = None

    def due(self, tick: int) -> bool:
        """Return whether a chunk is to be asked for with the observation of this tick."""
        return self._newest is None or tick >= self._newest.tick + self.interval

    def add(self, chunk: Chunk, now: int) -> None:
        """Take a chunk that may be played from tick ``now`` on; its earlier entries are past."""
        del now
        self._newest = chunk

    def inputs(self, tick: int) -> Mapping[str, Array]:
        """Return what a request at this tick tells the policy of the plan, by input, of one row."""
        del tick
        return {}

    @abstractmethod
    def at(self, tick: int) -> Array | None:
        """Return the action ``[A]`` that the plan has for a tick, or None if it has none."""


@dataclass
class RecedingHorizon(Mode):
    """Play the newest chunk; ask for the next one after ``interval`` ticks.

    With an interval of H it is open loop. If the answer is late, the old chunk is played until the
    new one comes, and the entries of the new one that are past are left out (naive asynchronous
    inference).
    """

    def at(self, tick: int) -> Array | None:
        """Return the entry of the newest chunk."""
        return None if self._newest is None else self._newest.at(tick)


@dataclass
class TemporalEnsemble(Mode):
    """Play the weighted mean of what all chunks say of a tick (ACT, Zhao et al. 2023).

    action = sum_i w_i p_i / sum_i w_i with w_i = exp(-m i), where i = 0 is the oldest chunk that
    covers the tick. So m > 0 favours old chunks. The weights go by rank and not by age: they differ
    once a chunk is missing.

    Attributes:
        m: decay of the weights.
    """

    m: Annotated[float, Bounds(least=-1e3, most=1e3)] = 0.01
    _chunks: list[Chunk] = field(default_factory=list, init=False, repr=False)

    def begin(self) -> None:
        """Forget all chunks."""
        super().begin()
        self._chunks = []

    def add(self, chunk: Chunk, now: int) -> None:
        """Keep a chunk as long as it covers a tick to come."""
        super().add(chunk, now)
        self._chunks = [*(one for one in self._chunks if one.end > now), chunk]

    def at(self, tick: int) -> Array | None:
        """Return the weighted mean of all that covers the tick."""
        covering = [action for one in self._chunks if (action := one.at(tick)) is not None]
        if not covering:
            return None
        weights = np.exp(-self.m * np.arange(len(covering)))  # the list has the oldest first
        mean: Array = (weights @ np.stack(covering) / weights.sum()).astype(np.float32)
        return mean


@dataclass
class Blended(Mode):
    """Pass from the old plan to a new chunk: new share r, old share 1 - r, where both have entries.

    With ``ramp`` = 0, r is ``share`` at every tick that both have (LeRobot's weighted average has
    0.7). Otherwise r rises from 1/(ramp + 1) at the first tick of the new chunk that is played by
    1/(ramp + 1) a tick to 1. Entries meet by their tick, so blending equal plans changes nothing.

    Attributes:
        share: of the new chunk, above 0 and at most 1.
        ramp: ticks until the new chunk is played alone.
    """

    share: _PositiveShare = 0.7
    ramp: Natural = 0
    _plan: Chunk | None = field(default=None, init=False, repr=False)

    def begin(self) -> None:
        """Forget the plan."""
        super().begin()
        self._plan = None

    def add(self, chunk: Chunk, now: int) -> None:
        """Blend a chunk into the plan from tick ``now`` on."""
        super().add(chunk, now)
        old, actions = self._plan, chunk.actions.copy()
        for tick in range(max(now, chunk.tick), chunk.end):
            before = None if old is None else old.at(tick)
            if before is not None:
                new = np.float32(self._share(tick - now))
                index = tick - chunk.tick
                # Not new a + (1 - new) b: that rounds where a and b are equal.
                actions[index] = before + new * (chunk.actions[index] - before)
        self._plan = Chunk(chunk.tick, actions)

    def at(self, tick: int) -> Array | None:
        """Return the entry of the blended plan."""
        return None if self._plan is None else self._plan.at(tick)

    def _share(self, ticks: int) -> float:
        return self.share if self.ramp == 0 else min(1.0, (ticks + 1) / (self.ramp + 1))


def _falling(delay: int, end: int, index: Weights) -> Weights:
    return np.clip((delay - 1 - index) / (end - delay + 1) + 1, 0, 1)


SCHEDULES: Mapping[str, Callable[[int, int, Weights], Weights]] = {
    "exp": lambda *given: (even := _falling(*given)) * np.expm1(even) / np.expm1(1),
    "linear": _falling,
    "ones": lambda delay, end, index: np.ones_like(index),
    "zeros": lambda delay, end, index: (index < delay).astype(np.float64),
}
"""How much a previous chunk binds between the entries that will have been played and its end: it
falls to 0 exponentially or evenly, or all of it binds, or nothing of it."""


def chunk_weights(delay: int, end: int, horizon: int, schedule: str = "exp") -> Array:
    """Return how much each action of a previous chunk binds the next one, ``[H]``.

    They are those of the public code of real-time chunking.

    Args:
        delay: entries that will have been played; they have weight 1. At most ``end`` have.
        end: the first entry that is free.
        horizon: length H of a chunk.
        schedule: of the entries between, a name of :data:`SCHEDULES`.
    """
    index = np.arange(horizon, dtype=np.float64)
    weights = SCHEDULES[schedule](min(delay, end), end, index)
    return np.where(index < end, weights, 0).astype(np.float32)


@dataclass
class RealTimeChunking(RecedingHorizon):
    """Play as :class:`RecedingHorizon`, and tell the policy what is played until it answers.

    Real-time chunking (Black et al. 2025, arXiv:2506.07339). The previous chunk is told from the
    tick of the observation on, with a weight for each action (:func:`chunk_weights`). How late the
    answer will be is estimated from the last ones, in ticks that were really played.

    Attributes:
        end: first entry of the new chunk that the old one does not bind; None: all that is left of
            the old one binds, which are H - interval.
        schedule: of the weights, a name of :data:`SCHEDULES`. A policy that was trained with a
            ``prefix`` looks at the weights of 1 alone.
        delay: ticks that answers are expected to be late until one was.
        quantile: of the delays of the last 20 answers, above 0 and at most 1.
    """

    needs = ((PREVIOUS, WEIGHTS), "rtc")
    end: Natural | None = None
    schedule: Literal["exp", "linear", "ones", "zeros"] = "exp"
    delay: Natural = 0
    quantile: _PositiveShare = 0.9
    _delays: deque[int] = field(default_factory=deque, init=False, repr=False)

    def begin(self) -> None:
        """Forget the plan, and how late answers were."""
        super().begin()
        self._delays = deque(maxlen=20)

    def add(self, chunk: Chunk, now: int) -> None:
        """Take a chunk, and note how many ticks were played since its observation."""
        if self._newest is not None:  # a robot that waited for its first plan has played nothing
            self._delays.append(now - chunk.tick)
        super().add(chunk, now)

    @property
    def expected_delay(self) -> int:
        """The ticks that the next answer is expected to be late."""
        if not self._delays:
            return self.delay
        return int(np.quantile(self._delays, self.quantile, method="higher"))

    def inputs(self, tick: int) -> Mapping[str, Array]:
        """Return the previous chunk, zeros behind its end, and the weights."""
        chunk = self._newest
        if chunk is None or tick >= chunk.end:
            return {}
        horizon, left = len(chunk.actions), chunk.end - tick
        previous = np.zeros_like(chunk.actions)
        previous[:left] = chunk.actions[horizon - left :]
        end = left if self.end is None else min(self.end, left)
        weights = chunk_weights(self.expected_delay, end, horizon, self.schedule)
        return {PREVIOUS: previous, WEIGHTS: weights}


@dataclass
class RealTimeIteration(RecedingHorizon):
    """Play as :class:`RecedingHorizon`, and let the sampler begin late, with the previous chunk.

    RTI-DP (Duan et al. 2025, arXiv:2508.05396). The chunk is told from the tick of the observation
    on; its last action stands in the entries behind its end.
    """

    needs = ((PREVIOUS, RESTART), "rti")

    def inputs(self, tick: int) -> Mapping[str, Array]:
        """Return the previous chunk, and that the sampler begins with it."""
        chunk = self._newest
        if chunk is None or tick >= chunk.end:
            return {}
        last = len(chunk.actions) - 1
        entries = np.minimum(np.arange(last + 1) + tick - chunk.tick, last)
        return {PREVIOUS: chunk.actions[entries], RESTART: np.ones(1, np.float32)}


MODES: dict[str, type[Mode]] = {
    one.__name__: one
    for one in (RecedingHorizon, TemporalEnsemble, Blended, RealTimeChunking, RealTimeIteration)
}
"""The modes by the names that a log has for them."""


def check_mode(
    mode: Mode, policy_inputs: PolicyInputs, *, horizon: int, act_steps: int, late: bool
) -> None:
    """Check that a mode fits a policy.

    Args:
        mode: of a robot.
        policy_inputs: what the policy reads.
        horizon: length H of a chunk.
        act_steps: actions of a chunk that were played in training.
        late: whether answers may come after the tick of their observation.

    Raises:
        TrimtabError: if not.
    """
    if mode.interval > horizon:
        few = f"{horizon} actions; give at most {horizon}" if horizon > 1 else "1 action; give 1"
        raise TrimtabError(f"mode: interval={mode.interval}: a chunk has {few}")
    needed, word = mode.needs
    if not set(needed) <= set(policy_inputs.parts):
        raise TrimtabError(
            f"mode: {type(mode).__name__}: the policy does not read {' and '.join(needed)}; make a "
            f"bundle that does by trimtab export chunking={word}"
        )
    kinds = {part.remembered for part in policy_inputs.parts.values()} - {""}
    # What a policy hands on itself is known as soon as its answer is.
    remembers = bool(kinds - {STATE})
    of_decisions = policy_inputs.history > 1 and not policy_inputs.every_tick
    if (of_decisions or kinds) and mode.interval != act_steps:
        raise TrimtabError(
            f"mode: interval={mode.interval}: the policy reads its own past decisions, which were "
            f"{act_steps} ticks apart in training; give interval={act_steps}"
        )
    if remembers and (late or not isinstance(mode, RecedingHorizon)):
        raise TrimtabError(
            "the policy reads what it decided and earned before, which is not known while an "
            "answer is late, and is not what is played of several chunks; let it decide within the "
            "tick, by RecedingHorizon"
        )
