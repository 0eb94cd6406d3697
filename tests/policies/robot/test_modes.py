"""The execution modes: each against its formula, and all by chunks that carry their tick."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.errors import TrimtabError
from trimtab.observations import Part
from trimtab.policies.agent import PREVIOUS, RESTART, WEIGHTS, PolicyInputs
from trimtab.policies.robot.inference import InLine
from trimtab.policies.robot.modes import (
    Blended,
    Mode,
    RealTimeChunking,
    RealTimeIteration,
    RecedingHorizon,
    TemporalEnsemble,
    check_mode,
    chunk_weights,
)
from trimtab.policies.robot.plan import Array, Chunk
from trimtab.policies.runtime import Hold, Limits, PlayOut

_numbered = load_module(Path(__file__).with_name("numbered.py"))
numbered = _numbered.numbered
HORIZON: int = _numbered.HORIZON


def chunk(tick: int, *values: float) -> Chunk:
    return Chunk(tick, np.array(values, np.float32)[:, None])


def modes(interval: int) -> list[Mode]:
    ensembles = [TemporalEnsemble(interval, m=m) for m in (0.01, 0.0, -1.0)]
    blends = [Blended(interval), Blended(interval, share=0.3), Blended(interval, ramp=3)]
    chunking = [RealTimeChunking(interval, schedule=name) for name in ("exp", "ones")]
    return [
        RecedingHorizon(interval), *ensembles, *blends, *chunking, RealTimeIteration(interval),
    ]  # fmt: skip


DELAYED = [(d, s) for d in range(5) for s in range(max(d, 1), HORIZON - d + 1)]


@pytest.mark.parametrize(("delay", "interval"), DELAYED)
def test_every_tick_plays_its_own_number(delay: int, interval: int) -> None:
    for mode in modes(interval):
        runner = numbered(chain([0], repeat(delay)), mode=mode, fallback=Hold())
        played = [runner.step([float(tick)]).item() for tick in range(60)]
        assert np.allclose(played, range(60), atol=1e-5), mode
        assert runner.counts["empty"] == runner.counts["fallback"] == 0


def test_a_chunk_that_is_two_ticks_late_is_entered_at_its_third_entry() -> None:
    """H 8, s 4, d 2: ticks 0 to 5 from chunk 0, 6 to 9 by entries 2 to 5 of chunk 1, and so on."""
    runner = numbered(chain([0], repeat(2)), mode=RecedingHorizon(4), fallback=Hold())
    seen = []
    for tick in range(14):
        action = runner.step([1000.0 * tick]).item()  # the observation's thousands name the chunk
        seen.append((int(action // 1000), int(action % 1000)))
    first = [(0, i) for i in range(6)]
    assert seen == [*first, *((4, i) for i in range(2, 6)), *((8, i) for i in range(2, 6))]


def test_open_loop_plays_all_of_a_chunk() -> None:
    runner = numbered(mode=RecedingHorizon(HORIZON))
    played = [runner.step([1000.0 * tick]).item() for tick in range(16)]
    assert played == [*range(8), *(8000 + i for i in range(8))]


@pytest.mark.parametrize(
    ("m", "predicted", "expected"),
    [
        (0.1, (1, 2, 4), 2.234054),
        (0.01, (1, 2, 4), 2.323339),
        (0.1, (1, 0, 0), 0.367165),
        (0.1, (0, 1, 0), 0.332225),
        (0.1, (0, 0, 1), 0.300610),
    ],
)
def test_an_ensemble_weighs_the_oldest_chunk_most(
    m: float, predicted: tuple[int, int, int], expected: float
) -> None:
    mode = TemporalEnsemble(m=m)
    mode.begin()
    oldest, middle, newest = predicted
    chunks = chunk(0, 0, 0, oldest), chunk(1, 0, middle), chunk(2, newest)
    for tick, one in enumerate(chunks):
        mode.add(one, tick)
    action = mode.at(2)
    assert action is not None and abs(action.item() - expected) < 1e-6


def test_an_ensemble_equals_the_sum_that_act_keeps_online() -> None:
    """ACT's own program keeps one running mean an entry; the two must agree at every tick."""
    m, horizon = 0.01, 7
    generator = np.random.default_rng(0)
    chunks = generator.normal(size=(300, horizon, 2)).astype(np.float32)
    weights = np.exp(-m * np.arange(horizon))
    sums = np.cumsum(weights)
    mean: Any = None
    mode = TemporalEnsemble(m=m)
    mode.begin()
    for tick, new in enumerate(chunks):
        if mean is None:
            mean, counts = new.astype(np.float64), np.ones((horizon, 1), np.int64)
        else:
            mean = mean * sums[counts - 1] + new[:-1] * weights[counts]
            mean /= sums[counts]
            counts = np.minimum(counts + 1, horizon)
            mean = np.concatenate([mean, new[-1:]])
            counts = np.concatenate([counts, np.ones((1, 1), np.int64)])
        online, mean, counts = mean[0], mean[1:], counts[1:]
        mode.add(Chunk(tick, new), tick)
        action = mode.at(tick)
        assert action is not None and np.abs(action - online).max() < 1e-6


