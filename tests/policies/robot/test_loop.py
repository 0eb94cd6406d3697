"""The control loop, on a clock that moves only when something is said to take time."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from loading import load_module

from trimtab.errors import TrimtabError
from trimtab.policies.robot.loop import MonotonicClock, control_loop
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.policies.runtime import Hold, Limits, PolicyRunner

_numbered = load_module(Path(__file__).with_name("numbered.py"))
numbered = _numbered.numbered
PERIOD = 0.02  # of the numbered policy


class Simulated:
    """A clock whose time passes by ``pass_by`` alone; ``late`` says how late a sleep wakes."""

    def __init__(self, late: dict[int, float] | None = None) -> None:
        self.time, self.late, self.sleeps = 100.0, late or {}, 0

    def now(self) -> float:
        return self.time

    def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment) + self.late.get(self.sleeps, 0.0)
        self.sleeps += 1

    def pass_by(self, periods: float) -> None:
        self.time += periods * PERIOD


class Robot:
    """Observes the number of the tick that it is time for, and keeps what it is sent."""

    def __init__(self, clock: Simulated, slow: dict[int, float], usual: float = 0.25) -> None:
        self.clock, self.slow, self.usual = clock, slow, usual
        self.begun: list[float] = []
        self.sent: list[float] = []
        self.stops = 0

    def observe(self) -> list[float]:
        self.begun.append((self.clock.time - 100.0) / PERIOD)
        seen = float(int(self.begun[-1] + 1e-6))
        self.clock.pass_by(self.slow.get(int(seen), self.usual))
        return [seen]

    def act(self, action: Any) -> None:
        self.sent.append(action.item())
        self.clock.pass_by(0.25)

    def stop(self) -> None:
        self.stops += 1


def test_deadlines_are_absolute() -> None:
    clock = Simulated()
    robot, policy = Robot(clock, {}), numbered()
    report = control_loop(policy, robot.observe, robot.act, ticks=500, stop=robot.stop, clock=clock)
    assert robot.begun == pytest.approx(range(500), abs=1e-6)  # what a tick takes adds up to none
    assert robot.sent == [float(tick) for tick in range(500)]
    assert (report.played, report.skipped, report.missed) == (500, 0, 0)
    assert report.phases["observe"].p99 == pytest.approx(PERIOD / 4)
    assert report.phases["decide"].worst == 0.0
    assert (robot.stops, policy.tick) == (1, -1)


def test_lost_ticks_are_left_out_and_never_played_in_a_burst() -> None:
    clock = Simulated()
    robot = Robot(clock, {3: 2.5, 10: 0.9})
    report = control_loop(numbered(), robot.observe, robot.act, ticks=14, clock=clock)
    # Tick 3 ends at 5.75: 4 is left out, 5 begins late, 6 in time. Tick 10 ends at 11.15.
    assert robot.begun == pytest.approx([0, 1, 2, 3, 5.75, 6.25, 7, 8, 9, 10, 11.15, 12, 13])
    assert robot.sent == [float(tick) for tick in (0, 1, 2, 3, *range(5, 14))]
    assert (report.played, report.skipped) == (13, 1)
    # Tick 3 passed its deadline while it observed; 5 and 10 while they acted.
    assert [report.phases[name].missed for name in report.phases] == [0, 1, 0, 2]
    assert report.missed == 3
    assert report.phases["observe"].worst == pytest.approx(2.5 * PERIOD)
    assert "3 late" in str(report) and "deadline passed in 2" in str(report)


def test_a_late_wake_is_counted_where_it_happened() -> None:
    clock = Simulated(late={2: 1.5 * PERIOD, 4: 0.75 * PERIOD})
    robot = Robot(clock, {})
    report = control_loop(numbered(), robot.observe, robot.act, ticks=8, clock=clock)
    assert [report.phases[name].missed for name in report.phases] == [1, 0, 0, 1]
    assert report.phases["wake"].worst == pytest.approx(1.5 * PERIOD)
    assert robot.sent == [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]  # the plan goes on in time


def test_a_slow_policy_apart_leaves_the_loop_in_time() -> None:
    clock = Simulated()
    robot = Robot(clock, {})
    policy = numbered(iter([2] * 99), mode=RecedingHorizon(4), fallback=Hold())
    policy.reset(action=[-1.0])
    report = control_loop(policy, robot.observe, robot.act, ticks=20, clock=clock)
    assert (report.missed, report.counts["empty"]) == (0, 2)
    assert policy.last_counts == report.counts and not policy.counts
    policy.reset(action=[-1.0])  # for the next episode: no tick was played since
    assert policy.last_counts["empty"] == 2
    # The first plan begins two ticks late, at its first entry, since the robot stood still.
    assert robot.sent[:8] == [-1.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert robot.sent[8:] == [float(tick) for tick in range(8, 20)]


def test_an_error_stops_the_robot_and_the_old_plan_is_gone() -> None:
    clock = Simulated()
    robot, policy = Robot(clock, {}), numbered(limits=Limits(high=1.5))
    sent: list[float] = []

    def act(action: Any) -> None:
        sent.append(action.item())
        if len(sent) == 3:
            raise OSError("the bus is gone")

    with pytest.raises(OSError, match="bus"):
        control_loop(policy, robot.observe, act, ticks=9, stop=robot.stop, clock=clock)
    assert robot.stops == 1 and policy.tick == -1
    assert policy.last_counts["limited"] == 1  # there is no report of it
    assert policy.plan().actions.shape == (0, 1)
    assert gc.isenabled()


def test_the_clock_of_the_wall_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> float:
        raise AssertionError("the wall clock may be set back")

    monkeypatch.setattr(time, "time", asked)
    sent: list[float] = []
    report = control_loop(numbered(), lambda: [0.0], lambda one: sent.append(one.item()), ticks=3)
    assert report.played + report.skipped == 3 and len(sent) == report.played


class Noted(MonotonicClock):
    """The system's clock; notes what it says."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def now(self) -> float:
        self.told.append(super().now())
        return self.told[-1]


