"""Limits of position, velocity, acceleration and jerk, by a known answer and by brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.errors import TrimtabError
from trimtab.policies.robot.limits import Limiter, limited_velocity
from trimtab.policies.robot.log import TickLog
from trimtab.policies.runtime import Hold, Limits, RecedingHorizon, SafeAction

_module = load_module(Path(__file__).with_name("numbered.py"))
numbered = _module.numbered
WIDE = np.float32([-100.0]), np.float32([100.0])
RANGE = np.float32([-1.0]), np.float32([1.0])


def test_a_step_of_velocity_is_reached_without_overshoot() -> None:
    """V 2, A 10, J 5000 at 1 ms, a step to 1: the numbers of libfranka's limiter."""
    limiter = Limiter.of(
        Limits(velocity=2.0, acceleration=10.0, jerk=5000.0, of_velocities=True), *WIDE, 1e-3
    )
    limiter.begin(np.float32([0.0]))
    found = [limiter.apply(np.float32([1.0])).item() for _ in range(150)]
    assert np.allclose(found[:4], [0.005, 0.015, 0.025, 0.035], atol=1e-7)
    assert found[99] < 1.0 and found[100:] == [1.0] * 50


@pytest.mark.parametrize("period", [1e-3, 0.02])
@pytest.mark.parametrize("jerk", [np.inf, 5000.0, 40.0])
@pytest.mark.parametrize("most_acceleration", [10.0, 0.5])
def test_no_limit_is_passed_whatever_is_wanted(
    period: float, jerk: float, most_acceleration: float
) -> None:
    generator = np.random.default_rng(3)
    velocity, acceleration = np.zeros(4), np.zeros(4)
    limits = np.float64([0.1, 1.0, 2.0, 30.0])
    fastest = np.zeros(4)
    for tick in range(2000):
        if tick % 40 == 0:
            wanted = generator.uniform(-40, 40, size=4)
        before = velocity, acceleration
        velocity, acceleration = limited_velocity(
            wanted, velocity, acceleration, period=period,
            low=-limits, high=limits, most_acceleration=most_acceleration, most_jerk=jerk,
        )  # fmt: skip
        assert np.all(np.abs(velocity) <= limits + 1e-9)
        assert np.all(np.abs(velocity - before[0]) <= most_acceleration * period + 1e-9)
        assert np.all(np.abs(acceleration - before[1]) <= jerk * period + 1e-6)
        fastest = np.maximum(fastest, np.abs(velocity))
    assert np.all(fastest > 0.02)


def test_positions_change_no_faster_than_their_limits() -> None:
    period, low, high = 0.02, np.float32([-1.0, -2.0]), np.float32([1.0, 2.0])
    limits = Limits(velocity=(1.0, 5.0), acceleration=20.0, high=(0.5, 2.0))
    limiter = Limiter.of(limits, low, high, period)
    limiter.begin(np.float32([0.0, 0.0]))
    generator = np.random.default_rng(4)
    commands = np.repeat(generator.uniform(-3, 3, size=(20, 2)), 100, axis=0).astype(np.float32)
    played = np.stack([limiter.apply(command) for command in commands]).astype(np.float64)
    velocity = np.diff(played, axis=0, prepend=np.zeros((1, 2))) / period
    assert np.all(np.abs(velocity) <= np.float64([1.0, 5.0]) + 1e-4)
    assert np.all((played >= low) & (played <= [0.5, 2.0]))
    assert limiter.count > 100
    # A step is reached, to the bit, and never passed.
    goals = np.clip(commands, low, np.float32([0.5, 2.0]))
    assert np.array_equal(played[99::100], goals[99::100])
    starts = np.concatenate([np.zeros((1, 2)), played[99:-1:100]]).repeat(100, axis=0)
    assert np.all((goals - played) * np.sign(goals - starts) >= -1e-6)
    assert np.all(np.abs(np.diff(velocity, axis=0)) <= 20.0 * period + 1e-3)


def test_the_end_of_the_range_is_no_wall_to_run_into() -> None:
    """A goal that moves to the end ever faster and stops there, as a clipped plan does."""
    limiter = Limiter.of(Limits(velocity=2.0, acceleration=10.0), *RANGE, 0.02)
    limiter.begin(np.float32([0.0]))
    goals = np.minimum(0.0008 * np.arange(80.0) ** 2, 1.0).astype(np.float32)
    played = np.concatenate([[0.0], [limiter.apply(goal[None]).item() for goal in goals]])
    velocity = np.diff(played, prepend=0.0) / 0.02
    assert np.max(velocity) > 1.0 and played[-1] == 1.0 and np.all(played <= 1.0)
    assert np.all(np.abs(np.diff(velocity)) / 0.02 <= 10.0 + 1e-2)