def test_an_ensemble_with_a_missing_chunk_ranks_those_that_are_there() -> None:
    mode = TemporalEnsemble(m=0.5)
    mode.begin()
    for one in (chunk(0, 0, 0, 0, 8), chunk(3, 2)):  # the chunks of ticks 1 and 2 never came
        mode.add(one, one.tick)
    action, weight = mode.at(3), np.exp(-0.5)
    assert action is not None
    assert abs(action.item() - (8 + 2 * weight) / (1 + weight)) < 1e-6
    assert mode.at(4) is None


def test_a_blend_is_what_its_shares_say() -> None:
    fixed, ramped = Blended(2, share=0.75), Blended(2, ramp=3)
    for mode, shares in ((fixed, [0.75, 0.75, 0.75, 1.0]), (ramped, [0.25, 0.5, 0.75, 1.0])):
        mode.begin()
        mode.add(chunk(0, 0, 0, 0, 0, 0, 0), 0)
        mode.add(chunk(2, 8, 8, 8, 8, 8, 8), 3)  # asked for at tick 2, there at tick 3
        assert [value(mode, tick) for tick in range(3, 7)] == [8 * share for share in shares]
    with_old = Blended(2, share=0.5)
    with_old.begin()
    for one in (chunk(0, 0, 0, 0, 0), chunk(1, 8, 8, 8), chunk(2, 0, 0, 0)):
        with_old.add(one, one.tick)
    assert [value(with_old, tick) for tick in (2, 3, 4)] == [2.0, 2.0, 0.0]


def value(mode: Mode, tick: int) -> float:
    action = mode.at(tick)
    assert action is not None
    return float(action.item())


def test_a_blend_of_equal_chunks_changes_no_bit() -> None:
    generator = np.random.default_rng(1)
    plan = generator.normal(size=(40, 3)).astype(np.float32)
    for mode in (Blended(2, share=0.3), Blended(2, ramp=4)):
        mode.begin()
        for tick in range(0, 30, 3):
            mode.add(Chunk(tick, plan[tick : tick + 10]), tick + 2)
            for later in range(tick + 2, tick + 10):
                assert np.array_equal(at(mode, later), plan[later])


@pytest.mark.parametrize(
    ("shape", "schedule", "expected"),
    [
        ((2, 6, 10), "linear", [1, 1, 0.8, 0.6, 0.4, 0.2]),
        ((2, 6, 10), "exp", [1, 1, 0.570589, 0.287072, 0.114492, 0.025770]),
        ((2, 6, 10), "ones", [1, 1, 1, 1, 1, 1]),
        ((2, 6, 10), "zeros", [1, 1]),
        ((4, 2, 6), "linear", [1, 1]),  # a delay beyond the end is lowered to it
        ((4, 2, 6), "zeros", [1, 1]),
        ((0, 0, 4), "exp", []),
    ],
)
def test_the_weights_are_those_of_the_public_code(
    shape: tuple[int, int, int], schedule: str, expected: list[float]
) -> None:
    weights = chunk_weights(*shape, schedule)
    assert weights.shape == shape[2:] and weights.dtype == np.float32
    assert np.abs(weights - np.pad(expected, (0, shape[2] - len(expected)))).max() < 1e-6


def test_real_time_chunking_tells_the_plan_from_the_tick_of_the_observation_on() -> None:
    mode = RealTimeChunking(4, delay=1, schedule="linear")
    mode.begin()
    assert mode.inputs(0) == {}
    mode.add(chunk(0, *range(8)), 3)  # the robot stood still before it: no delay was played
    told = mode.inputs(5)
    assert told[PREVIOUS].ravel().tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert np.array_equal(told[WEIGHTS], chunk_weights(1, 3, 8, "linear"))
    assert mode.inputs(8) == {}  # nothing is left of the plan
    ended = RealTimeChunking(4, end=2, schedule="ones")
    ended.begin()
    ended.add(chunk(0, *range(8)), 0)
    assert ended.inputs(4)[WEIGHTS].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert ended.inputs(7)[WEIGHTS].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_the_delay_is_a_quantile_of_the_last_answers() -> None:
    mode = RealTimeChunking(1, delay=3, quantile=0.9)
    mode.begin()
    assert mode.expected_delay == 3
    mode.add(chunk(0, 0, 0), 0)
    assert mode.expected_delay == 3
    for tick, late in enumerate([30, *[1] * 17, 2, 2, 2]):
        mode.add(chunk(tick, 0, 0), tick + late)
    assert mode.expected_delay == 2  # the slow one is 21 answers ago
    mode.add(chunk(40, 0, 0), 70)
    assert mode.expected_delay == 2
    for tick in range(200):
        mode.add(chunk(tick, 0, 0), tick + 1)
    assert mode.expected_delay == 1
    mode.begin()
    assert mode.expected_delay == 3


