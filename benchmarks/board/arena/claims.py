"""Claims of papers, held against committed rows: holds, does not hold, or cannot be told.

``claims.yaml`` lists the claims; each is judged in every contest that has what it speaks of, and
over all of them together. A claim holds where the whole interval of P(better) lies above one half,
does not hold where all of it lies below, and cannot be told otherwise. Most are of the arena; a
claim with ``suite`` is of one of the suites of data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.stats import binomtest

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest
from trimtab.benchmarks.board.data_contests import DataContest
from trimtab.benchmarks.board.intervals.improvement import improvement_interval
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["Finding", "find", "to_markdown"]

Pair = tuple[Contest, ArenaRow, ArenaRow]
Verdict = Literal["holds", "does not hold", "cannot be told"]
_READING = """\
Made by `python scripts/publish.py claims` from the rows of the arena, `offline` and
`offline-to-online` below `benchmarks/results/`.
**P(better)** is the chance that a random run of the first method beats a random run of the
second, over the contests that have both, with its 95 percent interval; all of it above one half
means that the claim holds at this size, all of it below that it does not. Runs that start from
nothing stand beside each kind of base; they count once, against the mean over the bases. A claim
on environment steps is read off the mean curves, without an interval. A claim on most contests
counts them, with the exact interval of a share. A claim that was written after its rows were seen
is judged again by seeds that were run later; the best control is that of all seeds, or where it is
said, that of the first ones. What cannot be told needs more seeds or longer runs, or is not there
yet."""


@dataclass(frozen=True)
class Finding:
    """What the rows say of a claim."""

    claim: Claim
    verdict: Verdict
    numbers: str
    contests: int


def find(
    claims: Sequence[Claim], arena: Arena, data: Mapping[str, Sequence[DataContest]] | None = None
) -> list[Finding]:
    """Return what committed rows say of each claim.

    Args:
        claims: the claims.
        arena: the arena's tables.
        data: the contests of each suite of data that has rows, by its name.
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
        if claim.bases and contest.base not in claim.bases:
            continue
        rows = {row.method: row for row in contest.rows if row.variant is None}
        ours = rows.get(claim.method)
        name = other(contest, ours) if ours is not None else None
        if ours is None or name not in rows:
            continue
        if all(len(_per_seed(claim, row)) for row in (ours, rows[name])):
            found.append((contest, ours, rows[name]))
    return found


def _compared(claim: Claim, pairs: Sequence[Pair]) -> Finding:
    sides = [_sides(claim, group) for group in _independent(pairs)]
    return _judged(
        claim, [ours for ours, _ in sides], [theirs for _, theirs in sides], _shown(claim, pairs)
    )


def _shown(claim: Claim, pairs: Sequence[Pair]) -> list[str]:
    """Return the two numbers of each contest."""
    return [
        f"{contest.task} ({contest.base}) "
        + " against ".join(_number(contest, _shown_value(claim, row)) for row in rows)
        for contest, *rows in pairs
    ]


def _shown_value(claim: Claim, row: ArenaRow) -> Any:
    """Return a row's number: of all seeds, or the mean of those that the claim is judged by."""
    return float(_per_seed(claim, row).mean()) if claim.seeds else getattr(row, claim.measure)


