"""The arena's tables, from episode rows and one record a run.

A method is held against the best of the controls that start from the same base, and not against
the sampled base alone. The best is chosen by its score in the judged episodes, which flatters it a
little: a gain over it is rather too small than too large.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest, CurvePoint, Overall
from trimtab.benchmarks.board.baselines import FROZEN, last_scores
from trimtab.benchmarks.board.groups import (
    Evaluations,
    Group,
    grouped,
    metric_of,
    newest_revisions,
    one_physics,
)
from trimtab.benchmarks.board.intervals.kinds import KINDS, IntervalKind, kind_of
from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.stats import REPETITIONS, Interval
from trimtab.errors import TrimtabError

__all__ = ["area_under", "build", "worst_drop"]

Record = Mapping[str, Any]
"""What ``runs.json`` says of one run."""


@dataclass(frozen=True)
class _Found:
    """One configuration: its place in the grid, its rows, its runs' records."""

    place: Mapping[str, str | None]
    group: Group
    returns: Group
    records: Sequence[Record]


def build(
    table: pa.Table,
    runs: Sequence[Record],
    controls: Sequence[str],
    *,
    intervals: str = KINDS[0],
) -> Arena:
    """Return the arena's tables.

    Args:
        table: episode rows.
        runs: one record a run, as ``runs.json`` has them.
        controls: methods of which the best is the control of a contest.
        intervals: which kind.

    Raises:
        TrimtabError: if a run has no rows, or rows cannot share a table.
    """
    table = newest_revisions(table, [])
    metrics = {env: metric_of(table, env, None) for env in one_physics(table)}
    scores = {group.config_hash: group for group in grouped(table, metrics)}
    returns = {
        group.config_hash: group for group in grouped(table, dict.fromkeys(metrics, "return"))
    }
    by_hash: dict[str, list[Record]] = defaultdict(list)
    for run in runs:
        if run["config_hash"] not in scores:
            raise TrimtabError(f"arena: the run {run['name']} has no episode rows")
        by_hash[run["config_hash"]].append(run)
    found = [
        _Found(records[0]["place"], scores[digest], returns[digest], records)
        for digest, records in by_hash.items()
        if records[0]["place"].get("method")
    ]
    kind = kind_of(intervals, REPETITIONS, 0)
    contests = []
    for task in dict.fromkeys(one.place["task"] for one in found):
        of_task = [one for one in found if one.place["task"] == task]
        bases = dict.fromkeys(one.place["base"] for one in of_task if one.place["base"])
        for base in bases:
            here = [one for one in of_task if one.place["base"] in (base, None)]
            metric = metrics[here[0].group.env]
            contests.append(_contest(str(task), str(base), here, metric, controls, kind))
    return Arena(tuple(contests), tuple(_overall(contests, controls)), tuple(controls))


def _contest(
    task: str,
    base: str,
    found: Sequence[_Found],
    metric: Metric,
    controls: Sequence[str],
    kind: IntervalKind,
) -> Contest:
    rate = metric == "success"
    frozen = next((x.group for x in found if x.place["method"] == FROZEN), None)
    budget = max(
        point[0] for x in found for points in x.group.evaluations().values() for point, _ in points
    )
    control = max(
        (x for x in found if x.place["method"] in controls and x.place.get("variant") is None),
        key=lambda x: _level(x.group),
        default=None,
    )
    rows = []
    for one in found:
        start = None if one.place["base"] is None else frozen
        beside = None if one.place["method"] in controls else control
        rows.append(_row(one, start, beside, budget, kind, rate))
    best = max(row.area for row in rows)
    rows = [replace(row, regret=best - row.area) for row in rows]
    rows.sort(key=lambda row: (-row.score.value, -row.area, row.label))
    level = None if frozen is None else kind.mean([*frozen.last().values()], rate)
    return Contest(task, found[0].group.env, base, metric, level, tuple(rows))


def _level(group: Group) -> float:
    return float(np.mean([scores.mean() for scores in group.last().values()]))


