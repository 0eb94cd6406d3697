"""From rows to groups: the evaluations of each configuration, and what its label is.

Only rows of the newest revisions count, and an environment has one physics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.stats import Array
from trimtab.errors import TrimtabError

__all__ = ["Evaluations", "Group", "grouped", "metric_of", "newest_revisions", "one_physics"]

Evaluations = dict[int, list[tuple[tuple[int, int], Array]]]
"""For each seed its evaluations: (environment steps, updates), and the episodes' scores ``[E]``."""


@dataclass
class Group:
    """The evaluations of one configuration in one environment."""

    env: str
    algorithm: str
    policy: str | None
    base: str | None
    config_hash: str
    dataset: str | None = None
    label: str = ""
    # By seed, then by (env_steps, updates): the scores of the episodes.
    scores: dict[int, dict[tuple[int, int], list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def evaluations(self) -> Evaluations:
        """Return for each seed its evaluations in the order in which they were made.

        Scores are sorted, so that no number depends on the order of the rows.
        """
        return {
            seed: [
                (point, np.sort(np.array(points[point], np.float64)))
                for point in sorted(points, key=lambda point: (sum(point), point))
            ]
            for seed, points in sorted(self.scores.items())
        }

    def last(self) -> dict[int, Array]:
        """Return for each seed the scores of its last evaluation."""
        return {seed: points[-1][1] for seed, points in self.evaluations().items()}


_REVISIONS = (
    ("protocol_revision", ("env",), "the protocol"),
    ("revision", ("env", "algorithm"), "{algorithm}"),
    ("policy_revision", ("env", "algorithm", "policy"), "the policy {policy} of {algorithm}"),
)
"""A revision's column, the rows among which only the newest counts, and what was revised."""


def newest_revisions(table: pa.Table, notes: list[str]) -> pa.Table:
    """Return the rows of the newest revisions, with a note on each kind that is left out.

    Rows of version 1 have no revisions; those are 1.
    """
    for column, among, what in _REVISIONS:
        revision = pc.fill_null(table[column], 1)
        table = table.append_column("this", revision)
        newest = table.group_by([*among, "this"]).aggregate([]).group_by(list(among))
        newest = {
            tuple(row[name] for name in among): row["this_max"]
            for row in newest.aggregate([("this", "max")]).to_pylist()
        }
        keys = zip(*(table[name].to_pylist() for name in among), strict=True)
        kept = pa.array([
            mine == newest[key] for key, mine in zip(keys, revision.to_pylist(), strict=True)
        ])  # fmt: skip
        left = table.filter(pc.invert(kept))
        table = table.filter(kept).drop_columns(["this"])
        kinds = left.group_by([*among, "this", "config_hash", "seed"]).aggregate([]).to_pylist()
        counts = Counter((tuple(row[name] for name in among), row["this"]) for row in kinds)
        for (key, old), runs in sorted(counts.items(), key=str):
            named = what.format(**dict(zip(among, key, strict=True)))
            notes.append(
                f"{key[0]}: {runs} run{'s' if runs > 1 else ''} of revision {old} of {named} left "
                f"out, because there are runs of revision {newest[key]}."
            )
    return table


def one_physics(table: pa.Table) -> dict[str, str | None]:
    """Return the fingerprint of each environment; refuse rows of different physics."""
    seen: dict[str, list[str | None]] = defaultdict(list)
    pairs = table.select(["env", "fingerprint"]).group_by(["env", "fingerprint"]).aggregate([])
    for pair in pairs.to_pylist():
        seen[pair["env"]].append(pair["fingerprint"])
    for env, prints in seen.items():
        if len(prints) > 1:
            names = " and ".join(sorted(print_ or "unknown" for print_ in prints))
            raise TrimtabError(
                f"leaderboard: {env} has rows of different physics fingerprints, {names}; scores "
                "under different physics or env_options cannot share a table: run the older ones "
                "again with the packages and options of now, or name a folder of one kind only"
            )
    return {env: prints[0] for env, prints in sorted(seen.items())}


def metric_of(table: pa.Table, env: str, wanted: Metric | None) -> Metric:
    """Return what an environment is scored by."""
    if wanted == "return":
        return "return"
    success = table.filter(pc.equal(table["env"], env))["success"]
    if success.null_count == 0:
        return "success"
    if wanted is None and success.null_count == len(success):
        return "return"
    raise TrimtabError(
        f"leaderboard: {success.null_count} of {len(success)} rows of {env} have no success; "
        "score it with metric=return"
    )


def grouped(table: pa.Table, metrics: Mapping[str, Metric]) -> list[Group]:
    """Return the configurations in a fixed order."""
    groups: dict[tuple[Any, ...], Group] = {}
    names = ("env", "algorithm", "policy", "base", "config_hash", "dataset", "seed", "env_steps",
             "updates", "return", "success")  # fmt: skip
    columns = [table[name].to_pylist() for name in names]
    for *key, dataset, seed, env_steps, updates, total, success in zip(*columns, strict=True):
        group = groups.setdefault(tuple(key), Group(*key))
        score = float(success) if metrics[group.env] == "success" else total
        if not np.isfinite(score):
            raise TrimtabError(
                f"leaderboard: {group.env} {group.algorithm} {group.config_hash} seed {seed} has a "
                f"return of {score}; the run diverged, leave its folder out or run it again"
            )
        group.dataset = group.dataset or dataset
        group.scores[seed][env_steps, updates].append(score)
    ordered = [groups[key] for key in sorted(groups, key=lambda key: [str(part) for part in key])]
    for group in ordered:
        parts = _distinguishing([other for other in ordered if other.algorithm == group.algorithm])
        marks = [str(getattr(group, part) or "none") for part in parts]
        if "config_hash" in parts:  # always the last; a few letters of it tell two apart
            marks[-1] = marks[-1][:8]
        group.label = group.algorithm + (f" ({', '.join(marks)})" if marks else "")
    return ordered


def _distinguishing(family: Sequence[Group]) -> tuple[str, ...]:
    """Return what the labels of an algorithm's configurations must name to be unique.

    An algorithm that is met with several policies names the policy everywhere, so that a label
    means the same in every environment.
    """
    several = len({group.policy for group in family}) > 1
    choices: tuple[tuple[str, ...], ...] = (
        (), ("policy",), ("base",), ("dataset",), ("policy", "base"), ("policy", "dataset"),
        ("config_hash",), ("policy", "config_hash"),
    )  # fmt: skip
    for names in choices:
        if several and "policy" not in names:
            continue
        marks = [(group.env, *(getattr(group, name) for name in names)) for group in family]
        if max(Counter(marks).values()) == 1:
            return names
    return ("policy", "base", "config_hash")
