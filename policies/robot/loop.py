"""A control loop with absolute deadlines on the monotonic clock.

Tick k is due at start + k period, whatever the ticks before it took. A tick that is late by less
than a period is played late; if more is lost, ticks are left out and counted, and never played in a
burst. The clock of the wall may be set at any time and has no effect.

This is no safety function: a program that hangs sends nothing, and its receiver must time out.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from trimtab.errors import TrimtabError
from trimtab.policies.robot.plan import Array
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.settings import fits

__all__ = ["PHASES", "Clock", "LoopReport", "MonotonicClock", "Phase", "control_loop"]

PHASES = ("wake", "observe", "decide", "act")
"""The parts of a tick: waking after it is due, the sensors, the policy, the motors."""


class Clock(Protocol):
    """Tells the time in seconds, and waits."""

    def now(self) -> float:
        """Return the time."""

    def sleep_until(self, moment: float) -> None:
        """Return once it is ``moment``; at once if that is past."""


class MonotonicClock:
    """The system's monotonic clock."""

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        """Sleep until a moment."""
        while (left := moment - time.monotonic()) > 0:
            time.sleep(left)


@dataclass(frozen=True)
class Phase:
    """How long one part of a tick took, in seconds.

    Attributes:
        p50: the median.
        p99: what one tick in a hundred exceeded.
        worst: the longest.
        missed: ticks whose deadline passed in this part.
    """

    p50: float
    p99: float
    worst: float
    missed: int


@dataclass(frozen=True)
class LoopReport:
    """What a control loop did.

    Attributes:
        played: ticks that were played.
        skipped: ticks that were left out, because their time had passed.
        missed: ticks that ended after the next one was due.
        phases: each part of a tick, by its name.
        counts: events of the policy (``PolicyRunner.counts``, which the loop's reset empties).
        outside: where the robot has left its workspace (``PolicyRunner.outside``); empty: nowhere.
    """

    played: int
    skipped: int
    missed: int
    phases: Mapping[str, Phase]
    counts: Mapping[str, int]
    outside: str = ""

    def __str__(self) -> str:
        """Return a few lines of text."""
        head = f"{self.played} ticks, {self.skipped} left out, {self.missed} late"
        lines = [
            f"  {name:<8} p50 {1e3 * one.p50:.2f} ms, p99 {1e3 * one.p99:.2f} ms, worst "
            f"{1e3 * one.worst:.2f} ms, deadline passed in {one.missed}"
            for name, one in self.phases.items()
        ]
        events = ", ".join(f"{name} {count}" for name, count in self.counts.items() if count)
        left = f"left the workspace: {self.outside}" if self.outside else ""
        return "\n".join([head, *lines, *(f"  {more}" for more in (events, left) if more)])


def control_loop(
    policy: PolicyRunner,
    observe: Callable[[], ArrayLike | Mapping[str, ArrayLike] | None],
    act: Callable[[Array], None],
    *,
    ticks: int,
    stop: Callable[[], None] = lambda: None,
    rate: float | None = None,
    clock: Clock | None = None,
) -> LoopReport:
    """Play a policy for a number of control ticks.

    At the end, also by an exception, ``stop`` is called once and the policy is reset, so that an
    old plan never resumes. Its events are then in ``policy.last_counts``, and in the report where
    there is one.

    Args:
        policy: reset, and not yet stepped.
        observe: returns the newest observation, or None if there is none; it must not wait.
        act: sends the action ``[A]``, raw units; it must not wait.
        ticks: number of ticks, those that are left out included.
        stop: brings the robot to rest, such as by a command to hold.
        rate: control ticks a second in Hz, if the bundle names none.
        clock: None for the system's monotonic clock.

    Returns:
        What took how long, and what was missed.

    Raises:
        TrimtabError: if the rate or the number of ticks is wrong, or as ``policy.step``.
    """
    period = 1.0 / _rate(policy, rate)
    if ticks < 1:
        raise TrimtabError(f"control loop: ticks={ticks}: give at least 1")
    if policy.tick >= 0:
        raise TrimtabError("control loop: the policy has been stepped; call its reset first")
    clock = MonotonicClock() if clock is None else clock
    durations: list[list[float]] = [[] for _ in PHASES]
    missed = [0] * len(PHASES)
    skipped = tick = 0
    try:
        with _no_collection():
            start = clock.now()
            while tick < ticks:
                due = start + tick * period
                clock.sleep_until(due)
                marks = [due, clock.now()]
                observation = observe()
                marks.append(clock.now())
                action = policy.step(observation, tick=tick)
                marks.append(clock.now())
                act(action)
                marks.append(clock.now())
                for part, (begun, ended) in enumerate(zip(marks[:-1], marks[1:], strict=True)):
                    durations[part].append(ended - begun)
                    missed[part] += begun <= due + period < ended
                following = max(tick + 1, math.floor((marks[-1] - start) / period + 1e-9))
                skipped += min(following, ticks) - tick - 1
                tick = following
        return LoopReport(
            played=len(durations[0]),
            skipped=skipped,
            missed=sum(missed),
            phases={
                name: Phase(float(np.median(one)), float(np.quantile(one, 0.99)), max(one), late)
                for name, one, late in zip(PHASES, durations, missed, strict=True)
            },
            counts=dict(policy.counts),
            outside=policy.outside,
        )
    finally:
        try:
            stop()
        finally:
            policy.reset()


def _rate(policy: PolicyRunner, given: float | None) -> float:
    """Return the control rate in Hz: the one that the policy was trained at."""
    known = policy.control_rate
    if known is None and given is None:
        raise TrimtabError("control loop: the bundle names no control rate; give rate=… in Hz")
    if known is not None and given not in (None, known):
        raise TrimtabError(
            f"control loop: rate={given}: the policy was trained at {known:g} Hz; leave rate out"
        )
    rate = known if given is None else given
    if not (fits(rate, float) and 0 < rate < math.inf):  # type: ignore[operator]
        raise TrimtabError(f"control loop: rate={given}: give a positive number of Hz")
    return float(rate)  # type: ignore[arg-type]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector of garbage, which may take milliseconds, out of the ticks."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
