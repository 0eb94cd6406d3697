"""Which runs come next: the next look of each claim that its looks are likely to tell.

A claim is read at its looks alone (``claims.yaml``), so seeds between two looks tell nothing. One
whose difference, as it looks now, no look would tell is left out: its runs would be in vain. Runs
that several claims wait for are made once: after a claim is planned, its runs cost the others
nothing. So the order is that of the fewest further core-hours a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.arena.findings import Finding

__all__ = ["NextLook", "may_be_told", "plan_looks"]

Record = Mapping[str, Any]
Run = tuple[str, int]


@dataclass(frozen=True)
class NextLook:
    """A claim's next look.

    Attributes:
        claim: the claim.
        look: number of seeds a contest at which it is read.
        runs: names and seeds of what is missing, and is not planned for a claim before it.
        hours: core-hours of these, by the committed seconds of runs of the same name.
    """

    claim: Claim
    look: int
    runs: tuple[Run, ...]
    hours: float


def plan_looks(
    findings: Sequence[Finding],
    records: Mapping[str, Sequence[Record]],
    controls: Sequence[str],
) -> list[NextLook]:
    """Return the next looks of the claims that are not told and :func:`may_be_told`, in order.

    Args:
        findings: what committed rows say of the claims.
        records: one a committed run, by the claims' name of its suite (empty for the arena).
        controls: the arena's controls.
    """
    waiting = [one.claim for one in findings if may_be_told(one)]
    made = {suite: {(one["name"], one["seed"]) for one in runs} for suite, runs in records.items()}
    found: list[NextLook] = []
    while waiting:
        options = [
            look
            for claim in waiting
            if (look := _next_look(claim, records[claim.suite], controls, made[claim.suite]))
        ]
        if not options:
            break
        best = min(options, key=lambda one: one.hours)
        found.append(best)
        made[best.claim.suite].update(best.runs)
        waiting.remove(best.claim)
    return found


def may_be_told(finding: Finding) -> bool:
    """Return whether one of a claim's looks would tell it with 80 percent power."""
    needed, looks = finding.seeds_to_tell, finding.claim.looks
    waits = finding.verdict == "not told yet" and bool(looks)
    return waits and needed is not None and needed <= looks[-1]


def _next_look(
    claim: Claim, records: Sequence[Record], controls: Sequence[str], made: set[Run]
) -> NextLook | None:
    """Return the first look that lacks runs; None if all are there, or no contest has the claim."""
    names = _names(claim, records, controls)
    committed = {(one["name"], one["seed"]) for one in records}
    for look in claim.looks:
        seeds = claim.seeds[:look] if claim.seeds else tuple(range(look))
        if all((name, seed) in committed for name in names for seed in seeds):
            continue
        runs = [(name, seed) for name in names for seed in seeds if (name, seed) not in made]
        hours = sum(_seconds(name, records) for name, _ in runs) / 3600
        return NextLook(claim, look, tuple(runs), hours) if names else None
    return None


def _names(claim: Claim, records: Sequence[Record], controls: Sequence[str]) -> list[str]:
    """Return the names of the runs that a claim is judged by, with those of their bases.

    Its contests are those in which its method has a run already, of the seeds that judge it.
    """
    methods = {claim.method, claim.than} if claim.than else {claim.method, *controls}
    contests = set()
    for one in records:
        task, base, method = _place(one)
        judged = not claim.seeds or one["seed"] in claim.seeds
        spoken_of = task in (claim.tasks or {task})
        if method == claim.method and judged and spoken_of:
            contests.add((task, base))
    tasks = {task for task, _ in contests}
    names: dict[str, None] = {}
    for one in records:
        task, base, method = _place(one)
        there = (task, base) in contests or (base is None and task in tasks)
        if there and not one["place"].get("variant") and method in {None, *methods}:
            names[one["name"]] = None
    return [*names]


def _place(record: Record) -> tuple[str, str | None, str | None]:
    place = record["place"]
    return place["task"], place.get("base"), place.get("method")


def _seconds(name: str, records: Sequence[Record]) -> float:
    return median(float(one["seconds"]) for one in records if one["name"] == name)
