"""What policies keep of several equally good ways: the entropy of the ways, and its worth.

``modes.csv`` has a row for each start of each run, written by
``benchmarks/results/from-nothing/modes.py``: how many of a policy's draws took each way, and how
many succeeded after the way that the policy takes most often had been closed.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.benchmarks.board.data_contests import DataContest, DataScores
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.tables import markdown_page
from trimtab.benchmarks.core.numerals import number_text
from trimtab.errors import TrimtabError

__all__ = ["COLUMNS", "CONTROL", "MEASURES", "Modes", "contests_of_modes", "entropy", "read_modes",
           "to_markdown"]  # fmt: skip

COLUMNS = ("env", "config_hash", "seed", "start", "draws", "ways", "closed")
"""Of ``modes.csv``: ``ways`` are counts of successful draws, one a way, with a space between;
``closed`` counts successful draws with the favourite way closed, and is empty where none can be."""
CONTROL = "random pushes"
"""The control, which stands where a run has its hash: nothing was learned."""
FEW = 0.1
"""Share of the draws from which on a way counts as kept."""
RELIABLE = 0.9
"""Share of the draws from a start that must succeed, or no way counts as kept."""
ENOUGH = 5
"""Successful draws from a start from which on their ways have an entropy."""
READING = """\
From each of ten starts a policy acts 25 times and its own noise alone differs; a row is the mean
over runs, with the 95 percent interval of it. **Success** is the share of draws that reach a goal.
**Entropy** is that of the ways from one start, as a share of the most that there can be: 0, one way
alone; 1, all ways alike. It has Miller and Madow's correction for the number of draws. **Ways** are
those with at least a tenth of the draws. Both are 0 where less than nine tenths of the draws from a
start succeed: random pushes come upon a goal of four in half of the draws, and upon each as often.
**Reliable** is the share of starts where nine tenths do. **Of successes** is the entropy without
that condition, over starts with five successes or more: high where a policy gets about as random
pushes do. **Closed** is the success after the way that the policy takes most often from a start has
been walled up, without any further learning: what modes are worth, and also what a policy can do
that sees that it does not get on."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Modes:
    """What one run's policy keeps; each tuple has a value a start.

    Attributes:
        env: the task.
        config_hash: of the run.
        seed: of the run.
        success: share of draws that reach a goal.
        entropy: of the ways, as a share of the most possible; 0 where draws are not reliable.
        ways: how many ways have at least a tenth of the draws; 0 likewise.
        reliable: share of starts whose draws are reliable.
        of_successes: entropy of the ways of successful draws, at each start with enough of them.
        closed: share of successful draws with the favourite way closed; empty where none can be.
    """

    env: str
    config_hash: str
    seed: int
    success: tuple[float, ...]
    entropy: tuple[float, ...]
    ways: tuple[int, ...]
    reliable: float
    of_successes: tuple[float, ...]
    closed: tuple[float, ...]


def entropy(counts: Array) -> float:
    """Return the entropy of counted ways, as a share of the most possible, in [0, 1].

    Miller (1955): the estimate from shares is too small by about ``(K - 1) / (2 n)`` nats for K
    ways that were seen in n draws.

    Args:
        counts: draws that took each way, at least two ways.
    """
    total = counts.sum()
    if not total:
        return 0.0
    shares = counts[counts > 0] / total
    nats = -(shares * np.log(shares)).sum() + (len(shares) - 1) / (2 * total)
    return min(float(nats) / math.log(len(counts)), 1.0)