def test_real_time_iteration_tells_the_plan_and_repeats_its_end() -> None:
    mode = RealTimeIteration(4)
    mode.begin()
    assert mode.inputs(0) == {}
    mode.add(chunk(2, *range(2, 10)), 2)
    told = mode.inputs(6)
    assert told[PREVIOUS].ravel().tolist() == [6, 7, 8, 9, 9, 9, 9, 9]
    assert told[RESTART].tolist() == [1]
    assert mode.inputs(10) == {}


def test_a_plan_is_told_to_the_policy_tick_by_tick() -> None:
    """A policy that plays its old plan wherever it binds goes on with its first one for ever."""
    runner = numbered(
        chain([0], repeat(2)), mode=RealTimeChunking(4, schedule="ones"), fallback=Hold()
    )
    played = [runner.step([1000.0 * tick]).item() for tick in range(12)]
    # Chunk 4 has the old plan's 4 to 7 as its entries 0 to 3, and its own entries 4 to 7 behind.
    assert played == [*map(float, range(8)), 4004.0, 4005.0, 4006.0, 4007.0]


def at(mode: Mode, tick: int) -> Array:
    action = mode.at(tick)
    assert action is not None
    return action


@pytest.mark.parametrize("dropped", [1, 4, 6])
def test_a_dropped_tick_does_not_shift_the_rest(dropped: int) -> None:
    for mode in modes(4):
        runner = numbered(mode=mode)
        ticks = [tick for tick in range(20) if tick != dropped]
        played = [runner.step([float(tick)], tick=tick).item() for tick in ticks]
        assert np.allclose(played, ticks, atol=1e-5), mode


def test_a_late_first_answer_begins_at_its_first_entry() -> None:
    """Nothing was consumed while the robot stood still, so nothing is left out."""
    runner = numbered(repeat(7), mode=RecedingHorizon(8), fallback=Hold())
    runner.reset(action=[-1.0])
    played = [runner.step([1000.0 * tick]).item() for tick in range(9)]
    assert played == [*[-1.0] * 7, 0.0, 1.0]
    assert runner.counts["empty"] == runner.counts["fallback"] == 7


def test_an_answer_later_than_the_plan_leaves_out_what_was_played_alone() -> None:
    runner = numbered(chain([0], repeat(6)), mode=RecedingHorizon(4), fallback=Hold())
    played = [runner.step([1000.0 * tick]).item() for tick in range(12)]
    # Asked for at tick 4; ticks 4 to 7 play the old plan, 8 and 9 hold: entry 4 is the next one.
    assert played == [*range(8), 7.0, 7.0, 4004.0, 4005.0]


def test_an_answer_that_was_begun_before_the_reset_is_thrown_away() -> None:
    runner = numbered(chain([3], repeat(1)), mode=RecedingHorizon(4), fallback=Hold())
    runner.reset(action=[-1.0])
    runner.step([5000.0])
    runner.reset(action=[-2.0])
    played = [runner.step([float(100 * tick)]).item() for tick in range(5)]
    # The old answer lands at the third tick; only then is a new one asked for.
    assert played == [-2.0, -2.0, -2.0, 200.0, 201.0]
    assert runner.counts["thrown_away"] == 1


def test_a_decision_that_was_interrupted_is_not_waited_for() -> None:
    """Ctrl+C in the midst of it; then the program is reset and goes on, or goes on at once."""
    policy = numbered()
    for resets in (True, False):
        left = iter([False, True])

        def infer(read: Any, noise: Any, left: Any = left) -> Any:
            if next(left, False):
                raise KeyboardInterrupt
            return policy.infer(read, noise)

        runner = numbered(fallback=Hold(), inference=InLine(infer))
        played = [runner.step([float(tick)]).item() for tick in range(4)]
        with pytest.raises(KeyboardInterrupt):
            runner.step([4.0])
        if resets:
            runner.reset(action=[-1.0])
        played += [runner.step([100.0 + tick]).item() for tick in range(3)]
        assert played == [0.0, 1.0, 2.0, 3.0, 100.0, 101.0, 102.0]


