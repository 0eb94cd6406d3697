"""How fast Trimtab is beside its peers: pairs of one job, run in turns, and their rows.

What is measured stands in ``trimtab.benchmarks.speed.cases``, one module a group, whose ``PAIRS``
are the rows; a new row is a new :class:`Pair` there. How it is measured stands here:

    warm-up of every side, then rounds of   ours peer   ours peer   ours peer ...

Each side has a process of its own, so that no setting of one of them, such as of the memory's
allocator or of a library's threads, speeds the other up or slows it down. Sides take turns, so that
a machine that slows down for a while slows both down. A ratio is always that of two neighbouring
turns, and above 1 means that ours is faster.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from trimtab.benchmarks.core.allocator import keep_freed_memory
from trimtab.benchmarks.training.settings.words import listed, nearest
from trimtab.child import Child, end_children
from trimtab.errors import TrimtabError

GROUPS = (
    "environments", "replay", "updates", "improvement", "offline", "training", "mjx", "latency",
)  # fmt: skip
"""The groups of rows, each a module of ``cases`` with ``PAIRS``."""

_RUNS = {"updates", "improvement", "offline", "training", "mjx"}
"""Groups whose work is that of a run."""

_ENDING = 5.0
"""Seconds that a side's process has to end."""

ALL_CORES = 0
"""A number of torch threads: as many as this process may use processors."""

BEST_OF_BOTH = (1, ALL_CORES)
"""Torch threads where all cores may be taken: each side is tried with both, the faster counts."""

Clock = Callable[[], float]
Which = Literal["ours", "peer"]
Progress = Callable[[float, str], None]

Work = Callable[[], float]
"""Does a fixed amount of work and returns how many units of it that was."""


def repeated(
    act: Callable[[], object], times: int, units: int = 1, last: Callable[[], object] | None = None
) -> Work:
    """Return work that does something several times.

    Args:
        act: what it does.
        times: how often.
        units: of each time.
        last: what it does in the end, such as to wait for a GPU.
    """

    def work() -> float:
        for _ in range(times):
            act()
        if last is not None:
            last()
        return times * units

    return work


@dataclass(frozen=True)
class Stage:
    """What a side is set up with.

    Attributes:
        scale: factor to the amount of work of one turn.
        exits: closes what the side has opened when its row is done.
        threads: number of torch threads that its turns will have.
    """

    scale: float = 1.0
    exits: ExitStack = field(default_factory=ExitStack)
    threads: int = 1

    def amount(self, full: int, least: int = 1) -> int:
        """Return an amount of work that is ``full`` at scale 1, and never below ``least``."""
        return max(least, round(full * self.scale))


Side = Callable[[Stage], Work]
"""Sets one side of a pair up and returns its work. A peer that is not installed raises."""


@dataclass(frozen=True)
class Pair:
    """One row: a job that Trimtab and a peer both do.

    Attributes:
        name: of the row; no other row has it.
        group: one of ``GROUPS``.
        unit: a rate, such as ``steps/s``.
        ours: Trimtab's side.
        peer: the peer's side, or None where there is nothing to compare with.
        peer_name: what the peer is called.
        threads: numbers of torch threads that each side is measured with; its fastest counts.
    """

    name: str
    group: str
    unit: str
    ours: Side
    peer: Side | None = None
    peer_name: str | None = None
    threads: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Row:
    """What was measured of a pair; rates are medians over the rounds, None without a peer."""

    name: str
    group: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str | None
    ratio_median: float | None
    ratio_min: float | None
    ratio_max: float | None
    rounds: int
    ours_threads: int
    peer_threads: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


def pairs_of(group: str) -> list[Pair]:
    """Return the rows of a group."""
    found: list[Pair] = importlib.import_module(f"trimtab.benchmarks.speed.cases.{group}").PAIRS
    return found


def all_pairs() -> list[Pair]:
    """Return every row that there is, group by group."""
    return [pair for group in GROUPS for pair in pairs_of(group)]


