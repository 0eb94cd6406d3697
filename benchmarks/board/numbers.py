"""From groups to numbers: the row of a configuration, and the aggregates over environments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.benchmarks.board.baselines import last_scores
from trimtab.benchmarks.board.groups import Evaluations, Group
from trimtab.benchmarks.board.intervals.kinds import IntervalKind
from trimtab.benchmarks.board.model import Aggregate, Entry, EnvTable, Point, Run
from trimtab.benchmarks.board.stats import Array

__all__ = ["Numbers", "aggregates_of"]


@dataclass(frozen=True)
class Numbers:
    """The numbers of one environment's rows; ``rate`` where they are success rates."""

    kind: IntervalKind
    rate: bool

    def entry(self, group: Group, baseline: Group | None) -> Entry:
        """Return a configuration's row."""
        evaluations, last = group.evaluations(), group.last()
        runs = tuple(
            Run(
                seed=seed,
                env_steps=points[-1][0][0],
                updates=points[-1][0][1],
                episodes=len(points[-1][1]),
                last=float(points[-1][1].mean()),
                best=max(float(scores.mean()) for _, scores in points),
            )
            for seed, points in evaluations.items()
        )
        ours = [last[seed] for seed in sorted(last)]
        return Entry(
            label=group.label,
            algorithm=group.algorithm,
            policy=group.policy,
            base=group.base,
            dataset=group.dataset,
            config_hash=group.config_hash,
            runs=runs,
            iqm=self.kind.iqm(ours, self.rate),
            mean=self.kind.mean(ours, self.rate),
            best=float(np.mean([run.best for run in runs])),
            curve=self._curve(evaluations),
            **(self._comparison(group, baseline) if baseline else {}),
        )

    def _comparison(self, group: Group, baseline: Group) -> dict[str, Any]:
        ours, theirs = last_scores(group, baseline)
        ours_means = {seed: float(scores.mean()) for seed, scores in ours.items()}
        base_means = {seed: float(scores.mean()) for seed, scores in theirs.items()}
        level = float(np.mean(list(base_means.values())))  # for a seed that has no partner
        return {
            "baseline": baseline.label,
            "difference": self.kind.difference(ours, theirs, self.rate),
            "lowest_difference": min(
                mean - base_means.get(seed, level) for seed, mean in ours_means.items()
            ),
            "improvement": self.kind.improvement(
                [np.array([*ours_means.values()])], [np.array([*base_means.values()])]
            ),
        }

    def _curve(self, evaluations: Evaluations) -> tuple[Point, ...]:
        """Return the k-th evaluations of all seeds as one point, for each k.

        Episodes that end early make the step counts of seeds differ a little; the point stands at
        the median count.
        """
        points = []
        for k in range(max(len(run) for run in evaluations.values())):
            present = [run[k] for run in evaluations.values() if k < len(run)]
            points.append(
                Point(
                    env_steps=int(np.median([steps for (steps, _), _ in present])),
                    updates=int(np.median([updates for (_, updates), _ in present])),
                    seeds=len(present),
                    score=self.kind.mean([scores for _, scores in present], self.rate),
                )
            )
        return tuple(points)


def aggregates_of(tables: Sequence[EnvTable], kind: IntervalKind) -> list[Aggregate]:
    """Return the methods over all environments that have a success rate, if several do.

    Returns have no common scale, so they are in no aggregate.
    """
    tables = [table for table in tables if table.metric == "success"]
    if len(tables) < 2:
        return []
    by_label: dict[str, dict[str, Entry]] = defaultdict(dict)
    for table in tables:
        for entry in table.entries:
            by_label[entry.label][table.env] = entry
    result = []
    for label, entries in by_label.items():
        scores = [_last_scores(entry) for entry in entries.values()]
        episodes = [[run.episodes for run in entry.runs] for entry in entries.values()]
        pairs = [
            (_last_scores(entry), _last_scores(by_label[entry.baseline][env]))
            for env, entry in entries.items()
            if entry.baseline is not None
        ]
        found = kind.aggregates(scores, episodes)
        result.append(
            Aggregate(
                label=label,
                envs=tuple(entries),
                runs=sum(len(task) for task in scores),
                iqm=found.iqm,
                median=found.median,
                mean=found.mean,
                optimality_gap=found.optimality_gap,
                improvement=kind.improvement(*zip(*pairs, strict=True)) if pairs else None,
            )
        )
    return sorted(result, key=lambda row: (-len(row.envs), -row.iqm.value, row.label))


def _last_scores(entry: Entry) -> Array:
    return np.array([run.last for run in entry.runs], np.float64)
