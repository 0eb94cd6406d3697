"""What happens where a method goes from data to interaction: the drop, the way back, the gain.

The score at the switch is that of the last evaluation before the first environment step. Nakamoto
et al., "Cal-QL" (arXiv 2303.05479) show why it needs numbers of its own: a method can lose at once
what it had learned offline, and its final score does not tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from trimtab.benchmarks.board.arena.table import area_under, worst_drop
from trimtab.benchmarks.board.groups import scored_groups
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.board.tables import csv_table, markdown_page, write_texts
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["FILES", "Switch", "build", "steps_to_recover", "to_markdown", "write"]

FILES = ("switch.md", "switch.csv")
"""What is written."""
READING = """\
**At the switch** is the score before the first environment step, **final** that of the last
evaluation, **area** the mean score over the environment steps between. **Drop** is how far a run
fell below its score at the switch at the worst, **recovered after** the environment steps after
which no evaluation was below it any more. Of seeds that never were back their number is given, and
the steps are the median of the others. Intervals are over seeds, 95 percent; the other numbers are
means over seeds. A method that updates once a rollout has made far fewer updates than others at
the same environment step. Evaluations that are far apart hide short drops."""


@dataclass(frozen=True)
class Switch:
    """One configuration that learned from data and went on in its environment."""

    env: str
    metric: Metric
    label: str
    seeds: int
    drop: float
    recovered: float | None  # median environment steps of the seeds that recovered
    lost: int  # seeds that never did
    area: float
    at_switch: Interval
    final: Interval


def steps_to_recover(curve: Sequence[tuple[int, float]], level: float) -> int | None:
    """Return the environment steps after which a curve stays at or above ``level``; None: never.

    Args:
        curve: (environment steps, score) in order; 0 where no point is below.
        level: the score to be back at.
    """
    least = level - 1e-6 * abs(level)  # a score that is the same but for its last bits is no drop
    below = [place for place, (_, score) in enumerate(curve) if score < least]
    if not below:
        return 0
    return curve[below[-1] + 1][0] if below[-1] + 1 < len(curve) else None


def build(table: pa.Table, names: Mapping[str, str] | None = None) -> list[Switch]:
    """Return every configuration that went from data to interaction, the best final score first.

    Args:
        table: episode rows.
        names: what a suite calls configurations, by their hashes; others have a leaderboard's name.

    Raises:
        TrimtabError: if rows of one environment have different physics, or a score is not finite.
    """
    found = []
    for group in scored_groups(table):
        runs = []
        for points in group.evaluations().values():
            before = [(updates, scores) for (steps, updates), scores in points if not steps]
            after = [(steps, scores) for (steps, _), scores in points if steps]
            if before and after and before[-1][0]:
                runs.append((before[-1][1], after))
        if not runs:
            continue
        rate = group.metric == "success"
        drops, back, areas = [], [], []
        for start, after in runs:
            level = float(start.mean())
            curve = [(steps, float(scores.mean())) for steps, scores in after]
            drops.append(worst_drop(curve, level))
            back.append(steps_to_recover(curve, level))
            areas.append(area_under(curve, curve[-1][0], level))
        recovered = [steps for steps in back if steps is not None]
        found.append(
            Switch(
                env=group.env,
                metric=group.metric,
                label=(names or {}).get(group.config_hash, group.label),
                seeds=len(runs),
                at_switch=mean_interval([start for start, _ in runs], rate=rate),
                drop=float(np.mean(drops)),
                recovered=float(np.median(recovered)) if recovered else None,
                lost=len(back) - len(recovered),
                final=mean_interval([after[-1][1] for _, after in runs], rate=rate),
                area=float(np.mean(areas)),
            )
        )
    return sorted(found, key=lambda one: (one.env, -one.final.value, one.label))


def to_markdown(found: Sequence[Switch]) -> str:
    """Return a table an environment as Markdown."""
    tables = defaultdict[str, list[dict[str, str]]](list)
    for one in found:
        tables[one.env].append(_cells(one))
    return markdown_page("From offline to online", READING, tables)


def _cells(one: Switch) -> dict[str, str]:
    digits = 2 if one.metric == "success" else 0
    back = "never" if one.recovered is None else f"{one.recovered:,.0f}"
    if one.recovered is not None and one.lost:
        back += f"; never: {one.lost} of {one.seeds}"
    return {
        "Method": one.label,
        "At the switch [95%]": one.at_switch.text(digits),
        "Drop": number_text(one.drop, digits, signed=True),
        "Recovered after": back,
        "Final [95%]": one.final.text(digits),
        "Area": number_text(one.area, digits),
        "Seeds": str(one.seeds),
    }


def write(table: pa.Table, folder: Path, names: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Write ``switch.md`` and ``switch.csv``, if any run made the switch; return paths by name."""
    found = build(table, names)
    if not found:
        return {}
    lines = csv_table([vars(one) for one in found], ["at_switch", "final"])
    return write_texts(folder, dict(zip(FILES, (to_markdown(found), lines), strict=True)))
