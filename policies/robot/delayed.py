"""Policies whose answers come late, in simulated time: many robots side by side, from their seeds.

A simulator that waits for the policy hides what a delay costs. Here an answer to the observation of
tick k is usable at the first tick >= k + D / period, and the robots play on until then. D is a
number of seconds, or log-normal about it; nothing depends on how long the computer took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.policies.agent import Agent, ArrayObs
from trimtab.policies.robot.modes import Mode, check_mode
from trimtab.policies.robot.plan import Array
from trimtab.policies.robot.timeline import Timeline
from trimtab.settings import Bounds, check_fields

__all__ = ["DelayedAgent", "Latency", "Timing"]


@dataclass(frozen=True)
class Latency:
    """How late answers come, and how many observations do not come.

    Attributes:
        delay: seconds from an observation to the answer, the median.
        jitter: standard deviation of the delay's logarithm; 0 for a fixed delay.
        drop: share of ticks without an observation; the first tick of an episode always has one.
    """

    delay: Annotated[float, Bounds(least=0, most=1e6)] = 0.0
    jitter: Annotated[float, Bounds(least=0, most=10)] = 0.0
    drop: Annotated[float, Bounds(least=0, below=1)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "latency")
        if self.jitter and not self.delay:
            raise TrimtabError(f"latency: jitter={self.jitter}: it scales a delay; give one")

    def ticks(self, stream: np.random.Generator, period: float) -> int:
        """Return how many ticks of ``period`` seconds the next answer is late."""
        scale = math.exp(self.jitter * stream.standard_normal()) if self.jitter else 1.0
        return _ticks(self.delay * scale, period)

    def median_ticks(self, period: float) -> int:
        """Return how many ticks of ``period`` seconds the median answer is late."""
        return _ticks(self.delay, period)

    def observed(self, stream: np.random.Generator) -> bool:
        """Return whether the next tick has an observation."""
        return not self.drop or stream.random() >= self.drop


def _ticks(delay: float, period: float) -> int:
    return math.ceil(delay / period - 1e-9)  # a delay of one period is one tick


@dataclass(frozen=True)
class Timing:
    """How a policy is played in simulated time.

    Attributes:
        mode: makes the mode of one robot.
        latency: of its answers.
        horizon: length H of a chunk.
        act_steps: actions of a chunk that were played in training.
        period: of a control tick in seconds.
    """

    mode: Callable[[], Mode]
    latency: Latency
    horizon: int
    act_steps: int
    period: float

    def over(self, agent: Agent) -> DelayedAgent:
        """Return an agent that plays in simulated time, one tick at each ``act``."""
        return DelayedAgent(agent, self)


class DelayedAgent:
    """Plays a policy in N environments, a tick at a time, its answers late.

    An episode begins when its first plan is there, as on a robot that waits for it at rest. After
    that a robot without a plan repeats its last action.

    Args:
        agent: has the policy, its history and its noise.
        timing: how it is played.

    Raises:
        TrimtabError: if the mode does not fit the policy.
    """

    def __init__(self, agent: Agent, timing: Timing) -> None:
        self._agent, self._timing = agent, timing
        modes = [timing.mode() for _ in range(agent.rows)]
        late = timing.latency.delay > 0
        check_mode(
            modes[0], agent.policy_inputs, horizon=timing.horizon, act_steps=timing.act_steps,
            late=late,
        )  # fmt: skip
        self._lines = [Timeline(mode, timing.horizon) for mode in modes]
        self._answers: list[tuple[int, Array] | None] = [None] * agent.rows
        self._streams: list[np.random.Generator | None] = [None] * agent.rows
        self._last: Array | None = None  # [N, A]

    def reset(self, rows: Iterable[int] | None = None, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode, as ``Agent.reset``; delays have streams of their own of the seeds."""
        chosen = list(range(len(self._lines)) if rows is None else rows)
        self._agent.reset(chosen, seeds)
        for place, row in enumerate(chosen):
            self._lines[row].begin()
            self._lines[row].fail()  # no answer of the last episode is in flight
            self._answers[row] = None
            if seeds is not None:
                sequence = np.random.SeedSequence([seeds[place], 1])
                self._streams[row] = np.random.Generator(np.random.Philox(sequence))

    def act(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> Array:
        """Return the actions ``[N, 1, A]`` of one tick.

        Args:
            obs: current observations.
            where: ``[N]`` mask of the rows that play; None: all.
        """
        agent, timing, lines = self._agent, self._timing, self._lines
        playing = range(agent.rows) if where is None else np.flatnonzero(where).tolist()
        due, idle = np.zeros(agent.rows, np.bool_), np.zeros(agent.rows, np.bool_)
        for row in playing:
            line = lines[row]
            line.advance(line.tick + 1)
            self._land(row)
            seen = line.tick == 0 or timing.latency.observed(self._stream(row))
            due[row], idle[row] = seen and line.due, seen and not line.due
        if idle.any():
            agent.observe(obs, idle)
        if due.any():
            read, noise = agent.read(obs, due)
            for row in np.flatnonzero(due).tolist():
                for name, value in lines[row].mode.inputs(lines[row].tick).items():
                    read[name][row] = value
            chunks = agent.decide(read, noise)
            agent.decided(obs, chunks[:, : timing.act_steps], due)
            for row in np.flatnonzero(due).tolist():
                line = lines[row]
                late = timing.latency.ticks(self._stream(row), timing.period) if line.tick else 0
                line.ask()
                self._answers[row] = line.tick + late, chunks[row].copy()
                self._land(row)
            if self._last is None:
                self._last = np.zeros((agent.rows, chunks.shape[-1]), np.float32)
        assert self._last is not None  # every episode asks at its first tick
        for row in playing:
            planned = lines[row].planned()
            if planned is not None:
                self._last[row] = planned
        return self._last[:, None].copy()

    def rewarded(self, reward: NDArray[np.float64]) -> None:
        """Pass rewards to the memories, as ``Agent.rewarded``."""
        self._agent.rewarded(reward)

    def _land(self, row: int) -> None:
        """Add the answer of a row to its plan, if its time has come."""
        answer = self._answers[row]
        if answer is not None and answer[0] <= self._lines[row].tick:
            self._answers[row] = None
            self._lines[row].answer(answer[1])

    def _stream(self, row: int) -> np.random.Generator:
        stream = self._streams[row]
        if stream is None:
            raise TrimtabError("the agent's delays have no seed; call reset with seeds first")
        return stream
