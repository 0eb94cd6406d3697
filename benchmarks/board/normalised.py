"""Returns as 100 (return - minimum) / (maximum - minimum), by references that have a name.

A task may carry several pairs of references. ``trimtab-v0`` is ours: random actions and the experts
of our own tiers, measured on this stack. ``d4rl-v2`` is that of Fu et al., "D4RL" (arXiv
2004.07219), measured under another engine and other versions of the tasks; it stands beside ours to
compare with published tables, and no mean is taken over both.

Two scores of each run: its last evaluation, and the best of its evaluations. The second is chosen
by the very episodes that it is made of, so that it is too high; papers print one or the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from trimtab.benchmarks.board.groups import scored_groups
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.board.tables import csv_table, markdown_page, write_texts
from trimtab.benchmarks.core.numerals import number_text
from trimtab.envs.registry import list_tasks

__all__ = [
    "FILES", "PUBLISHED", "Normalised", "build", "normalised", "to_csv", "to_markdown", "write",
]  # fmt: skip

FILES = ("normalised.md", "normalised.csv")
"""What is written."""
READING = """\
Returns as 100 (return - minimum) / (maximum - minimum). A column is called after the table that its
minimum and maximum are from: `trimtab-v0` is random actions and the experts of our own tiers on
this stack; `d4rl-v2` is D4RL's, which were measured with another engine, so that it tells how near
a published number is, not whether it is reached. **Last** is the last evaluation of each run,
**best** the highest of its evaluations, chosen by the same episodes and so too high. Intervals are
over seeds, 95 percent. Tasks that are judged by success, or have no references, are not here."""
PUBLISHED = "~published"
"""End of the name of a configuration whose settings its authors chose for its task."""


@dataclass(frozen=True)
class Normalised:
    """One configuration's scores by one pair of references."""

    env: str
    dataset: str | None
    label: str
    references: str
    minimum: float
    maximum: float
    seeds: int
    best: float
    returns: Interval  # of the last evaluation, raw
    last: Interval


def normalised(value: float, minimum: float, maximum: float) -> float:
    """Return a return as a percentage of the way from the minimum to the maximum."""
    return 100.0 * (value - minimum) / (maximum - minimum)


def build(table: pa.Table, names: Mapping[str, str] | None = None) -> list[Normalised]:
    """Return the scores of every configuration whose task has references, by task and data.

    Args:
        table: episode rows.
        names: what a suite calls configurations, by their hashes; others have a leaderboard's name.

    Raises:
        TrimtabError: if rows of one environment have different physics, or a score is not finite.
    """
    tasks, found = list_tasks(), []
    for group in scored_groups(table):
        task = tasks.get(group.env)
        if task is None or group.metric != "return":
            continue
        runs = group.evaluations()
        returns = mean_interval([points[-1][1] for points in runs.values()])
        best = np.mean([max(scores.mean() for _, scores in points) for points in runs.values()])
        label = (names or {}).get(group.config_hash, group.label)
        for name, (minimum, maximum) in task.score_references.items():
            last = Interval(*(normalised(end, minimum, maximum) for end in returns))
            found.append(
                Normalised(
                    env=group.env, dataset=group.dataset, label=label, references=name,
                    minimum=minimum, maximum=maximum, seeds=len(runs), returns=returns, last=last,
                    best=normalised(float(best), minimum, maximum),
                )
            )  # fmt: skip
    return sorted(
        found, key=lambda one: (one.env, one.dataset or "", -one.returns.value, one.label)
    )


def to_markdown(
    found: Sequence[Normalised], title: str = "Normalised scores", reading: str = READING
) -> str:
    """Return a table for each task and dataset as Markdown."""
    places: dict[tuple[str, str | None], dict[str, list[Normalised]]] = defaultdict(dict)
    for one in found:
        places[one.env, one.dataset].setdefault(one.label, []).append(one)
    tables = {
        env + (f", {dataset}" if dataset else ""): [_cells(scores) for scores in methods.values()]
        for (env, dataset), methods in places.items()
    }
    return markdown_page(title, reading, tables)


def _cells(scores: Sequence[Normalised]) -> dict[str, str]:
    cells = {"Method": scores[0].label, "Return [95%]": scores[0].returns.text(0)}
    for one in sorted(scores, key=lambda one: one.references, reverse=True):
        cells[f"{one.references}, last [95%]"] = one.last.text(1)
        cells[f"{one.references}, best"] = number_text(one.best, 1)
    return cells | {"Seeds": str(scores[0].seeds)}


def write(table: pa.Table, folder: Path, names: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Write ``normalised.md`` and ``.csv``, if any task has references; return paths by name.

    What has settings of its own for one task is not in it: every method has one setting for all.
    """
    found = [one for one in build(table, names) if not one.label.endswith(PUBLISHED)]
    if not found:
        return {}
    return write_texts(folder, dict(zip(FILES, (to_markdown(found), to_csv(found)), strict=True)))


def to_csv(found: Sequence[Normalised]) -> str:
    """Return the scores as lines of values separated by commas, with a header."""
    return csv_table([vars(one) for one in found], ["returns", "last"])