def _row(
    one: _Found,
    start: Group | None,
    control: _Found | None,
    budget: int,
    kind: IntervalKind,
    rate: bool,
) -> ArenaRow:
    """Return a row without its regret, which the other rows of its contest decide."""

    def gain(other: Group | None) -> Interval | None:
        if other is None or other is one.group:
            return None
        return kind.difference(*last_scores(one.group, other), rate)

    evaluations, base = one.group.evaluations(), start.last() if start else {}
    levels = {seed: float(scores.mean()) for seed, scores in base.items()}
    curves = {
        seed: [(steps, float(scores.mean())) for (steps, _), scores in points]
        for seed, points in evaluations.items()
    }
    areas = tuple(area_under(curves[s], budget, levels.get(s)) for s in sorted(curves))
    drops = [worst_drop(curve, levels[s]) for s, curve in curves.items() if s in levels]
    first = one.records[0]
    timed = next((x for x in one.records if x.get("decision_ms")), {})
    milliseconds = timed.get("decision_ms", {})
    last = one.group.last()
    return ArenaRow(
        task=str(one.place["task"]),
        base=one.place["base"],
        method=str(one.place["method"]),
        variant=one.place.get("variant"),
        algorithm=one.group.algorithm,
        config_hash=one.group.config_hash,
        seeds=tuple(sorted(last)),
        score=kind.mean([last[seed] for seed in sorted(last)], rate),
        return_=_level(one.returns),
        area=float(np.mean(areas)),
        areas=areas,
        regret=0.0,
        worst_drop=float(np.mean(drops)) if drops else None,
        gain=gain(start),
        control=None if control is None else control.place["method"],
        control_gain=None if control is None else gain(control.group),
        episodes=float(np.mean([run["evaluations"][-1]["episodes"] for run in one.records])),
        seconds=float(np.median([run["seconds"] for run in one.records])),
        trained_parameters=int(first["trained_parameters"]),
        base_distance=timed.get("base_distance"),
        torch_ms=milliseconds.get("torch"),
        onnx_ms=milliseconds.get("onnx"),
        demonstrations=bool(first["offline_share"]),
        finals=tuple(float(last[seed].mean()) for seed in sorted(last)),
        curve=_curve(one, evaluations, kind, rate),
        episode_scores=tuple(last[seed] for seed in sorted(last)),
    )


def area_under(curve: Sequence[tuple[int, float]], budget: int, start: float | None) -> float:
    """Return the mean score over a budget of environment steps, by the trapezium rule.

    Args:
        curve: (environment steps, score) in order.
        budget: environment steps; a curve that ends before holds its last score.
        start: score at step 0; None for that of the first evaluation.
    """
    points = [(0, curve[0][1] if start is None else start)]
    points += [point for point in curve if point[0] > 0]
    if len(points) == 1:  # it takes no steps: what it scores is what it scores throughout
        return curve[-1][1]
    points.append((budget, points[-1][1]))
    return sum(
        (later - earlier) * (before + after) / 2
        for (earlier, before), (later, after) in zip(points, points[1:], strict=False)
    ) / max(budget, 1)


def worst_drop(curve: Sequence[tuple[int, float]], level: float) -> float:
    """Return how far a curve fell below ``level`` at the worst, as a number of at most 0."""
    return min(0.0, min(score for _, score in curve) - level)


def _curve(
    one: _Found, evaluations: Evaluations, kind: IntervalKind, rate: bool
) -> tuple[CurvePoint, ...]:
    """Return the k-th evaluations of all seeds as one point, for each k."""
    spent = {run["seed"]: run["evaluations"] for run in one.records}
    totals = one.returns.evaluations()
    points = []
    for k in range(max(len(run) for run in evaluations.values())):
        seeds = [seed for seed, run in evaluations.items() if k < len(run)]
        scores = [evaluations[seed][k][1] for seed in seeds]
        at = [_spent(spent.get(seed, []), evaluations[seed][k][0]) for seed in seeds]
        points.append(
            CurvePoint(
                env_steps=float(np.median([evaluations[seed][k][0][0] for seed in seeds])),
                episodes=float(np.median([place["episodes"] for place in at])),
                seconds=float(np.median([place["seconds"] for place in at])),
                score=kind.mean(scores, rate),
                return_=float(np.mean([totals[seed][k][1].mean() for seed in seeds])),
            )
        )
    return tuple(points)


def _spent(places: Sequence[Record], at: tuple[int, int]) -> Record:
    """Return what a run had spent at one of its evaluations."""
    for place in places:
        if (place["env_steps"], place["updates"]) == at:
            return place
    return {"episodes": 0.0, "seconds": 0.0}


def _overall(contests: Sequence[Contest], controls: Sequence[str]) -> list[Overall]:
    """Return the methods over the contests that are scored by success, the best first."""
    by_method: dict[str, list[tuple[list[ArenaRow], float]]] = defaultdict(list)
    for contest in contests:
        if contest.metric == "success":
            settings: dict[str, list[ArenaRow]] = defaultdict(list)
            for row in contest.rows:
                settings[row.method].append(row)
            levels = [row.score.value for row in contest.rows if row.method in controls]
            for method, rows in settings.items():
                if any(row.variant is None for row in rows):
                    by_method[method].append((rows, max(levels, default=math.nan)))
    found = []
    for method, of_contests in by_method.items():
        single = [next(row for row in rows if row.variant is None) for rows, _ in of_contests]
        tried = [
            sum(row.episodes for row in rows) if len(rows) > 1 else 0.0 for rows, _ in of_contests
        ]
        best = [max(row.score.value for row in rows) for rows, _ in of_contests]
        found.append(
            Overall(
                method=method,
                contests=len({row.config_hash for row in single}),
                one_setting=float(np.mean([row.score.value for row in single])),
                control=float(np.mean([level for _, level in of_contests])),
                regret=float(np.mean([row.regret for row in single])),
                tuned=float(np.mean(best)),
                tuning_episodes=float(np.mean(tried)),
            )
        )
    return sorted(found, key=lambda row: (-row.contests, -row.one_setting, row.method))