def select(only: str, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the rows that ``only`` asks for.

    Args:
        only: names of groups or rows, with commas between them; empty for everything.
        pairs: all rows.

    Raises:
        TrimtabError: on a name that is not known, with the nearest right one.
    """
    words = listed(only)
    names = [pair.name for pair in pairs]
    for word in words:
        if word not in GROUPS and word not in names:
            # A far-off word is answered with the groups: all rows would be no hint.
            close = nearest(word, [*GROUPS, *names])
            hint = close if close.startswith("did") else nearest(word, GROUPS)
            raise TrimtabError(f"speed: only={word}: there is no such group or row; {hint}")
    return [pair for pair in pairs if not words or pair.name in words or pair.group in words]


def check_scale(scale: str, command: str = "speed") -> float:
    """Return ``scale`` as a number; an error begins with ``command``.

    Raises:
        TrimtabError: if it is none, or not positive.
    """
    try:
        value = float(scale)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise TrimtabError(f"{command}: scale={scale}: must be a number above 0, such as 0.5")
    return value


def check_rounds(rounds: int) -> int:
    """Return ``rounds``.

    Raises:
        TrimtabError: if it is 0.
    """
    if rounds < 1:
        raise TrimtabError(f"speed: rounds={rounds}: must be at least 1")
    return rounds


def measure_all(
    pairs: Sequence[Pair],
    *,
    rounds: int,
    scale: float = 1.0,
    begin: Begin | None = None,
    progress: Progress = lambda share, text: None,
    done: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Measure rows one after another.

    Args:
        pairs: the rows.
        rounds: turns of each side.
        scale: factor to the amount of work of a turn.
        begin: as for :func:`measure`.
        progress: told the share that is done and the row that is next.
        done: given all rows so far after each row, so that an interrupted measurement is not lost.
    """
    rows: list[Row] = []
    for number, pair in enumerate(pairs):
        progress(number / len(pairs), pair.name)
        rows.append(measure(pair, rounds=rounds, scale=scale, begin=begin or begin_in_child))
        done(rows)
    progress(1.0, "done")
    return rows


@dataclass(frozen=True)
class Turns:
    """A side of a row that is set up and warmed up.

    Attributes:
        threads: its number of torch threads.
        take: does the work of a turn; returns its rate in units per second.
        found: the rates of its turns.
    """

    threads: int
    take: Callable[[], float]
    found: list[float] = field(default_factory=list)


Begin = Callable[[Pair, Which, float, ExitStack], list[Turns]]
"""Sets a side of a pair up, at a scale, for each of its numbers of threads, and warms each up."""


def measure(pair: Pair, *, rounds: int, scale: float = 1.0, begin: Begin | None = None) -> Row:
    """Measure one pair in turns.

    A peer that is not installed, or does not start, leaves its columns empty and says so in
    ``peer_name``: that says nothing about ours, and a long measurement must not end of it.

    Args:
        pair: the two sides.
        rounds: turns of each side, after one turn each to warm up.
        scale: factor to the amount of work of a turn.
        begin: sets a side up; None: in a process of its own (:func:`begin_in_child`).
    """
    begin = begin or begin_in_child
    with ExitStack() as exits:
        ours, peers = begin(pair, "ours", scale, exits), list[Turns]()
        peer_name = pair.peer_name
        if pair.peer is not None:
            try:
                peers = begin(pair, "peer", scale, exits)
            except Exception as error:  # another project's code may raise anything
                peer_name = f"{peer_name}: {_reason(error)}"
        for _ in range(rounds):
            for side in (*ours, *peers):
                side.found.append(side.take())
    mine = _fastest(ours)
    theirs = _fastest(peers) if peers else None
    ratios = [a / b for a, b in zip(mine.found, theirs.found, strict=True)] if theirs else []
    return Row(
        name=pair.name,
        group=pair.group,
        unit=pair.unit,
        ours=statistics.median(mine.found),
        peer=statistics.median(theirs.found) if theirs else None,
        peer_name=peer_name,
        ratio_median=statistics.median(ratios) if theirs else None,
        ratio_min=min(ratios, default=None),
        ratio_max=max(ratios, default=None),
        rounds=rounds,
        ours_threads=mine.threads,
        peer_threads=theirs.threads if theirs else None,
    )


def thread_numbers(pair: Pair) -> list[int]:
    """Return the numbers of torch threads that the sides of a row are measured with."""
    return [*dict.fromkeys(threads or cores() for threads in pair.threads)]


def _rate(work: Work, threads: int, clock: Clock) -> float:
    """Do some work with a number of torch threads; return its rate."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        started = clock()
        count = work()
        return count / max(clock() - started, 1e-9)
    finally:
        torch.set_num_threads(before)


def begin_here(
    pair: Pair, which: Which, scale: float, exits: ExitStack, clock: Clock = time.perf_counter
) -> list[Turns]:
    """Set a side up in this process.

    Args:
        pair: the row.
        which: of its sides.
        scale: factor to the amount of work of a turn.
        exits: closes what the side has opened.
        clock: seconds, monotonic.
    """
    side = pair.ours if which == "ours" else pair.peer
    assert side is not None
    exits.callback(torch.set_num_threads, torch.get_num_threads())
    torch.manual_seed(0)
    np.random.seed(0)
    turns: list[Turns] = []
    for threads in thread_numbers(pair):
        torch.set_num_threads(threads)
        work = side(Stage(scale, exits, threads))
        turns.append(Turns(threads, partial(_rate, work, threads, clock)))
    for one in turns:
        one.take()
    return turns


def begin_in_child(pair: Pair, which: Which, scale: float, exits: ExitStack) -> list[Turns]:
    """Set a side up in a process of its own, which ends with the row.

    Raises:
        TrimtabError: if the side raises it.
        RuntimeError: if it raises another exception, which the message names.
    """
    child = Child(silent=True)
    exits.callback(end_children, [child], _ENDING)
    threads = thread_numbers(pair)
    child.call(set_up, pair.group, pair.name, which, scale)
    return [Turns(one, partial(child.call, take_turn, place)) for place, one in enumerate(threads)]


_set_up: list[Turns] = []
"""The side that this process has set up, where it is one of a row's own."""


def set_up(group: str, name: str, which: Which, scale: float) -> None:
    """Set a side up in this process, which is its own."""
    (pair,) = (one for one in pairs_of(group) if one.name == name)
    if which == "ours" and group in _RUNS:
        keep_freed_memory()  # as a run does; other code is called without one
    exits = ExitStack()
    atexit.register(exits.close)
    _set_up.extend(begin_here(pair, which, scale, exits))


def take_turn(number: int) -> float:
    """Take a turn with one of the numbers of threads; return its rate."""
    return _set_up[number].take()


def _fastest(sides: Sequence[Turns]) -> Turns:
    return max(sides, key=lambda side: statistics.median(side.found))


def cores() -> int:
    """Return how many processors this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return usable or 1


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if not hasattr(error, "__notes__"):  # another process's has its type in its text already
        text = f"{type(error).__name__}: {text}"
    if text.startswith("ModuleNotFoundError"):
        return "not installed"
    return f"does not run ({text[:140]})"
