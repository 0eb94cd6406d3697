"""Claims of papers, held against committed rows: better, worse, no different, or not told yet.

``claims.yaml`` lists the claims; each is judged in every contest that has what it speaks of, and
over all of them together, by the mean difference (``board/intervals/contests.py``). Most are of the
arena; a claim with ``suite`` is of a suite without frozen bases, or of the study of modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.arena.findings import Finding
from trimtab.benchmarks.board.arena.forecast import missing_contests, missing_seeds
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest
from trimtab.benchmarks.board.arena.sides import (
    Scores,
    Sides,
    best_means,
    contrast,
    control_contrasts,
    means_of,
)
from trimtab.benchmarks.board.data_contests import DataContest, DataScores
from trimtab.benchmarks.board.intervals.contests import (
    Contrast,
    contest_error,
    contest_interval,
    tasks_interval,
)
from trimtab.benchmarks.board.intervals.improvement import improvement_interval
from trimtab.benchmarks.board.intervals.looks import confidence_at, shares_of
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.benchmarks.board.verdicts import Verdict, verdict_of
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["find"]

Pair = tuple[Contest, ArenaRow, ArenaRow]


def find(
    claims: Sequence[Claim], arena: Arena, data: Mapping[str, Sequence[DataContest]] | None = None
) -> list[Finding]:
    """Return what committed rows say of each claim.

    Args:
        claims: the claims.
        arena: the arena's tables.
        data: the contests of each suite without frozen bases that has rows, by its name.
    """
    known = data or {}
    return [
        _DATA_JUDGES[claim.kind](claim, known.get(claim.suite, ()))
        if claim.suite
        else _JUDGES[claim.kind](claim, arena)
        for claim in claims
    ]


def _pairs(
    claim: Claim, arena: Arena, other: Callable[[Contest, ArenaRow], str | None]
) -> list[Pair]:
    """Return (contest, row of the method, row of the other) of every contest that has both."""
    found = []
    for contest in arena.contests:
        if claim.tasks and contest.task not in claim.tasks:
            continue
        rows = {row.method: row for row in contest.rows if row.variant is None}
        ours = rows.get(claim.method)
        name = other(contest, ours) if ours is not None else None
        if ours is None or name not in rows:
            continue
        if all(len(_per_seed(claim, row)) for row in (ours, rows[name])):
            found.append((contest, ours, rows[name]))
    return found


def _shown(claim: Claim, pairs: Sequence[Pair]) -> list[str]:
    """Return the two numbers of each contest."""
    return [
        f"{contest.task} ({contest.base}) "
        + " against ".join(_number(contest, _shown_value(claim, row)) for row in rows)
        for contest, *rows in pairs
    ]


def _shown_value(claim: Claim, row: ArenaRow) -> Any:
    """Return a row's number: of all seeds, or the mean of those that the claim is judged by."""
    scores = _per_seed(claim, row)
    return float(means_of(scores).mean()) if claim.seeds else getattr(row, claim.measure)