def test_a_thread_that_keeps_the_interpreter_to_itself_costs_ticks_that_are_counted() -> None:
    done = threading.Event()

    def hog() -> None:
        while not done.is_set():
            pass

    thread, interval = threading.Thread(target=hog), sys.getswitchinterval()
    policy, clock, played = numbered(), Noted(), list[int]()
    sys.setswitchinterval(0.03)  # more than a period
    thread.start()
    try:
        report = control_loop(
            policy, lambda: [0.0], lambda _: played.append(policy.tick), ticks=25, clock=clock
        )
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    start, *marks = clock.told  # four of each tick
    late = [
        end > start + (tick + 1) * PERIOD for tick, end in zip(played, marks[3::4], strict=True)
    ]
    assert report.missed == sum(late) > 0
    assert (report.played, report.skipped) == (len(played), 25 - len(played))
    assert played == sorted(set(played))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"ticks": 0}, "ticks=0"),
        ({"ticks": 1, "rate": 30.0}, "trained at 50 Hz"),
    ],
)
def test_a_wrong_loop_is_refused(settings: dict[str, Any], word: str) -> None:
    policy: PolicyRunner = numbered()
    with pytest.raises(TrimtabError, match=word):
        control_loop(policy, lambda: [0.0], lambda _: None, **settings)
    policy.step([0.0])
    with pytest.raises(TrimtabError, match="call its reset first"):
        control_loop(policy, lambda: [0.0], lambda _: None, ticks=1)
    policy.control_rate = None  # as of a task without a clock
    with pytest.raises(TrimtabError, match="rate=True: give a positive number"):
        control_loop(policy, lambda: [0.0], lambda _: None, ticks=1, rate=True)