def test_a_velocity_reaches_its_range_within_the_jerk() -> None:
    limits = Limits(velocity=2.0, acceleration=10.0, jerk=50.0, of_velocities=True)
    limiter = Limiter.of(limits, *RANGE, 0.02)
    limiter.begin(np.float32([0.0]))
    played = [limiter.apply(np.float32([5.0])).item() for _ in range(200)]
    acceleration = np.diff(played, prepend=[0.0, 0.0]) / 0.02
    assert played[-1] == pytest.approx(1.0, abs=1e-3) and max(played) <= 1.0
    assert np.all(np.abs(np.diff(acceleration)) / 0.02 <= 50.0 + 1e-2)


def test_after_ticks_that_were_left_out_the_robot_starts_from_rest() -> None:
    """Without a command it kept the last one: to go on as before would be a jerk."""
    runner = numbered(
        mode=RecedingHorizon(8), limits=Limits(velocity=100.0, acceleration=500.0)
    )  # 0.2 units a tick in a tick
    runner.reset(action=[0.0])
    ticks = (0, 1, 2, 3, 6, 7)
    played = [runner.step([5.0], tick=tick).item() for tick in ticks]
    assert np.allclose(np.diff(played, prepend=0.0), [0.2, 0.4, 0.6, 0.8, 0.2, 0.4], atol=1e-5)
    limits = Limits(velocity=9.0, acceleration=10.0, jerk=50.0, of_velocities=True)
    limiter = Limiter.of(limits, *WIDE, 0.02)
    limiter.begin(np.float32([0.0]))
    played = [limiter.apply(np.float32([9.0]), ticks).item() for ticks in (1, 1, 1, 3, 1)]
    assert np.allclose(np.diff(played, prepend=0.0), [0.02, 0.04, 0.06, 0.02, 0.04])


def test_a_robot_at_the_end_of_the_range_is_within_it() -> None:
    """The ends are rounded inward to float32: 0.1 as it is read lies beyond 0.1 as it is kept."""
    limiter = Limiter.of(Limits(velocity=1.0, low=-0.1, high=0.1), [-1.0], [1.0], 0.02)
    stands = np.float32([0.1])
    assert stands > limiter.high
    limiter.begin(stands)
    assert limiter.apply(stands) <= limiter.high
    SafeAction(safe=(0.1,)).check(limiter.low, limiter.high)
    for far in (0.1000001, 0.2):
        with pytest.raises(TrimtabError, match="give 1 numbers within"):
            SafeAction(safe=(far,)).check(limiter.low, limiter.high)
    with pytest.raises(TrimtabError, match="safe=.*nan"):
        SafeAction(safe=(np.nan,))
    with pytest.raises(TrimtabError, match="into the range by its own controller first"):
        limiter.begin(np.float32([0.2]))


def test_a_command_in_force_beyond_the_range_is_refused_where_rates_are_limited() -> None:
    runner = numbered(limit=1.0, limits=Limits(velocity=1.0))
    runner.reset(action=[1.0])
    with pytest.raises(TrimtabError, match="entry 0 is 90, beyond .* -1 to 1, .*check its units"):
        runner.reset(action=[90.0])  # degrees: the first command would leap by 89
    numbered(limit=1.0).reset(action=[90.0])


@pytest.mark.parametrize(
    "limits", [Limits(velocity=1.0), Limits(acceleration=1.0), Limits(low=-5.0, velocity=(1.0,))]
)
def test_no_command_is_given_until_the_one_in_force_is_told(limits: Limits) -> None:
    """From an unknown command, the first one would be a leap of any size."""
    runner = numbered(limits=limits, fallback=SafeAction(safe=(0.0,)))
    for obs in ([5.0], None):
        with pytest.raises(TrimtabError, match=r"in force is not known; write reset\(action=<what"):
            runner.step(obs)
        runner.reset()
    assert (runner.tick, +runner.counts) == (-1, {})
    runner.reset(action=[3.0])
    assert runner.step([5.0]).item() == pytest.approx(3.0, abs=0.0201)  # 1 a second, 50 Hz
    runner.reset()  # forgets it
    with pytest.raises(TrimtabError, match="not known"):
        runner.step([5.0])
    limiter = Limiter.of(limits, *WIDE, 0.02)
    with pytest.raises(TrimtabError, match="not known"):
        limiter.apply(np.float32([5.0]))