def test_a_reset_that_is_refused_forgets_the_plan_all_the_same() -> None:
    for refused in ({"action": [1e9]}, {"action": [np.nan]}, {"seed": -1}, {"target": 1.0}):
        runner = numbered(mode=RecedingHorizon(8), fallback=Hold(), limits=Limits(velocity=1e6))
        runner.reset(action=[0.0])
        runner.step([0.0])
        with pytest.raises(TrimtabError):
            runner.reset(**refused)
        assert len(runner.plan().actions) == 0
        assert runner.step([50.0]).item() == 50.0  # the old plan has 1 here


def test_the_plan_shows_what_will_be_played() -> None:
    for mode in modes(4):
        runner = numbered(mode=mode, fallback=PlayOut(patience=99))
        assert runner.plan().actions.shape == (0, 1)
        for tick in range(7):
            runner.step([float(tick)])
        plan = runner.plan()
        assert plan.tick == 7 and len(plan.actions) > 4
        played = [runner.step(None) for _ in range(len(plan.actions))]
        assert np.array_equal(np.stack(played), plan.actions)
        assert len(runner.plan().actions) == 0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: RecedingHorizon(0), "interval=0: must be at least 1"),
        (lambda: RecedingHorizon(2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: numbered(mode=RecedingHorizon(9)), "a chunk has 8 actions; give at most 8"),
        (
            lambda: numbered(horizon=1, act_steps=1, mode=RecedingHorizon(2)),
            "interval=2: a chunk has 1 action; give 1$",
        ),
        (lambda: TemporalEnsemble(m=float("nan")), "m=nan: must be a number"),
        (lambda: TemporalEnsemble(m=True), "m=True"),
        (lambda: Blended(share=0.0), "share=0.0"),
        (lambda: Blended(share=True), "share=True"),
        (lambda: Blended(ramp=-1), "ramp=-1"),
        (lambda: Blended(share="half"), "share=half"),  # type: ignore[arg-type]
        (lambda: TemporalEnsemble(m=None), "m=None"),  # type: ignore[arg-type]
        (lambda: RealTimeChunking(schedule="even"), "be exp or linear"),  # type: ignore[arg-type]
        (lambda: RealTimeChunking(end=-1), "end=-1"),
        (lambda: RealTimeChunking(delay=0.5), "delay=0.5"),  # type: ignore[arg-type]
        (lambda: RealTimeChunking(quantile=0.0), "quantile=0.0"),
        (lambda: RealTimeChunking(quantile=True), "quantile=True"),
        (
            lambda: check_mode(
                RealTimeChunking(4), PolicyInputs(), horizon=8, act_steps=4, late=True
            ),
            "does not read previous_chunk and chunk_weights.*chunking=rtc",
        ),
    ],
)
def test_a_wrong_mode_is_refused(make: Any, word: str) -> None:
    with pytest.raises(TrimtabError, match=word):
        make()


@pytest.mark.parametrize(
    ("mode", "late", "word"),
    [
        (RecedingHorizon(4), False, ""),
        (RecedingHorizon(4), True, "while an answer is late"),
        (RecedingHorizon(2), False, "give interval=4"),
        (TemporalEnsemble(4), False, "played of several chunks"),
        (Blended(4), False, "played of several chunks"),
    ],
)
def test_a_policy_that_remembers_its_actions_is_played_as_in_training(
    mode: Mode, late: bool, word: str
) -> None:
    remembering = PolicyInputs(
        parts={"obs": Part((1,)), "past": Part((2, 8, 1), given=0.0, remembered="actions")}
    )
    past = PolicyInputs(history=2)
    with pytest.raises(TrimtabError, match=word) if word else nullcontext():
        check_mode(mode, remembering, horizon=8, act_steps=4, late=late)
    with pytest.raises(TrimtabError, match=word) if mode.interval == 2 else nullcontext():
        check_mode(mode, past, horizon=8, act_steps=4, late=late)


def test_two_robots_may_be_given_one_mode() -> None:
    for mode in modes(4):
        one, other = numbered(mode=mode), numbered(mode=mode)
        assert one.step([0.0]).item() == 0.0
        assert other.step([500.0]).item() == 500.0


def test_ticks_must_increase() -> None:
    runner = numbered()
    runner.step([0.0], tick=3)
    for tick in (3, 2, 1.5):
        with pytest.raises(TrimtabError, match="tick"):
            runner.step([0.0], tick=tick)
