"""What a robot gets last when the process of its policy raises, hangs, is stopped or killed.

Each sender is a process of its own with the control loop; the robots are here. A robot's time is
its number of ticks, which passes with each command until the fault, and with each look from then
on; and a sender is woken once its robot rests. So no test hangs on how busy the machine is.
"""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from loading import load_module
from onnx import TensorProto, helper

from trimtab.errors import TrimtabError
from trimtab.policies.runtime import CommandWatchdog, Damp, Hold, PlayOut, SafeAction

model_of = load_module(Path(__file__).with_name("numbered.py")).model_of
SENDER = Path(__file__).with_name("sender.py")
TIMEOUT = 25.0  # of the robot's watchdog, in ticks: whole numbers do not round
REST = -9.0  # what the robot's watchdog plays
FAULT_AT, HORIZON, STOPPED, HELD = 20, 8, -1.0, -7.0  # of the sender
FAULTS = {
    "raise": FAULT_AT + 1, "nan": math.inf, "hang": FAULT_AT, "SIGSTOP": FAULT_AT,
    "SIGKILL": FAULT_AT,
}  # fmt: skip
"""How many commands each sender has sent by its fault, that of its stop included."""


def graph() -> bytes:
    """Return a graph whose entry i is obs + i, and NaN where obs is negative."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("obs", [1]), ("noise", [1]), ("action", [HORIZON, 1]))
    ]
    steps = np.arange(HORIZON, dtype=np.float32).reshape(1, HORIZON, 1)
    constants = {"steps": steps, "zero": np.float32([0.0]), "axes": np.int64([2])}
    nodes = [
        helper.make_node("Sqrt", ["obs"], ["root"]),
        helper.make_node("Add", ["root", "noise"], ["both"]),
        helper.make_node("Mul", ["both", "zero"], ["nothing"]),
        helper.make_node("Add", ["obs", "nothing"], ["first"]),
        helper.make_node("Unsqueeze", ["first", "axes"], ["wide"]),
        helper.make_node("Add", ["wide", "steps"], ["action"]),
    ]
    return model_of(nodes, ports, constants)


class Robot:
    """Receives the commands of one sender; its watchdog decides what the motors get.

    Attributes:
        received: tick and value of every command.
        log: what the motors got, a value a tick.
    """

    def __init__(self, fault: str, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SENDER, fault, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.awaited = FAULTS[fault]
        self.pipe = self.process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self.watchdog = CommandWatchdog(SafeAction(safe=(REST,)), TIMEOUT)
        self.watchdog.begin([0.0])
        self.received: list[tuple[int, float]] = []
        self.log: list[float] = []

    def tick(self) -> None:
        now = len(self.log)
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            data = b""
        if not data and len(self.received) < self.awaited:
            return
        for (value,) in struct.iter_unpack("<d", data):
            self.received.append((now, value))
            self.watchdog.receive([value], now)
        self.log.append(self.watchdog.command(now).item())

    @property
    def rested(self) -> int:
        """The first tick on which the watchdog's fallback was played."""
        return self.log.index(REST)

    def before(self) -> list[tuple[int, float]]:
        return [one for one in self.received if one[0] < self.rested]


@pytest.fixture(scope="module")
def robots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Robot]]:
    """All robots side by side, until all that is to be seen has happened."""
    model = tmp_path_factory.mktemp("stops") / "policy.onnx"
    model.write_bytes(graph())
    robots = {fault: Robot(fault, model) for fault in FAULTS}
    deadline = time.monotonic() + 60.0
    woken = False
    try:
        while time.monotonic() < deadline:
            time.sleep(0.01)
            for robot in robots.values():
                robot.tick()
            hung, stopped = robots["hang"], robots["SIGSTOP"]
            if hung.watchdog.expired and stopped.watchdog.expired and not woken:
                woken = True
                os.write(hung.process.stdin.fileno(), b"\n")  # type: ignore[union-attr]
                stopped.process.send_signal(signal.SIGCONT)
            if (
                all(robots[fault].watchdog.expired for fault in FAULTS if fault != "nan")
                and all(robots[fault].watchdog.refused > 20 for fault in ("hang", "SIGSTOP"))
                and [value for _, value in robots["nan"].received][-20:] == [HELD] * 20
            ):
                break
        yield robots
    finally:
        for robot in robots.values():
            robot.process.kill()
            robot.process.communicate()


@pytest.mark.parametrize("fault", ["raise", "hang", "SIGSTOP", "SIGKILL"])
def test_the_robot_rests_after_the_time_of_its_watchdog(
    fault: str, robots: dict[str, Robot]
) -> None:
    robot = robots[fault]
    last = robot.before()[-1][0]
    assert robot.rested - last == TIMEOUT + 1
    assert set(robot.log[robot.rested :]) == {REST}


@pytest.mark.parametrize("fault", ["hang", "SIGSTOP", "SIGKILL"])
def test_a_sender_that_is_held_up_sends_nothing_more(fault: str, robots: dict[str, Robot]) -> None:
    robot = robots[fault]
    assert [value for _, value in robot.before()] == list(range(FAULT_AT))
    assert robot.log[robot.rested - 1] == FAULT_AT - 1


