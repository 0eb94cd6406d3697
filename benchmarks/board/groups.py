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
from trimtab.benchmarks.board.sources import Sources
from trimtab.benchmarks.board.stats import Array
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.benchmarks.training.settings_of import differing, text_of
from trimtab.errors import TrimtabError

__all__ = [
    "Evaluations",
    "Group",
    "grouped",
    "metric_of",
    "newest_revisions",
    "one_physics",
    "scored_groups",
    "with_physics",
]

Evaluations = dict[int, list[tuple[tuple[int, int], Array]]]
"""For each seed its evaluations: (environment steps, updates), and the episodes' scores ``[E]``.

Scores are in the order of the episodes' starts, which runs with one ``eval_seed`` have in common.
"""


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
    metric: Metric = "return"  # what it is scored by
    # By seed, then by (env_steps, updates): each episode's seed, that of its start, and its score.
    scores: dict[int, dict[tuple[int, int], list[tuple[int, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def evaluations(self) -> Evaluations:
        """Return for each seed its evaluations in the order in which they were made.

        Scores are sorted by their starts, so that no number depends on the order of the rows.
        """
        return {
            seed: [
                (point, np.array([score for _, score in sorted(points[point])], np.float64))
                for point in sorted(points, key=lambda point: (sum(point), point))
            ]
            for seed, points in sorted(self.scores.items())
        }

    def last(self) -> dict[int, Array]:
        """Return for each seed the scores of its last evaluation."""
        return {seed: points[-1][1] for seed, points in self.evaluations().items()}


_UNKNOWN = "unknown"
"""Stands for the physics of rows that do not name it."""
_NAMED = 3
"""Folders that a message names; of the others it says how many there are."""

_COLUMNS = {
    "policy": "policy", "base": "base", "dataset.recipe": "dataset", "dataset.content": "dataset",
}  # fmt: skip
"""Columns of rows that say more of a setting than its value in an identity document, a hash."""

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
        kept = pa.array(
            [mine == newest[key] for key, mine in zip(keys, revision.to_pylist(), strict=True)],
            pa.bool_(),  # of no rows, too
        )
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


def one_physics(
    table: pa.Table, sources: Sources | None = None, wanted: Sequence[str] = ()
) -> dict[str, str | None]:
    """Return the fingerprint of each environment; refuse rows of different physics.

    Args:
        table: rows, of the physics that count (:func:`with_physics`).
        sources: the folders of their runs.
        wanted: fingerprints that were asked for.

    Raises:
        TrimtabError: if an environment has rows of several; it names their folders.
    """
    seen = _runs_by_physics(table)
    for env, prints in seen.items():
        if len(prints) > 1:
            known = sources or Sources()
            newest = max(prints, key=lambda name: (known.newest(prints[name]), name))
            shown = " and ".join(f"{name}{_lying(prints[name], known)}" for name in sorted(prints))
            raise TrimtabError(
                f"leaderboard: {env} has rows of different physics fingerprints, {shown}; scores "
                "under different physics, rewards or env_options cannot share a table: let one "
                f"kind count with physics={','.join([*wanted, newest])}, or move the folders of "
                "the others away; run the older ones again for scores in the physics of now"
            )
    single = {env: next(iter(prints)) for env, prints in sorted(seen.items())}
    return {env: None if name == _UNKNOWN else name for env, name in single.items()}


def with_physics(table: pa.Table, wanted: Sequence[str], notes: list[str]) -> pa.Table:
    """Return the rows without those of other physics than the wanted one of their environment.

    An environment with one physics only is left as it is.

    Args:
        table: rows.
        wanted: fingerprints.
        notes: gets one on each kind of rows that is left out.

    Raises:
        TrimtabError: if no row has a fingerprint that is wanted.
    """
    seen = _runs_by_physics(table)
    for name in wanted:
        if not any(name in prints for prints in seen.values()):
            known = ", ".join(sorted({one for prints in seen.values() for one in prints}))
            raise TrimtabError(f"leaderboard: physics={name}: no row has it; there are: {known}")
    for env, prints in seen.items():
        here = [name for name in wanted if name in prints]
        if len(prints) == 1 or not here:
            continue
        for name in sorted(set(prints) - set(here)):
            runs = len(prints[name])
            notes.append(
                f"{env}: {runs} run{'s' if runs > 1 else ''} of physics {name} left out, because "
                f"physics {' and '.join(here)} was asked for."
            )
        mine = pc.is_in(pc.fill_null(table["fingerprint"], _UNKNOWN), value_set=pa.array(here))
        table = table.filter(pc.or_(pc.not_equal(table["env"], env), mine))
    return table


def _runs_by_physics(table: pa.Table) -> dict[str, dict[str, list[tuple[str, int]]]]:
    """Return the runs of each environment and fingerprint, as hash and seed."""
    names = ["env", "fingerprint", "config_hash", "seed"]
    found: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for row in table.select(names).group_by(names).aggregate([]).to_pylist():
        prints = found.setdefault(row["env"], {})
        runs = prints.setdefault(row["fingerprint"] or _UNKNOWN, [])
        runs.append((row["config_hash"], row["seed"]))
    return found


def _lying(runs: Sequence[tuple[str, int]], known: Sources) -> str:
    """Return in which folders some runs lie, in words; nothing where that is not known."""
    places = sorted({str(known.folders[run].parent) for run in runs if run in known.folders})
    if not places:
        return ""
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f" (in {', '.join(places[:_NAMED])}{more})"


def metric_of(table: pa.Table, env: str, wanted: Metric | None) -> Metric:
    """Return what an environment is scored by.

    Raises:
        TrimtabError: if rows have no success, or ``wanted`` is no metric.
    """
    if wanted is not None and wanted not in METRIC_NAMES:
        raise TrimtabError(f"leaderboard: metric={wanted}: {nearest(wanted, METRIC_NAMES)}")
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


def grouped(
    table: pa.Table,
    metrics: Mapping[str, Metric],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Group]:
    """Return the configurations in a fixed order.

    Args:
        table: rows.
        metrics: what each environment is scored by.
        settings: of configurations, by hash; those that differ tell them apart in a label.

    Raises:
        TrimtabError: if a score is not finite.
    """
    groups: dict[tuple[Any, ...], Group] = {}
    names = ("env", "algorithm", "policy", "base", "config_hash", "dataset", "seed", "env_steps",
             "updates", "eval_seed", "return", "success")  # fmt: skip
    columns = [table[name].to_pylist() for name in names]
    for *key, dataset, seed, env_steps, updates, start, total, success in zip(
        *columns, strict=True
    ):
        group = groups.setdefault(tuple(key), Group(*key))
        group.metric = metrics[group.env]
        score = float(success) if group.metric == "success" else total
        if not np.isfinite(score):
            raise TrimtabError(
                f"leaderboard: {group.env} {group.algorithm} {group.config_hash} seed {seed} has a "
                f"return of {score}; the run diverged, leave its folder out or run it again"
            )
        group.dataset = group.dataset or dataset
        group.scores[seed][env_steps, updates].append((start, score))
    ordered = [groups[key] for key in sorted(groups, key=lambda key: [str(part) for part in key])]
    for algorithm in dict.fromkeys(group.algorithm for group in ordered):
        family = [group for group in ordered if group.algorithm == algorithm]
        for group, marks in zip(family, _marks(family, settings or {}), strict=True):
            group.label = algorithm + (f" ({', '.join(marks)})" if marks else "")
    return ordered


def scored_groups(table: pa.Table) -> list[Group]:
    """Return the configurations of the newest revisions, scored by success where there is one.

    Raises:
        TrimtabError: if rows of one environment have different physics, or a score is not finite.
    """
    table = newest_revisions(table, [])
    return grouped(table, {env: metric_of(table, env, None) for env in one_physics(table)})


def _marks(family: Sequence[Group], settings: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return what each label of an algorithm's configurations names."""
    parts = _distinguishing(family)
    by_hash = "config_hash" in parts
    if by_hash and (found := _by_settings(family, settings)) is not None:
        return found
    marks = [[str(getattr(group, part) or "none") for part in parts] for group in family]
    if by_hash:  # always the last; a few letters of it tell two apart
        marks = [[*mark[:-1], mark[-1][:8]] for mark in marks]
    return marks


def _by_settings(
    family: Sequence[Group], settings: Mapping[str, Mapping[str, Any]]
) -> list[list[str]] | None:
    """Return the settings in which an algorithm's configurations differ in some environment.

    None where settings are not known of all, or do not tell them apart.
    """
    if any(group.config_hash not in settings for group in family):
        return None
    several = len({group.policy for group in family}) > 1
    names: dict[str, None] = {"policy": None} if several else {}
    for env in {group.env for group in family}:
        here = [settings[group.config_hash] for group in family if group.env == env]
        names |= {name: None for own in differing(here) for name in own}
    marks = [[_mark(group, name, settings) for name in sorted(names)] for group in family]
    counts = Counter((group.env, *mark) for group, mark in zip(family, marks, strict=True))
    return marks if max(counts.values()) == 1 else None


def _mark(group: Group, name: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what a label says of one setting; columns of the rows name more than hashes do."""
    column = _COLUMNS.get(name)
    if column is not None:
        return str(getattr(group, column) or "none")
    return f"{name.removeprefix('algorithm.')}={text_of(settings[group.config_hash].get(name))}"


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