def _independent(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return pairs in groups that share no run: those of a task, where a side has no base."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        contest, *rows = pair
        shared = any(row.base is None for row in rows)
        groups.setdefault((contest.task, "" if shared else contest.base), []).append(pair)
    return list(groups.values())


def _sides(claim: Claim, group: Sequence[Pair]) -> tuple[Array, Array]:
    """Return both methods' values in a group of contests, one a seed: means over the bases."""

    def values(rows: Sequence[ArenaRow]) -> Array:
        runs = {row.config_hash: _per_seed(claim, row) for row in rows}
        seeds = min(len(run) for run in runs.values())  # the first of them are the same seeds
        mean: Array = np.mean([run[:seeds] for run in runs.values()], axis=0)
        return mean

    return values([ours for _, ours, _ in group]), values([theirs for _, _, theirs in group])


def _judged(
    claim: Claim, ours: Sequence[Array], theirs: Sequence[Array], shown: Sequence[str]
) -> Finding:
    """Return what the seeds of two methods say, in all contests that have both."""
    if not shown:
        return Finding(claim, "cannot be told", "no contest has both", 0)
    better = improvement_interval(ours, theirs)
    told = _verdict(better, 0.5)
    return Finding(claim, told, f"P(better) {better.text()}: {'; '.join(shown)}", len(ours))


def _verdict(found: Interval, limit: float) -> Verdict:
    """Return whether all of an interval lies above a limit."""
    if found.low > limit:
        return "holds"
    return "does not hold" if found.high < limit else "cannot be told"


def _per_seed(claim: Claim, row: ArenaRow) -> Array:
    values: Mapping[str, tuple[float, ...]] = {"score": row.finals, "area": row.areas}
    runs = zip(row.seeds, values[claim.measure], strict=True)
    return np.array([value for seed, value in runs if not claim.seeds or seed in claim.seeds])


def _number(contest: Contest, value: Any) -> str:
    digits = 2 if contest.metric == "success" else 0
    return number_text(value if isinstance(value, float) else value.value, digits)


def _higher(claim: Claim, arena: Arena) -> Finding:
    return _compared(claim, _pairs(claim, arena, lambda contest, ours: claim.than))


def _most(claim: Claim, arena: Arena) -> Finding:
    """Whether a method's mean is the higher one in more than half of the contests."""
    pairs = _pairs(claim, arena, lambda contest, ours: claim.than)
    if not pairs:
        return Finding(claim, "cannot be told", "no contest has both", 0)
    sides = [_sides(claim, group) for group in _independent(pairs)]
    higher = sum(bool(ours.mean() > theirs.mean()) for ours, theirs in sides)
    ends = binomtest(higher, len(sides)).proportion_ci(0.95)
    share = Interval(higher / len(sides), float(ends.low), float(ends.high))
    numbers = f"in {higher} of {len(sides)}, a share of {share.text()}"
    shown = "; ".join(_shown(claim, pairs))
    return Finding(claim, _verdict(share, 0.5), f"{numbers}: {shown}", len(sides))


def _control(claim: Claim, arena: Arena) -> Finding:
    def best(contest: Contest, ours: ArenaRow) -> str | None:
        if not claim.control_seeds:
            return ours.control
        picking = replace(claim, seeds=claim.control_seeds)
        levels = {
            row.method: float(values.mean())
            for row in contest.rows
            if row.method in arena.controls and row.variant is None
            if len(values := _per_seed(picking, row))
        }
        return max(levels, key=levels.__getitem__, default=None)

    return _compared(claim, _pairs(claim, arena, best))


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
    verdict: Verdict = "cannot be told"
    if told and all(told):
        verdict = "holds"
    elif told and all(one is False for one in told):
        verdict = "does not hold"
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


def _missing(claim: Claim, _: object) -> Finding:
    return Finding(claim, "cannot be told", claim.why, 0)


_JUDGES: Mapping[str, Callable[[Claim, Arena], Finding]] = {
    "higher": _higher,
    "most": _most,
    "control": _control,
    "sooner": _sooner,
    "missing": _missing,
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
    ours, theirs = (
        [np.array(contest.methods[name].values(claim.measure)) for contest in found]
        for name in (claim.method, claim.than)
    )
    shown = [
        f"{contest.task} "
        + " against ".join(contest.mean_text(side[number]) for side in (ours, theirs))
        for number, contest in enumerate(found)
    ]
    return _judged(claim, ours, theirs, shown)


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
        return Finding(claim, "cannot be told", "no run made the switch", 0)
    found = [
        one
        for one in every
        if min(_at_switch(one, claim.method)) > max(_at_switch(one, claim.than))
    ]
    if not found:
        levels = "; ".join(
            f"{one.task} "
            + " against ".join(
                one.mean_text(_at_switch(one, name)) for name in (claim.method, claim.than)
            )
            for one in every
        )
        return Finding(
            claim, "cannot be told", f"no more than {claim.than} at the switch: {levels}", 0
        )
    shares = [
        np.array([kept / max(abs(level), 1e-12) for kept, level in zip(*sides, strict=True)])
        for sides in ((one.methods[claim.method].kept, one.methods[claim.method].switch)
                      for one in found)
    ]  # fmt: skip
    seeds = [np.array([share]) for share in np.concatenate(shares)]
    if len(seeds) < 2:
        return Finding(claim, "cannot be told", "only one run made the switch", len(found))
    change = mean_interval(seeds)
    shown = "; ".join(
        f"{contest.task} {float(share.mean()):+.0%}"
        for contest, share in zip(found, shares, strict=True)
    )
    numbers = f"{change.value:+.0%} [{change.low:+.0%}, {change.high:+.0%}] of the score: {shown}"
    return Finding(claim, _verdict(change, -0.1), numbers, len(found))


def _at_switch(contest: DataContest, method: str) -> tuple[float, ...]:
    """Return a method's scores at the switch; where no method is named, minus infinity."""
    return contest.methods[method].switch if method else (-float("inf"),)


_DATA_JUDGES: Mapping[str, Callable[[Claim, Sequence[DataContest]], Finding]] = {
    "higher": _data_higher,
    "keeps": _data_keeps,
    "missing": _missing,
}


def to_markdown(findings: Sequence[Finding]) -> str:
    """Return the table of claims."""
    lines = [
        "| claim | source | tier | verdict | contests | numbers |",
        "| :-- | :-- | :-- | :-- | --: | :-- |",
    ]
    lines += [
        f"| {one.claim.text} | {one.claim.source} | {one.claim.tier} | **{one.verdict}** | "
        f"{one.contests} | {one.numbers} |"
        for one in findings
    ]
    return f"# Claims\n\n{_READING}\n\n" + "\n".join(lines) + "\n"
