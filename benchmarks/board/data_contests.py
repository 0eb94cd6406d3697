"""What claims on methods of data are judged by: each method's runs on each task of a suite.

A suite's ``runs.json`` says which task and which name in its grid a configuration has. Rows alone
do not tell: two tasks may share an environment and differ in their data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trimtab.benchmarks.board.arena.table import area_under, worst_drop
from trimtab.benchmarks.board.groups import Group, scored_groups
from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["DataContest", "DataScores", "contests_of"]


@dataclass(frozen=True)
class DataScores:
    """One method's runs on one task; each tuple has a value a seed.

    Attributes:
        score: at the last evaluation.
        drop: how far the score fell below that at the switch at the worst, at most 0; empty for
            runs that stayed offline.
        kept: the mean score over the environment steps less that at the switch; empty likewise.
        switch: the score at the switch; empty likewise.
        seeds: the seed of each run.
        episode_scores: the scores of each run's last evaluation.
        seconds: wall time of a run, median over seeds.
    """

    score: tuple[float, ...]
    drop: tuple[float, ...] = ()
    kept: tuple[float, ...] = ()
    switch: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    episode_scores: tuple[NDArray[np.float64], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class DataContest:
    """Every method on one task."""

    task: str
    metric: Metric
    methods: Mapping[str, DataScores]

    def mean_text(self, values: Sequence[float] | NDArray[np.float64]) -> str:
        """Return the mean of some scores in this task's unit: a rate has two digits behind 0."""
        return number_text(float(np.mean(values)), 2 if self.metric == "success" else 0)


def contests_of(table: pa.Table, records: Sequence[Mapping[str, Any]]) -> list[DataContest]:
    """Return the contests of a suite without frozen bases, in the order of its records.

    Args:
        table: episode rows.
        records: what its ``runs.json`` says.

    Raises:
        TrimtabError: if rows of one environment have different physics, or a score is not finite.
    """
    groups = {group.config_hash: group for group in scored_groups(table)}
    found: dict[str, dict[str, DataScores]] = defaultdict(dict)
    scored_by: dict[str, Metric] = {}
    for record in records:
        place, group = record["place"], groups.get(record["config_hash"])
        if place.get("variant") is not None:  # a claim is about a method's one setting
            continue
        if group is not None and place["method"] not in found[place["task"]]:
            seconds = [
                float(one.get("seconds", 0.0))
                for one in records
                if one["config_hash"] == group.config_hash
            ]
            scores = replace(_scores(group), seconds=median(seconds))
            found[place["task"]][place["method"]] = scores
            scored_by[place["task"]] = group.metric
    return [
        DataContest(task, scored_by[task], methods) for task, methods in found.items() if methods
    ]


def _scores(group: Group) -> DataScores:
    evaluations = group.evaluations()
    drops, kept, switch = [], [], []
    for points in evaluations.values():
        before = [scores for (steps, updates), scores in points if not steps and updates]
        after = [(steps, float(scores.mean())) for (steps, _), scores in points if steps]
        if before and after:
            level = float(np.mean(before[-1]))
            switch.append(level)
            drops.append(worst_drop(after, level))
            kept.append(area_under(after, after[-1][0], level) - level)
    last = tuple(points[-1][1] for points in evaluations.values())
    return DataScores(
        tuple(float(scores.mean()) for scores in last),
        tuple(drops), tuple(kept), tuple(switch), tuple(evaluations), last,
    )  # fmt: skip