def _independent(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return pairs in groups that share no run: those of a task, where a side has no base."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        contest, *rows = pair
        shared = any(row.base is None for row in rows)
        groups.setdefault((contest.task, "" if shared else contest.base), []).append(pair)
    return list(groups.values())


def _sides(claim: Claim, group: Sequence[Pair]) -> Sides:
    """Return both methods' scores in a group of contests: each seed's mean over the bases."""

    def scores(rows: Sequence[ArenaRow]) -> Scores:
        runs = [*{row.config_hash: _per_seed(claim, row) for row in rows}.values()]
        shared = set.intersection(*(set(run) for run in runs))
        return {seed: np.mean([run[seed] for run in runs], axis=0) for seed in sorted(shared)}

    def seconds(rows: Sequence[ArenaRow]) -> float:
        return sum({row.config_hash: row.seconds for row in rows}.values())

    contest = group[0][0]
    ours, theirs = [one for _, one, _ in group], [one for _, _, one in group]
    rate, name = contest.metric == "success", theirs[0].method
    return Sides(
        contest.task, scores(ours), {name: scores(theirs)}, rate, seconds(ours),
        {name: seconds(theirs)},
    )  # fmt: skip


def _judged(
    claim: Claim, sides: Sequence[Sides], shown: Sequence[str], *, control: bool = False
) -> Finding:
    """Return what the seeds of a method beside another say, or beside the best of controls."""
    found = [(one, pair) for one in sides if (pair := _contrasts(one, control)) is not None]
    if not found:
        return Finding(claim, "not told yet", "; ".join(shown) or "no contest has both", 0)
    every = [one for one, _ in found]
    below, above = ([pair[side] for _, pair in found] for side in (0, 1))
    low, high = (contest_interval(side) for side in (below, above))
    if claim.looks:
        told = _read_at_looks(claim, every, control)
    else:
        told = verdict_of(low.low, high.high, claim.margin)
    needed, missing = None, ""
    if told == "not told yet":
        needed, missing = missing_seeds(claim, every, below, above)
    better = improvement_interval(
        [means_of(one.ours) for one in every], [best_means(one.others) for one in every]
    )
    return Finding(
        claim, told, "; ".join(shown), len(every),
        difference=low,
        held_out=high if control else None,
        over_tasks=tasks_interval(above) if len(above) > 1 else None,
        better=better,
        p_value=min(_p_value(below, 1), _p_value(above, -1)) if control else _p_value(below),
        seeds_to_tell=needed, missing=missing,
    )  # fmt: skip


def _contrasts(sides: Sides, control: bool) -> tuple[Contrast, Contrast] | None:
    """Return what *better* and *worse* are read off in a contest; None without two seeds."""
    if not all(sides.others.values()):
        return None
    if control:
        return control_contrasts(sides)
    both = contrast(sides)
    return None if both is None else (both, both)


def _read_at_looks(claim: Claim, sides: Sequence[Sides], control: bool) -> Verdict:
    """Return the verdict of the first look that tells the claim.

    At a look each contest has as many seeds as the look says, its first ones.
    """
    for look in claim.looks:
        cut = [_first_seeds(one, look) for one in sides]
        if None in cut:
            break  # a contest has not come there yet
        pairs = [pair for one in cut if one and (pair := _contrasts(one, control)) is not None]
        confidence = confidence_at(shares_of(claim.looks, look))
        low, high = (
            contest_interval([pair[side] for pair in pairs], confidence) for side in (0, 1)
        )
        if (told := verdict_of(low.low, high.high, claim.margin)) != "not told yet":
            return told
    return "not told yet"


def _first_seeds(sides: Sides, count: int) -> Sides | None:
    """Return a contest with its first seeds that all sides have; None if there are fewer.

    A control whose runs of a look are still missing could be the best one.
    """
    every = (sides.ours, *sides.others.values())
    seeds = sorted(set.intersection(*(set(scores) for scores in every)))[:count]
    if len(seeds) < count:
        return None
    ours, *others = ({seed: scores[seed] for seed in seeds} for scores in every)
    return replace(sides, ours=ours, others=dict(zip(sides.others, others, strict=True)))


def _p_value(contrasts: Sequence[Contrast], side: int = 0) -> float:
    """Return the two-sided p-value of a mean difference; with a side, 1 where it is the other."""
    value = float(np.mean([one.value for one in contrasts]))
    error, freedom = contest_error(contrasts)
    if side * value < 0.0 or not error:
        return 1.0
    return float(2 * student.sf(abs(value) / error, max(freedom, 1.0)))


def _share_verdict(found: Interval, limit: float) -> Verdict:
    """Return whether all of an interval lies above a limit, or below."""
    return verdict_of(found.low - limit, found.high - limit, 1e-12)


def _per_seed(claim: Claim, row: ArenaRow) -> Scores:
    if claim.measure == "score":
        values: Sequence[Array] = row.episode_scores
    else:
        values = [np.array([area]) for area in row.areas]
    return _judging(claim, row.seeds, values)


def _judging(claim: Claim, seeds: Sequence[int], values: Sequence[Array]) -> Scores:
    """Return the values of the seeds that judge a claim."""
    runs = zip(seeds, values, strict=True)
    return {seed: value for seed, value in runs if not claim.seeds or seed in claim.seeds}


def _number(contest: Contest, value: Any) -> str:
    digits = 2 if contest.metric == "success" else 0
    return number_text(value if isinstance(value, float) else value.value, digits)


def _higher(claim: Claim, arena: Arena) -> Finding:
    pairs = _pairs(claim, arena, lambda contest, ours: claim.than)
    sides = [_sides(claim, group) for group in _independent(pairs)]
    return _judged(claim, sides, _shown(claim, pairs))


def _most(claim: Claim, arena: Arena) -> Finding:
    """Whether a method's mean is the higher one in more than half of the contests."""
    pairs = _pairs(claim, arena, lambda contest, ours: claim.than)
    if not pairs:
        return Finding(claim, "not told yet", "no contest has both", 0)
    means = [
        [float(means_of(scores).mean()) for scores in (one.ours, one.others[claim.than])]
        for one in (_sides(claim, group) for group in _independent(pairs))
    ]
    higher = sum(ours > theirs for ours, theirs in means)
    ends = binomtest(higher, len(means)).proportion_ci(0.95)
    share = Interval(higher / len(means), float(ends.low), float(ends.high))
    told = _share_verdict(share, 0.5)
    numbers = f"in {higher} of {len(means)}, a share of {share.text()}"
    shown = "; ".join(_shown(claim, pairs))
    missing = missing_contests(share.value) if told == "not told yet" else ""
    return Finding(claim, told, f"{numbers}: {shown}", len(means), missing=missing)


def _control(claim: Claim, arena: Arena) -> Finding:
    """Whether a method is above the best of the arena's controls."""
    picking = replace(claim, seeds=claim.control_seeds) if claim.control_seeds else claim

    def controls(contest: Contest) -> dict[str, ArenaRow]:
        return {
            row.method: row
            for row in contest.rows
            if row.method in arena.controls and row.variant is None and _per_seed(claim, row)
        }

    def best(contest: Contest, ours: ArenaRow) -> str | None:
        levels = {
            name: float(means_of(scores).mean())
            for name, row in controls(contest).items()
            if (scores := _per_seed(picking, row))
        }
        return max(levels, key=levels.__getitem__, default=None)

    pairs = _pairs(claim, arena, best)
    sides = []
    for contest, ours, control in pairs:
        # Where other seeds pick the control, there is nothing left to hold out.
        rows = {control.method: control} if claim.control_seeds else controls(contest)
        scores = {name: _per_seed(claim, row) for name, row in rows.items()}
        seconds = {name: row.seconds for name, row in rows.items()}
        rate, mine = contest.metric == "success", _per_seed(claim, ours)
        sides.append(Sides(contest.task, mine, scores, rate, ours.seconds, seconds))
    return _judged(claim, sides, _shown(claim, pairs), control=True)


def _sooner(claim: Claim, arena: Arena) -> Finding:
    """Whether a method comes half of its own way up in so many times fewer steps than another.

    Where the other one does not come there in its budget, that says something only if the budget
    is as many times longer.
    """
    pairs = _pairs(claim, arena, lambda contest, ours: claim.than)
    told: list[bool | None] = []
    shown = []
    for contest, ours, theirs in pairs:
        if contest.frozen is None or not ours.score.value > contest.frozen.value:
            told.append(False)
            shown.append(f"{contest.task} ({contest.base}) no gain")
            continue
        target = (ours.score.value + contest.frozen.value) / 2
        first, second = (steps_to(row, contest.frozen.value, target) for row in (ours, theirs))
        limit = theirs.curve[-1].env_steps if second is None else second
        sooner = first is not None and first * claim.factor <= limit
        told.append(None if second is None and not sooner else sooner)
        ways = ["never" if steps is None else f"{steps:,.0f} steps" for steps in (first, second)]
        shown.append(f"{contest.task} ({contest.base}) {ways[0]} against {ways[1]}")
    verdict: Verdict = "not told yet"
    if told and all(told):
        verdict = "better"
    elif told and all(one is False for one in told):
        verdict = "worse"
    return Finding(claim, verdict, "; ".join(shown) or "no contest has both", len(pairs))


def steps_to(row: ArenaRow, start: float, target: float) -> float | None:
    """Return the environment steps at which a row's curve first reaches ``target``; None: never.

    Args:
        row: a row.
        start: its score at step 0.
        target: the score to reach.
    """
    before, score = 0.0, start
    for point in row.curve:
        if point.score.value >= target:
            share = (target - score) / max(point.score.value - score, 1e-12)
            return before + max(share, 0.0) * (point.env_steps - before)
        before, score = point.env_steps, point.score.value
    return None


_JUDGES: Mapping[str, Callable[[Claim, Arena], Finding]] = {
    "higher": _higher,
    "most": _most,
    "control": _control,
    "sooner": _sooner,
}


def _of_data(claim: Claim, contests: Sequence[DataContest]) -> list[DataContest]:
    """Return the contests of data that a claim speaks of and that have its methods."""
    needed = {claim.method, claim.than or claim.method}
    return [
        contest
        for contest in contests
        if needed <= contest.methods.keys() and (not claim.tasks or contest.task in claim.tasks)
    ]


def _data_higher(claim: Claim, contests: Sequence[DataContest]) -> Finding:
    found = _of_data(claim, contests)
    sides, shown = [], []
    for contest in found:
        both = [contest.methods[name] for name in (claim.method, claim.than)]
        scores = [_of_seeds(one, claim) for one in both]
        texts = [contest.mean_text(means_of(one)) if one else "none" for one in scores]
        shown.append(f"{contest.task} {' against '.join(texts)}")
        rate = contest.metric == "success"
        if claim.measure == "drop" and not rate:  # a share of the larger score that could be lost
            level = max([abs(float(np.mean(one.switch))) for one in both if one.switch] or [1.0])
            scores = [{seed: drop / level for seed, drop in one.items()} for one in scores]
            rate = True
        ours, theirs = both
        others = {claim.than: theirs.seconds}
        sides.append(
            Sides(contest.task, scores[0], {claim.than: scores[1]}, rate, ours.seconds, others)
        )
    return _judged(claim, sides, shown)


def _of_seeds(scores: DataScores, claim: Claim) -> Scores:
    """Return what a claim measures, for each seed that judges it; nothing where runs have none."""
    values: Sequence[Array] = scores.episode_scores
    if claim.measure != "score":
        values = [np.array([value]) for value in getattr(scores, claim.measure)]
    if len(values) != len(scores.seeds):  # not every run made the switch
        return {}
    return _judging(claim, scores.seeds, values)


def _data_keeps(claim: Claim, contests: Sequence[DataContest]) -> Finding:
    """Whether the score after the switch is, on average, less than a tenth below that at it.

    A task counts where the method had learned something by then: each of its runs has to be above
    each of ``than``, policies that were not trained. Nothing can be lost below that.
    """
    every = [
        one
        for one in _of_data(claim, contests)
        if all(one.methods[name].switch for name in (claim.method, claim.than) if name)
        and one.methods[claim.method].kept
    ]
    if not every:
        return Finding(claim, "not told yet", "no run made the switch", 0)
    found = [
        one
        for one in every
        if min(_at_switch(one, claim.method)) > max(_at_switch(one, claim.than))
    ]
    if not found:
        sides = (claim.method, claim.than)
        levels = "; ".join(
            f"{one.task} {' against '.join(one.mean_text(_at_switch(one, name)) for name in sides)}"
            for one in every
        )
        told = f"no more than {claim.than} at the switch: {levels}"
        return Finding(claim, "not told yet", told, 0)
    ours = [one.methods[claim.method] for one in found]
    shares = [np.array(one.kept) / np.maximum(np.abs(one.switch), 1e-12) for one in ours]
    seeds = [np.array([share]) for share in np.concatenate(shares)]
    if len(seeds) < 2:
        return Finding(claim, "not told yet", "only one run made the switch", len(found))
    change = mean_interval(seeds)
    shown = "; ".join(
        f"{contest.task} {float(share.mean()):+.0%}"
        for contest, share in zip(found, shares, strict=True)
    )
    numbers = f"{change.value:+.0%} [{change.low:+.0%}, {change.high:+.0%}] of the score: {shown}"
    return Finding(claim, _share_verdict(change, -0.1), numbers, len(found))


def _at_switch(contest: DataContest, method: str) -> tuple[float, ...]:
    """Return a method's scores at the switch; where no method is named, minus infinity."""
    return contest.methods[method].switch if method else (-float("inf"),)


_DATA_JUDGES: Mapping[str, Callable[[Claim, Sequence[DataContest]], Finding]] = {
    "higher": _data_higher,
    "keeps": _data_keeps,
}