def read_modes(path: Path) -> list[Modes]:
    """Return what each run of ``modes.csv`` keeps, in the order of the file.

    Raises:
        TrimtabError: if the file cannot be read or has other columns.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        if not rows or tuple(rows[0]) != COLUMNS:
            raise ValueError(f"its columns must be {', '.join(COLUMNS)}")
        runs = defaultdict[tuple[str, str, int], list[dict[str, str]]](list)
        for row in rows:
            runs[row["env"], row["config_hash"], int(row["seed"])].append(row)
        return [_modes(run, starts) for run, starts in runs.items()]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrimtabError(f"{path}: cannot be read: {error}") from error


def _modes(run: tuple[str, str, int], starts: Sequence[Mapping[str, str]]) -> Modes:
    draws = [int(row["draws"]) for row in starts]
    counts = [np.array(row["ways"].split(), np.float64) for row in starts]
    success = [float(one.sum()) / n for one, n in zip(counts, draws, strict=True)]
    kept = [
        one if rate >= RELIABLE else np.zeros_like(one)
        for one, rate in zip(counts, success, strict=True)
    ]
    closed = [int(row["closed"]) / n for row, n in zip(starts, draws, strict=True) if row["closed"]]
    return Modes(
        *run,
        tuple(success),
        tuple(entropy(one) for one in kept),
        tuple(int((one >= FEW * n).sum()) for one, n in zip(kept, draws, strict=True)),
        sum(rate >= RELIABLE for rate in success) / len(success),
        tuple(entropy(one) for one in counts if one.sum() >= ENOUGH),
        tuple(closed),
    )


MEASURES: Mapping[str, Callable[[Modes], tuple[float, ...]]] = {
    "modes": lambda one: one.entropy,
    "closed": lambda one: one.closed,
}
"""What a claim may speak of, by what it names as its suite."""


def contests_of_modes(
    runs: Sequence[Modes], records: Sequence[Mapping[str, Any]], measure: str
) -> list[DataContest]:
    """Return the contests of a measure: every method on one task.

    Args:
        runs: what was measured.
        records: what the suite's ``runs.json`` says; it names tasks and methods.
        measure: a key of ``MEASURES``.
    """
    seconds = defaultdict[str, list[float]](list)
    for one in records:
        seconds[one["config_hash"]].append(float(one.get("seconds", 0.0)))
    found: dict[str, dict[str, DataScores]] = {}
    for (task, method), mine in _by_place(runs, records).items():
        scores = {one.seed: MEASURES[measure](one) for one in mine}
        if all(scores.values()):
            found.setdefault(task, {})[method] = DataScores(
                score=tuple(float(np.mean(values)) for values in scores.values()),
                seeds=tuple(scores),
                episode_scores=tuple(np.array(values) for values in scores.values()),
                seconds=median(seconds.get(mine[0].config_hash, [0.0])),
            )
    return [DataContest(task, "success", methods) for task, methods in found.items()]


def to_markdown(runs: Sequence[Modes], records: Sequence[Mapping[str, Any]]) -> str:
    """Return a table for each task, the method with the most entropy first."""
    tables = defaultdict[str, list[tuple[float, dict[str, str]]]](list)
    for (task, method), mine in _by_place(runs, records).items():
        kept = mean_interval([np.array(one.entropy) for one in mine], rate=True)
        several = [value for one in mine for value in one.of_successes]
        cells = {
            "method": method,
            "seeds": str(len(mine)),
            "success": mean_interval([np.array(one.success) for one in mine], rate=True).text(),
            "entropy": kept.text(),
            "ways": f"{np.mean([one.ways for one in mine]):.1f}",
            "reliable": number_text(float(np.mean([one.reliable for one in mine]))),
            "of successes": number_text(float(np.mean(several))) if several else "–",
        }
        if all(one.closed for one in mine):
            closed = mean_interval([np.array(one.closed) for one in mine], rate=True)
            cells["closed"] = closed.text()
        tables[task].append((kept.value, cells))
    ordered = {
        task: [cells for _, cells in sorted(rows, key=lambda row: -row[0])]
        for task, rows in tables.items()
    }
    return markdown_page("Modes", READING, ordered)


def _by_place(
    runs: Sequence[Modes], records: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], list[Modes]]:
    """Return runs by their task and method in the suite's grid, in the order of the records."""
    places = {
        one["config_hash"]: (one["place"]["task"], one["place"]["method"])
        for one in records
        if one["place"].get("method")
    }
    tasks = {one.env: places[one.config_hash][0] for one in runs if one.config_hash in places}
    found: dict[tuple[str, str], list[Modes]] = {place: [] for place in places.values()}
    for one in runs:
        if one.config_hash in places:
            found[places[one.config_hash]].append(one)
        elif one.config_hash == CONTROL and one.env in tasks:
            found[tasks[one.env], CONTROL] = [one]
    return {place: sorted(mine, key=lambda one: one.seed) for place, mine in found.items() if mine}
