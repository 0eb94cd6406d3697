"""Robots in simulated time: every tick plays its own number, whatever is late or missing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import Part
from trimtab.policies.agent import PREVIOUS, WEIGHTS, Agent, PolicyInputs
from trimtab.policies.robot.delayed import DelayedAgent, Latency, Timing
from trimtab.policies.robot.modes import (
    Blended,
    Mode,
    RealTimeChunking,
    RecedingHorizon,
    TemporalEnsemble,
)

HORIZON, PERIOD = 8, 0.02
Array = NDArray[np.float32]


def numbered(obs: Array, noise: Array) -> Array:
    """The chunk of an observation k is k, k + 1, ...; thousands of it name the episode."""
    del noise
    chunk: Array = obs[:, None] + np.arange(HORIZON, dtype=np.float32)[:, None]
    return chunk


def delayed(make: Callable[[], Mode], latency: Latency, rows: int = 3) -> DelayedAgent:
    agent = Agent(numbered, rows, PolicyInputs((1,)), act_steps=4)
    timing = Timing(make, latency, HORIZON, 4, PERIOD)
    found = timing.over(agent)
    found.reset(seeds=list(range(rows)))
    return found


def played(agent: DelayedAgent, ticks: int, rows: int = 3) -> Array:
    return np.stack(
        [agent.act(np.full((rows, 1), tick, np.float32))[:, 0, 0] for tick in range(ticks)]
    )


@pytest.mark.parametrize("ticks", [0, 1, 2.5, 4])
def test_every_tick_plays_its_own_number_in_every_mode(ticks: float) -> None:
    makes: list[Callable[[], Mode]] = [
        lambda: RecedingHorizon(4), TemporalEnsemble, lambda: Blended(4, ramp=2),
    ]  # fmt: skip
    for make in makes:
        found = played(delayed(make, Latency(ticks * PERIOD)), 50)
        assert np.allclose(found, np.arange(50)[:, None], atol=1e-4)


def told(obs: Mapping[str, Array], noise: Array) -> Array:
    """As :func:`numbered`, but what binds of the plan is played."""
    own = numbered(obs["obs"], noise)
    chunk: Array = own + obs[WEIGHTS][..., None] * (obs[PREVIOUS] - own)
    return chunk


def test_the_plan_of_each_robot_is_told_to_the_policy() -> None:
    parts = {
        "obs": Part((1,)), PREVIOUS: Part((HORIZON, 1), given=0), WEIGHTS: Part((HORIZON,), given=0)
    }  # fmt: skip
    latency = Latency(1.2 * PERIOD, jitter=0.3)

    def played_by(schedule: str, step: float, decide: Any = told) -> Array:
        agent = Agent(decide, 3, PolicyInputs((1,), parts), act_steps=4)
        make = functools.partial(RealTimeChunking, 3, schedule=schedule)
        delayed = Timing(make, latency, HORIZON, 4, PERIOD).over(agent)
        delayed.reset(seeds=[0, 1, 2])
        rows = [np.full((3, 1), step * tick, np.float32) for tick in range(60)]
        return np.stack([delayed.act(row)[:, 0, 0] for row in rows])

    late = played(delayed(lambda: RecedingHorizon(3), latency), 60)
    assert np.allclose(played_by("exp", 1.0), late, atol=1e-4)  # equal plans: nothing is drawn
    free = played_by("ones", 1000.0, lambda obs, noise: numbered(obs["obs"], noise))
    bound = played_by("ones", 1000.0)
    first = np.argmax(free >= 1000, axis=0)  # the tick of each robot's first own action
    assert len(set(first.tolist())) > 1
    for row in range(3):
        assert (np.argmax(bound[:, row] >= 1000) > first[row]) and bound[first[row], row] < 1000


def test_a_delay_is_rounded_up_to_ticks() -> None:
    stream = np.random.default_rng(0)
    for ticks, expected in ((0.0, 0), (0.4, 1), (1.0, 1), (1.01, 2), (3.0, 3)):
        assert Latency(ticks * PERIOD).ticks(stream, PERIOD) == expected
    drawn = [Latency(PERIOD, jitter=1.0).ticks(stream, 1e-6) for _ in range(20_000)]
    logs = np.log(np.array(drawn) * 1e-6 / PERIOD)
    assert abs(logs.mean()) < 0.03 and abs(logs.std() - 1) < 0.03


def test_a_chunk_comes_at_the_tick_of_its_delay() -> None:
    agent = delayed(lambda: RecedingHorizon(4), Latency(3 * PERIOD), rows=1)
    seen = [agent.act(np.float32([[1000.0 * tick]])).item() for tick in range(12)]
    old = [float(i) for i in range(7)]
    assert seen == [*old, 4003.0, 4004.0, 4005.0, 4006.0, 8003.0]


def test_a_plan_that_ends_is_held_and_goes_on_where_it_was() -> None:
    agent = delayed(lambda: RecedingHorizon(8), Latency(5 * PERIOD), rows=1)
    seen = [agent.act(np.float32([[1000.0 * tick]])).item() for tick in range(15)]
    assert seen[7:] == [7.0] * 6 + [8000.0, 8001.0]


def test_dropped_observations_shift_nothing() -> None:
    found = played(delayed(TemporalEnsemble, Latency(2 * PERIOD, drop=0.1)), 400)
    assert np.allclose(found, np.arange(400)[:, None], atol=1e-3)
    # Half of them missing, at times a plan ends, and the robot holds: the same number twice.
    found = played(delayed(TemporalEnsemble, Latency(2 * PERIOD, drop=0.5)), 400)
    right = np.abs(found - np.arange(400)[:, None]) < 1e-3
    assert 0.5 < right.mean() < 1.0 and np.all(np.diff(found, axis=0) > -HORIZON)


def test_delays_follow_from_the_seed_of_an_episode_alone() -> None:
    latency = Latency(1.5 * PERIOD, jitter=1.0, drop=0.3)
    whole = delayed(lambda: RecedingHorizon(4), latency)
    first = played(whole, 60)
    whole.reset(seeds=[0, 1, 2])
    assert np.array_equal(played(whole, 60), first)
    alone = delayed(lambda: RecedingHorizon(4), latency, rows=1)
    alone.reset(seeds=[2])
    assert np.array_equal(played(alone, 60, rows=1)[:, 0], first[:, 2])
    assert not np.array_equal(first[:, 0], first[:, 2])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Latency(-1.0), "delay=-1.0: must be from 0 to 1000000"),
        (lambda: Latency(float("nan")), "delay=nan: must be a number"),
        (lambda: Latency(True), "delay=True: must be a number"),
        (lambda: Latency(0.1, jitter=300.0), "^latency: jitter=300.0"),  # exp of it has no float
        (lambda: Latency(0.1, drop=False), "drop=False"),
        (lambda: Latency(1e300), "delay=1e\\+300"),
        (lambda: Latency(0.1, drop=1.0), "drop=1.0"),
        (lambda: Latency(jitter=0.5), "scales a delay"),
        (lambda: delayed(lambda: RecedingHorizon(9), Latency()), "a chunk has 8 actions"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(TrimtabError, match=word):
        make()
