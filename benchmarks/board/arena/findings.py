"""What committed rows say of claims, and the page that lists it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.board.verdicts import Verdict

__all__ = ["Finding", "holm", "to_markdown"]

_READING = """\
Made by `python scripts/publish.py claims` from the rows of the arena, `offline`,
`offline-to-online` and `from-nothing` below `benchmarks/results/`;
[statistics](../../docs/statistics.md) has the method and how often it errs.

- **Difference** is the mean over the contests that have both methods, paired by seed: of success,
  or as a share of the larger one of both returns (of a drop: of both returns at the switch). Its
  interval speaks of these contests; **over such tasks** is the interval of the mean over all tasks
  like these, of which two bases of one task are a single draw (beside controls, held out). Of ways
  that a policy keeps it is the entropy from one start, as a share of the most possible.
- **Verdict**: *better*, the whole interval lies above 0; *worse*, below; *no different*, within the
  claim's margin ({margin} unless it says otherwise); *not told yet*, none of them. Then the table
  says how many seeds a contest would tell it with 80 percent power, and the core-hours of the runs
  that are missing, without the clones that they start from.
- The controls of the arena are the frozen clone, zero noise, one noise for all actions of a chunk,
  the best constant noise and the best of N samples. The first interval beside them has each
  contest's best control by all seeds, whose luck counts against the method, and the second one each
  seed's best by the other seeds. *Better* is read off the first, *worse* off the second.
- A claim with **looks** is read at these numbers of seeds and at no others, by a group-sequential
  boundary; the last one is its budget. One without was read once, with the seeds that it names.
  Every interval here has 95 percent and all seeds; at a look the verdict may ask for more.
- **Holm** is the p-value of the difference, corrected for all claims on this page that have one.
- **P(better)** is the chance that a random run of the first method beats a random run of the
  second. Runs that start from nothing stand beside each kind of base and count once. A claim on
  environment steps is read off the mean curves, without an interval; one on most contests counts
  them, with the exact interval of a share.
"""


@dataclass(frozen=True)
class Finding:
    """What the rows say of a claim.

    Attributes:
        claim: the claim.
        verdict: the verdict.
        numbers: the two sides in each contest.
        contests: how many of them.
        difference: the mean difference that *better* is read off, if it has one.
        held_out: against controls: the one that *worse* is read off.
        over_tasks: the mean difference over all tasks like these.
        better: P(better).
        p_value: of the difference, two-sided.
        seeds_to_tell: number of seeds a contest that would tell it, where it is not told; None if
            no number would.
        missing: what would tell it, in words.
    """

    claim: Claim
    verdict: Verdict
    numbers: str
    contests: int
    difference: Interval | None = None
    held_out: Interval | None = None
    over_tasks: Interval | None = None
    better: Interval | None = None
    p_value: float | None = None
    seeds_to_tell: int | None = None
    missing: str = ""


def to_markdown(findings: Sequence[Finding]) -> str:
    """Return the table of claims."""
    corrected = holm([one.p_value for one in findings])
    told = [one.verdict for one in findings]
    counts = ", ".join(
        f"{told.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(told))
    )
    lines = [
        "| claim | verdict | difference | over such tasks | Holm | P(better) | contests | missing "
        "|",
        "| :-- | :-- | :-- | :-- | --: | :-- | --: | :-- |",
    ]
    for one, p_value in zip(findings, corrected, strict=True):
        difference = "; held out ".join(
            found.text(signed=True) for found in (one.difference, one.held_out) if found
        )
        new = one.over_tasks.text(signed=True) if one.over_tasks else "–"
        looks = f" (looks at {', '.join(map(str, one.claim.looks))})" if one.claim.looks else ""
        lines.append(
            f"| {one.claim.text}{looks} | **{one.verdict}** | {difference or '–'} | {new} | "
            f"{'–' if p_value is None else f'{p_value:.2g}'} | "
            f"{one.better.text() if one.better else '–'} | {one.contests} | {one.missing or '–'} |"
        )
    behind = ["| claim | source | tier | both sides |", "| :-- | :-- | :-- | :-- |"]
    behind += [
        f"| {one.claim.text} | {one.claim.source} | {one.claim.tier} | {one.numbers} |"
        for one in findings
    ]
    parts = ["# Claims", f"Of {len(told)} claims: {counts}.", "\n".join(lines)]
    parts += [_READING.format(margin=Claim.margin), "## The numbers", "\n".join(behind)]
    return "\n\n".join(parts) + "\n"


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for there being several (Holm 1979); None stays None."""
    order = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, number) in enumerate(order):
        largest = max(largest, min(p * (len(order) - place), 1.0))
        corrected[number] = largest
    return corrected