def test_limits_of_velocities_begin_at_rest_and_those_of_position_need_no_beginning() -> None:
    kind = {"acceleration": 10.0, "of_velocities": True}
    runner = numbered(limits=Limits(**kind))
    runner.reset()
    assert [runner.step([5.0]).item() for _ in range(2)] == pytest.approx([0.2, 0.4])
    runner.reset(action=[3.0])  # it still moves
    assert runner.step([5.0]).item() == pytest.approx(3.2)
    always_on = numbered(limits=Limits(**kind, low=1.0))  # zero is no command of this robot
    with pytest.raises(TrimtabError, match="not known"):
        always_on.step([5.0])
    assert numbered(limits=Limits(high=2.0)).step([5.0]).item() == 2.0


def test_commands_within_the_limits_keep_their_bits() -> None:
    limiter = Limiter.of(Limits(velocity=1e3, acceleration=1e6), *WIDE, 0.02)
    commands = np.random.default_rng(5).normal(size=(200, 1)).astype(np.float32)
    limiter.begin(commands[0])
    assert all(np.array_equal(limiter.apply(command), command) for command in commands)
    assert limiter.count == 0


def test_a_speed_that_float32_does_not_have_is_not_passed() -> None:
    limits = Limits(velocity=np.array([0.1, 0.3]), of_velocities=True)  # type: ignore[arg-type]
    wide = np.repeat(WIDE, 2, axis=1)
    limiter = Limiter.of(limits, *wide, 0.02)
    played = limiter.apply(np.float32([5.0, -5.0]))  # 0.1 as float32 is above 0.1
    assert np.all(np.abs(played.astype(np.float64)) <= [0.1, 0.3])
    assert played.tolist() == pytest.approx([0.1, -0.3])
    limiter.begin(played)  # what was commanded may be told as what is in force


def test_limits_may_be_arrays() -> None:
    limits = Limits(velocity=np.array([1.0, 2.0]), low=[-1, -1])  # type: ignore[arg-type]
    assert limits == Limits(velocity=(1.0, 2.0), low=(-1.0, -1.0))
    assert limits.tightened(Limits(velocity=1.5)).velocity == (1.0, 1.5)


def test_a_runner_limits_the_plan_and_the_fallback_from_the_command_in_force() -> None:
    runner = numbered(
        mode=RecedingHorizon(8),
        limits=Limits(velocity=25.0),  # half a unit in a tick of 50 Hz
        fallback=SafeAction(safe=(0.0,)),
    )
    runner.reset(action=[3.0])
    played = [runner.step([7.0]).item() for _ in range(3)]
    assert np.allclose(played, [3.5, 4.0, 4.5])
    assert np.allclose([runner.step(None).item() for _ in range(3)], [4.0, 3.5, 3.0])
    assert runner.counts["limited"] == 6
    assert np.allclose(runner.plan().actions[0], 13.0)  # the plan itself is not limited


class Interrupted(TickLog):
    """A log that Ctrl+C interrupts at tick 2, when its action is chosen and limited."""

    def tick(self, tick: int, *given: Any, **named: Any) -> None:
        if tick == 2:
            raise KeyboardInterrupt
        super().tick(tick, *given, **named)


def test_a_command_that_the_caller_never_got_is_not_the_one_in_force(tmp_path: Path) -> None:
    runner = numbered(
        mode=RecedingHorizon(8),
        limits=Limits(velocity=25.0),
        fallback=Hold(),
        log=Interrupted(tmp_path / "log", _module.contract(), {}),
    )
    for following in ([7.0], None):
        runner.reset(action=[3.0])
        assert [runner.step([7.0]).item() for _ in range(2)] == [3.5, 4.0]
        with pytest.raises(KeyboardInterrupt):
            runner.step([7.0])
        assert runner.step(following).item() == (4.0 if following is None else 4.5)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Limits(jerk=1.0), "acceleration beside it"),
        (lambda: Limits(acceleration=1.0, jerk=1.0), "of velocities alone"),
        (lambda: Limits(velocity=0.0), "velocity=0.0"),
        (lambda: Limits(velocity=float("nan")), "positive"),
        (lambda: Limiter.of(Limits(velocity=(1.0, 2.0, 3.0)), *WIDE, 0.1), "one number, or 1"),
        (lambda: Limiter.of(Limits(low=200.0), *WIDE, 0.1), "leave no command"),
        (lambda: Limits(low=float("nan")), "low=nan: give numbers"),
        (lambda: Limits(high=(True, 1.0)), "high=.True, 1.0.: give numbers"),
        (lambda: Limits(velocity=True), "velocity=True: give positive numbers"),
        (lambda: Limiter.of(Limits(velocity=1.0), *WIDE, None), "no control rate"),
        (lambda: Limits(velocity="fast"), "positive numbers"),  # type: ignore[arg-type]
    ],
)
def test_wrong_limits_are_refused(make: Any, word: str) -> None:
    with pytest.raises(TrimtabError, match=word):
        make()