@pytest.mark.parametrize("fault", ["hang", "SIGSTOP"])
def test_what_a_sender_sends_after_it_was_held_up_is_not_played(
    fault: str, robots: dict[str, Robot]
) -> None:
    robot = robots[fault]
    later = robot.received[len(robot.before()) :]
    assert len(later) == robot.watchdog.refused > 20
    assert later[0][1] == FAULT_AT  # it has observed anew: its own old plan is past
    assert robot.log[-1] == REST


def test_a_policy_that_raises_ends_with_the_command_of_stop(robots: dict[str, Robot]) -> None:
    robot = robots["raise"]
    assert [value for _, value in robot.received] == [*range(FAULT_AT), STOPPED]
    assert robot.log[robot.rested - 1] == STOPPED


def test_nan_is_never_sent_and_the_plan_is_played_to_its_end(robots: dict[str, Robot]) -> None:
    robot = robots["nan"]
    sent = [value for _, value in robot.received]
    assert sent[:FAULT_AT] == list(range(FAULT_AT))
    held = sent.index(HELD)
    assert FAULT_AT <= held < FAULT_AT + HORIZON  # in the ticks of one plan
    assert sent[FAULT_AT:held] == sorted(set(sent[FAULT_AT:held]))
    assert set(sent[held:]) == {HELD} == {robot.log[-1]}
    assert not robot.watchdog.expired and REST not in robot.log


def test_the_sender_of_this_test_is_as_this_test_says() -> None:
    sender = load_module(SENDER)
    assert (sender.FAULT_AT, sender.HORIZON) == (FAULT_AT, HORIZON)
    assert (sender.STOPPED, sender.HELD) == (STOPPED, HELD)


def test_a_watchdog_waits_for_the_first_command_and_takes_no_bad_one() -> None:
    watchdog = CommandWatchdog(Damp(safe=(0.0, 0.0), keep=0.5), timeout=0.25)
    watchdog.begin([1.0, 1.0])
    assert watchdog.command(100.0).tolist() == [1.0, 1.0]
    watchdog.receive([4.0, -4.0], 100.0)
    bads = {"NaN": [math.nan, 0.0], "shape": [1.0], "give numbers": "no"}
    for count, (told, bad) in enumerate(bads.items()):
        watchdog.receive(bad, 100.2)
        assert watchdog.refused == count + 1 and told in watchdog.why
    assert watchdog.command(100.25).tolist() == [4.0, -4.0]
    assert watchdog.command(100.26).tolist() == [2.0, -2.0]
    watchdog.receive([4.0, -4.0], 100.27)
    assert watchdog.command(100.28).tolist() == [1.0, -1.0]
    assert (watchdog.refused, watchdog.expired) == (4, True) and "time-out" in watchdog.why
    watchdog.begin([1.0, -1.0])
    assert (watchdog.refused, watchdog.why) == (0, "")
    watchdog.receive([2.0, 2.0], 200.0)
    assert watchdog.command(200.1).tolist() == [2.0, 2.0]


def test_a_watchdog_that_has_not_begun_gives_its_safe_action_or_says_what_to_call() -> None:
    for fallback in (SafeAction(safe=(0.5,)), Damp(safe=(0.5,))):
        watchdog = CommandWatchdog(fallback, timeout=0.1)
        for now in (0.0, 1.0):
            watchdog.receive([7.0], now)  # from where the robot stands it may be a leap
            assert watchdog.command(now).tolist() == [0.5]
        assert (watchdog.refused, watchdog.expired) == (2, False) and "call begin" in watchdog.why
        watchdog.begin([1.0])
        watchdog.receive([2.0], 5.0)
        assert watchdog.command(5.0).tolist() == [2.0]
    for fallback in (Hold(), PlayOut()):
        watchdog = CommandWatchdog(fallback, timeout=0.1)
        watchdog.receive([7.0], 0.0)
        with pytest.raises(TrimtabError, match=r"call begin\(.*\) first; (Hold|PlayOut) has none"):
            watchdog.command(1.0)
        assert watchdog.refused == 1


def test_a_command_after_the_time_is_too_late_even_if_nobody_looked() -> None:
    watchdog = CommandWatchdog(Hold(), timeout=0.25)
    watchdog.begin([0.0])
    watchdog.receive([1.0], 0.0)
    watchdog.receive([2.0], 0.3)
    assert watchdog.command(0.3).tolist() == [1.0]


def test_a_wrong_watchdog_is_refused() -> None:
    for wrong in (math.nan, True):
        with pytest.raises(TrimtabError, match=f"timeout={wrong}"):
            CommandWatchdog(Hold(), wrong)
    with pytest.raises(TrimtabError, match="give 2 numbers"):
        CommandWatchdog(SafeAction(safe=(0.0,)), 0.1).begin([0.0, 0.0])
    with pytest.raises(TrimtabError, match="^action"):
        CommandWatchdog(Hold(), 0.1).begin([math.nan])
