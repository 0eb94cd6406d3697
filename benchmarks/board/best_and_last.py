"""What the length of a run changes: the scores of its first, its best and its last evaluation.

The best evaluation is chosen after the fact, by the episodes that its score is made of, so that
score is too high. Chosen for each seed by the other seeds, it tells what a user gets who stops a
run of their own after as many updates as were best in earlier runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from trimtab.benchmarks.board.groups import Evaluations, scored_groups
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.board.tables import csv_table, markdown_page, write_texts
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["FILES", "BestAndLast", "build", "held_out_best", "to_markdown", "write"]

FILES = ("best_and_last.md", "best_and_last.csv")
"""What is written."""
READING = """\
**First** and **last** are the first and the last evaluation of each run. **Best** is the evaluation
with the highest mean over the seeds, after as many updates as stand beside it; it is chosen by the
episodes that it is made of, and so too high. **Best by the other seeds** is what each seed has
after as many updates as were best in the others: what stopping early would be worth in a new run.
Intervals are over seeds, 95 percent; with one seed they are over its episodes alone."""


@dataclass(frozen=True)
class BestAndLast:
    """One configuration's scores along its runs.

    Attributes:
        updates_at_best: gradient updates after which the mean over the seeds is highest.
        held_out: mean over the seeds of the score after as many updates as were best in the
            others; None with one seed.
    """

    env: str
    dataset: str | None
    metric: Metric
    label: str
    seeds: int
    updates: int
    first: Interval
    last: Interval
    best: float
    updates_at_best: int
    held_out: float | None


def held_out_best(means: Sequence[Sequence[float]]) -> float | None:
    """Return the mean over runs of the score at the evaluation that is best in the other runs.

    Args:
        means: ``[S, K]``, mean scores of the same K evaluations of S runs; the first counts where
            several are best.

    Returns:
        The mean; None of one run, which has no others.
    """
    scores = np.array(means, np.float64)
    if len(scores) < 2:
        return None
    others = scores.sum(0) - scores
    return float(scores[np.arange(len(scores)), others.argmax(1)].mean())


def build(table: pa.Table, names: Mapping[str, str] | None = None) -> list[BestAndLast]:
    """Return every configuration that was evaluated more than once, the best last score first.

    Args:
        table: episode rows.
        names: what a suite calls configurations, by their hashes; others have a leaderboard's name.

    Raises:
        TrimtabError: if rows of one environment have different physics, or a score is not finite.
    """
    found = []
    for group in scored_groups(table):
        runs = group.evaluations()
        points = _points_of_all(runs)
        if len(points) < 2:
            continue
        at = {seed: dict(evaluations) for seed, evaluations in runs.items()}
        first, last = (
            mean_interval([each[point] for each in at.values()], rate=group.metric == "success")
            for point in (points[0], points[-1])
        )
        means = [[float(each[point].mean()) for point in points] for each in at.values()]
        course = np.mean(means, 0)
        found.append(
            BestAndLast(
                env=group.env,
                dataset=group.dataset,
                metric=group.metric,
                label=(names or {}).get(group.config_hash, group.label),
                seeds=len(runs),
                updates=points[-1][1],
                first=first,
                last=last,
                best=float(course.max()),
                updates_at_best=points[int(course.argmax())][1],
                held_out=held_out_best(means),
            )
        )
    return sorted(found, key=lambda one: (one.env, one.dataset or "", -one.last.value, one.label))


def _points_of_all(runs: Evaluations) -> list[tuple[int, int]]:
    """Return where all runs were evaluated, in order."""
    shared = set.intersection(*({point for point, _ in each} for each in runs.values()))
    return sorted(shared, key=lambda point: (sum(point), point))


def to_markdown(found: Sequence[BestAndLast]) -> str:
    """Return a table for each task and dataset as Markdown."""
    tables = defaultdict[str, list[dict[str, str]]](list)
    for one in found:
        tables[one.env + (f", {one.dataset}" if one.dataset else "")].append(_cells(one))
    return markdown_page("First, best and last", READING, tables)


def _cells(one: BestAndLast) -> dict[str, str]:
    digits = 2 if one.metric == "success" else 0
    return {
        "Method": one.label,
        "First [95%]": one.first.text(digits),
        "Best": number_text(one.best, digits),
        "after updates": f"{one.updates_at_best:,}",
        "Best by the other seeds": "–"
        if one.held_out is None
        else number_text(one.held_out, digits),
        "Last [95%]": one.last.text(digits),
        "Updates": f"{one.updates:,}",
        "Seeds": str(one.seeds),
    }


def write(table: pa.Table, folder: Path, names: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Write ``best_and_last.md`` and ``.csv``, if a run has several evaluations; return paths."""
    found = build(table, names)
    if not found:
        return {}
    lines = csv_table([vars(one) for one in found], ["first", "last"])
    return write_texts(folder, dict(zip(FILES, (to_markdown(found), lines), strict=True)))
