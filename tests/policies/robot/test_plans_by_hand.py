"""Robots whose answers are late, ticks lost and episodes cut short, beside a second program.

The second program keeps what the robot was sent, tick by tick, and counts: it has no chunk that
knows its tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.policies.agent import PREVIOUS, RESTART, WEIGHTS, ArrayObs
from trimtab.policies.robot.plan import Array
from trimtab.policies.runtime import Hold, PlayOut, RealTimeChunking, RealTimeIteration

numbered_module = load_module(Path(__file__).with_name("numbered.py"))
numbered, Late, HORIZON = numbered_module.numbered, numbered_module.Late, numbered_module.HORIZON


class Seen(Late):  # type: ignore[misc, valid-type]
    """Keeps what each request told of the plan."""

    def __init__(self, delays: Any) -> None:
        super().__init__(delays)
        self.told: list[list[list[float]]] = []

    def begin(self, read: ArrayObs, noise: Array) -> None:
        super().begin(read, noise)
        assert not isinstance(read, np.ndarray)
        self.told.append([read[name].ravel().tolist() for name in (PREVIOUS, WEIGHTS, RESTART)])


@dataclass
class ByHand:
    """The second program, of one robot.

    Attributes:
        plan: the actions from now on, the next one first; empty if there are none.
        request: its answer, the steps until it comes, and how many of its actions were sent the
            robot in the meantime from the old plan; an answer that is None is not wanted.
    """

    chunking: bool
    interval: int
    patience: int
    playing_out: bool
    delays: list[int]
    last: float
    plan: list[float] = field(default_factory=list)
    until_next: int = 0  # ticks to the next request
    request: list[Any] | None = None
    late: list[int] = field(default_factory=list)
    blind: int = 0
    told: list[list[list[float]]] = field(default_factory=list)
    begun: bool = False  # whether a first answer was there

    def reset(self, last: float) -> None:
        self.last, self.blind = last, 0
        self._forget()

    def _forget(self) -> None:
        self.plan, self.late, self.until_next, self.begun = [], [], 0, False
        if self.request is not None:
            self.request[0] = None

    def _pass(self) -> None:
        """Let a tick pass."""
        if self.plan:
            self.plan.pop(0)
            if self.request is not None:
                self.request[2] += 1
            self.until_next -= 1
        else:
            self.until_next = min(self.until_next, 0)

    def step(self, obs: float | None, ticks: int) -> float:
        if self.blind > self.patience and obs is not None:
            self._forget()
        for _ in range(ticks):
            self._pass()
        self.blind = 0 if obs is not None else self.blind + ticks
        self._land()
        if obs is not None and self.request is None and self.until_next <= 0:
            self._ask(obs)
            self._land()
        planned = self.plan[0] if self.plan else None
        if planned is not None and (self.blind <= self.patience or self.playing_out):
            self.last = planned
        return self.last

    def _ask(self, obs: float) -> None:
        old = self.plan[:]
        previous, weights, restart = [0.0] * HORIZON, [0.0] * HORIZON, [0.0]
        if old and self.chunking:
            previous[: len(old)] = old
            ordered = sorted(self.late) or [0]
            place = next(i for i in range(len(ordered)) if i >= 0.9 * (len(ordered) - 1) - 1e-9)
            sure = min(ordered[place], len(old))
            fall = len(old) - sure + 1
            for i in range(len(old)):
                share = 1.0 if i < sure else 1.0 - (i - sure + 1) / fall
                weights[i] = share * (np.exp(share) - 1) / (np.e - 1)
        elif old:
            previous = [*old, *[old[-1]] * (HORIZON - len(old))]
            restart = [1.0]
        self.told.append([previous, weights, restart])
        chunk = [
            np.float32(own) + np.float32(w) * (np.float32(old) - np.float32(own))
            for own, old, w in zip(
                (obs + np.arange(HORIZON)).tolist(), previous, weights, strict=True
            )
        ]
        self.request = [chunk, self.delays.pop(0), 0]

    def _land(self) -> None:
        if self.request is None:
            return
        if self.request[1] > 0:
            self.request[1] -= 1
            return
        (chunk, _, sent), self.request = self.request, None
        if chunk is None:
            return
        if self.begun:
            self.late.append(sent)
            del self.late[:-20]
        self.begun = True
        self.plan, self.until_next = [float(x) for x in chunk[sent:]], self.interval - sent


@pytest.mark.parametrize("chunking", [True, False])
def test_whatever_is_late_or_lost_each_tick_plays_what_a_count_by_hand_says(
    chunking: bool,
) -> None:
    generator = np.random.default_rng(chunking)
    late, asked, thrown_away = 0, 0, 0
    for _ in range(25):
        interval, patience = (int(generator.integers(low, 5)) for low in (1, 0))
        delays = (generator.integers(0, 7, 400) * (generator.random(400) < 0.7)).tolist()
        playing_out = bool(generator.integers(2))
        fallback = (PlayOut if playing_out else Hold)(patience=patience)
        mode = (RealTimeChunking if chunking else RealTimeIteration)(interval)
        runner = numbered(mode=mode, fallback=fallback, inference=(seen := Seen(delays[:])))
        seen.infer = runner.infer
        hand = ByHand(chunking, interval, patience, playing_out, delays, 0.0)
        for episode in range(4):
            runner.reset(action=[-1.0 - episode])
            hand.reset(-1.0 - episode)
            tick, blind = -1, 0
            for _ in range(int(generator.integers(1, 40))):
                ticks = 1 if generator.random() < 0.85 else int(generator.integers(2, 14))
                tick, blind = tick + ticks, max(blind - 1, 0)
                blind = blind or int(generator.integers(1, 9)) * (generator.random() < 0.08)
                obs = None if blind else float(100 * tick + 10_000 * episode)
                found = runner.step(None if obs is None else [obs], tick=tick).item()
                assert found == pytest.approx(hand.step(obs, ticks), rel=1e-5)
            thrown_away += runner.counts["thrown_away"]
        assert len(seen.told) == len(hand.told)
        for ours, theirs in zip(seen.told, hand.told, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
        late, asked = late + len([d for d in hand.late if d]), asked + len(hand.told)
    assert asked > 300 and thrown_away > 5 and (late > 20 or not chunking)
