"""Whether one configuration is better than another, in one sentence with its interval.

The difference is that of the tables (``docs/statistics.md``): over the seeds that both sides have,
paired by them. Where each side has the same single seed, it is paired by evaluation episodes
instead; where each has a single one and these differ, it is over the episodes of both, unpaired.
Neither says anything of other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.benchmarks.board.arena.sides import Sides, contrast
from trimtab.benchmarks.board.baselines import last_scores
from trimtab.benchmarks.board.groups import Group, grouped, metric_of, newest_revisions
from trimtab.benchmarks.board.intervals.kinds import KINDS, kind_of
from trimtab.benchmarks.board.model import Metric, decimals
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.benchmarks.board.verdicts import MARGIN, Verdict, seeds_to_tell, verdict_of
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError

__all__ = ["ERROR_RATE", "Comparison", "Side", "compare", "side_of"]

ERROR_RATE = 0.05
"""How often at most a difference is claimed that is none, if its interval holds its level."""

_PROTOCOL = (
    "env", "fingerprint", "success_rule", "horizon", "control_hz", "delay_ms", "protocol_revision",
)  # fmt: skip
"""Columns of rows in which both sides must be equal."""


@dataclass(frozen=True)
class Side:
    """One configuration on one task.

    Attributes:
        word: what the user named it by.
        group: its evaluations.
        rows: the episodes of all of them.
        metric: what they are scored by.
    """

    word: str
    group: Group
    rows: pa.Table
    metric: Metric


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison.

    Attributes:
        a: what the first side is called.
        b: what the second one is called.
        env: the task.
        metric: what it is scored by.
        a_score: mean of the first side over the seeds that are compared.
        b_score: that of the second one.
        difference: the first minus the second.
        p_better: chance that a random seed of the first beats one of the second; None of one seed.
        paired_by: ``seeds``, ``episodes``, or None where both sides are independent.
        seeds: that both sides have.
        verdict: as :data:`~trimtab.benchmarks.board.verdicts.Verdict`.
        margin: differences up to this count as none.
        seeds_to_tell: seeds a side that would tell it with 80 percent power; None where it is told,
            or where no number that is worth it would.
        error_rate: as :data:`ERROR_RATE`.
        sentence: all of it in words.
    """

    a: str
    b: str
    env: str
    metric: Metric
    a_score: Interval
    b_score: Interval
    difference: Interval
    p_better: Interval | None
    paired_by: str | None
    seeds: tuple[int, ...]
    verdict: Verdict
    margin: float
    seeds_to_tell: int | None
    error_rate: float
    sentence: str


_WORDS: Mapping[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "no different": "is no different from",
    "not told yet": "cannot be told yet from",
}


def side_of(
    table: pa.Table,
    word: str,
    settings: Mapping[str, Mapping[str, Any]],
    *,
    method: str = "",
    env: str = "",
    metric: Metric | None = None,
) -> Side:
    """Return the one configuration that a side of a comparison names.

    Args:
        table: rows among which it is.
        word: what messages call it.
        settings: of configurations, by hash, for their labels.
        method: its algorithm, or what a leaderboard calls it; empty for whatever is there.
        env: its task; empty for the only one that is there.
        metric: what it is scored by; None as in a leaderboard.

    Raises:
        TrimtabError: if there is none, or several; the message names them.
    """
    table = newest_revisions(table, [])
    metrics = {str(one): metric_of(table, one, metric) for one in table["env"].unique().to_pylist()}
    found = grouped(table, metrics, settings)
    named = [one for one in found if one.label == method]
    named = named or [one for one in found if not method or one.algorithm == method]
    if not named:
        near = nearest(method, sorted({one.label for one in found}))
        raise TrimtabError(f"compare: {word}: no method is called so; {near}")
    here = [one for one in named if not env or one.env == env]
    envs = sorted({one.env for one in here or named})
    if not here or len(envs) > 1:
        asked = f"it has no rows of {env}" if env else "it has rows of several tasks"
        raise TrimtabError(
            f"compare: {word}: {asked}; there are {', '.join(envs)}: name one, as <method>/<task>"
        )
    if len(here) > 1:
        labels = sorted(one.label for one in here)
        raise TrimtabError(
            f"compare: {word}: may mean {' or '.join(labels)} in {envs[0]}; name one of them"
        )
    mine = pc.equal(table["config_hash"], here[0].config_hash)
    rows = table.filter(pc.and_(mine, pc.equal(table["env"], envs[0])))
    return Side(word, here[0], rows, metrics[envs[0]])


def compare(a: Side, b: Side, *, intervals: str = KINDS[0]) -> Comparison:
    """Return whether ``a`` beats ``b``.

    Raises:
        TrimtabError: if both are one configuration, or were judged in other tasks or by another
            protocol.
    """
    _check_comparable(a, b)
    kind, rate = kind_of(intervals), a.metric == "success"
    ours, theirs = last_scores(a.group, b.group)
    scores = [kind.mean([*side.values()], rate) for side in (ours, theirs)]
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    paired_by, better = "seeds" if len(seeds) > 1 else None, None
    if len(ours) == len(theirs) == len(seeds) == 1:  # of two seeds the bases may differ
        episodes = [_by_episode(side) for side in (a, b)]
        both = sorted(episodes[0].keys() & episodes[1].keys())
        if len(both) > 1:
            paired_by = "episodes"
            ours, theirs = ({key: one[key] for key in both} for one in episodes)
    elif min(len(ours), len(theirs)) > 1:
        means = [np.array([x.mean() for x in side.values()]) for side in (ours, theirs)]
        better = kind.improvement([means[0]], [means[1]])
    difference = kind.difference(ours, theirs, rate)
    margin = MARGIN * (1.0 if rate else max(abs(one.value) for one in scores))
    told, needed = verdict_of(difference.low, difference.high, margin), None
    counts = {len(side.group.scores) for side in (a, b)}
    alone = 1 in counts and len(counts) > 1  # how much the seeds of that side differ is unknown
    if alone or not difference.is_given:
        told = "not told yet"
    elif told == "not told yet":
        needed = _missing_seeds(Sides(a.group.env, ours, {"b": theirs}, rate))
    names = [side.group.label for side in (a, b)]
    if names[0] == names[1]:  # each is the only one of its folder, and named no further
        names = [a.word, b.word]
    found = Comparison(
        a=names[0], b=names[1], env=a.group.env, metric=a.metric, a_score=scores[0],
        b_score=scores[1], difference=difference, p_better=better, paired_by=paired_by,
        seeds=seeds, verdict=told, margin=margin, seeds_to_tell=needed,
        error_rate=ERROR_RATE, sentence="",
    )  # fmt: skip
    return replace(found, sentence=_sentence(found, a, b))


def _missing_seeds(sides: Sides) -> int | None:
    """Return how many seeds would tell it, more than there are; None if no number would."""
    found = contrast(sides)
    return None if found is None else seeds_to_tell([found], more_than=int(found.freedom) + 1)


def _check_comparable(a: Side, b: Side) -> None:
    for column in _PROTOCOL:
        kinds = [sorted(side.rows[column].unique().to_pylist(), key=str) for side in (a, b)]
        if len(kinds[0]) > 1 or kinds[0] != kinds[1]:
            ours, theirs = (", ".join(map(str, kind)) for kind in kinds)
            raise TrimtabError(
                f"compare: {a.word} and {b.word} were judged with another {column}: {ours} and "
                f"{theirs}; one sentence compares runs of one task and protocol"
            )
    if a.metric != b.metric:
        raise TrimtabError("compare: only one side has successes; compare with metric=return")
    if a.group.config_hash == b.group.config_hash:
        raise TrimtabError(
            f"compare: {a.word} and {b.word} are one configuration of {a.group.label}; its seeds "
            "differ by luck alone"
        )


def _by_episode(side: Side) -> dict[int, Array]:
    """Return the score of each episode of a side's last evaluation, by its evaluation seed."""
    at = pc.add(side.rows["env_steps"], side.rows["updates"])
    last = side.rows.filter(pc.equal(at, pc.max(at)))
    scores = last[side.metric].cast(pa.float64()).to_pylist()
    pairs = zip(last["eval_seed"].to_pylist(), scores, strict=True)
    return {seed: np.array([score]) for seed, score in pairs}


def _sentence(found: Comparison, a: Side, b: Side) -> str:
    """Return a comparison in words."""
    digits = decimals(found.metric, [found.a_score.value, found.b_score.value])
    ours, theirs = (sorted(side.group.scores) for side in (a, b))
    unpaired = f"of {len(ours)} and {len(theirs)} seeds, not paired"
    if len(ours) == len(theirs) == 1:
        ones = f"{ours[0]} and {theirs[0]}" if ours != theirs else f"{ours[0]}"
        unpaired = f"of one seed each ({ones}), not paired, which says nothing of other seeds"
    how = {
        "seeds": f"paired by the {len(found.seeds)} seeds that both have",
        "episodes": "paired by the episodes of one seed, which says nothing of other seeds",
        None: unpaired,
    }[found.paired_by]
    (first, one), (second, other) = (_trained_for(side) for side in (a, b))
    near = abs(first - second) <= 0.01 * max(first, second)  # whole decisions end a little later
    alike = near and one.split()[1:] == other.split()[1:]
    budgets = "" if alike else f"; they were trained for {one} and {other}"
    given = "95 percent interval" if found.difference.is_given else "no interval: all are equal"
    return (
        f"{found.a} {_WORDS[found.verdict]} {found.b} in {found.env}: {METRIC_NAMES[found.metric]} "
        f"{found.a_score.text(digits)} against {found.b_score.text(digits)}, a difference of "
        f"{found.difference.text(digits, signed=True)} ({given}, {how}){budgets}. "
        f"{_what_it_is_worth(found, len(ours), len(theirs))}"
    )


def _what_it_is_worth(found: Comparison, ours: int, theirs: int) -> str:
    """Return what would tell it, and how often such sentences are wrong."""
    errs = f"Where there is no difference, {ERROR_RATE:.0%} of such sentences claim one."
    if ours == theirs == 1:
        return "Run more seeds of both to say something of other seeds."
    if 1 in (ours, theirs):
        one = found.a if ours == 1 else found.b
        return f"One seed of {one} does not say how much its seeds differ: run another one."
    if found.verdict != "not told yet" or found.paired_by is None:
        return errs
    if found.seeds_to_tell is None:
        return f"No number of seeds that is worth it would tell it. {errs}"
    return (
        f"With {found.seeds_to_tell} seeds a side, it would be told in 4 of 5 cases; read it then, "
        f"and not on the way. {errs}"
    )


def _trained_for(side: Side) -> tuple[int, str]:
    """Return what a side was trained for at most, also in words."""
    steps, updates = (int(pc.max(side.rows[name]).as_py()) for name in ("env_steps", "updates"))
    return (steps, f"{steps:,} steps") if steps else (updates, f"{updates:,} updates")
