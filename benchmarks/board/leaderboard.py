"""The leaderboard: tables computed from raw episode rows, and from nothing else.

A row of a table is one configuration, by (env, algorithm, policy, base, config_hash), judged at the
last evaluation of each of its runs. ``best`` is the mean over runs of each run's best evaluation: a
maximum over noisy checkpoints, hence optimistic, and shown beside the last and never instead.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from trimtab.benchmarks.board import report, stats
from trimtab.benchmarks.board.interval_kinds import KINDS, IntervalKind, kind_of
from trimtab.benchmarks.board.stats import Array, Interval, number_text
from trimtab.benchmarks.runs.rows import FILE_NAME, write_episodes
from trimtab.benchmarks.settings.catalog import adaptations
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text

Metric = Literal["success", "return"]
Baselines = Mapping[str, str | None] | str | None

FROZEN = "frozen"
"""Name of the algorithm that leaves its base as it is: the default baseline of what steers it."""


@dataclass(frozen=True)
class Run:
    """One seed: its last and its best evaluation, each a mean over episodes."""

    seed: int
    env_steps: int
    updates: int
    episodes: int
    last: float
    best: float


@dataclass(frozen=True)
class Point:
    """One evaluation of all seeds together: a point of a learning curve."""

    env_steps: int
    updates: int
    seeds: int
    score: Interval


@dataclass(frozen=True)
class Entry:
    """One row of a table; intervals are over seeds, of one seed over its episodes."""

    label: str
    algorithm: str
    policy: str | None
    base: str | None
    dataset: str | None
    config_hash: str
    runs: tuple[Run, ...]
    iqm: Interval
    mean: Interval
    best: float
    baseline: str | None = None
    difference: Interval | None = None
    lowest_difference: float | None = None  # of the seed that gained least
    improvement: Interval | None = None  # probability of improvement, over seeds
    curve: tuple[Point, ...] = ()

    @property
    def online(self) -> bool:
        """Whether the method takes environment steps of its own."""
        return any(run.env_steps for run in self.runs)

    def trained_for(self) -> str:
        """Return the last step count, or the range where the seeds stopped at different ones."""
        counts = [run.env_steps if self.online else run.updates for run in self.runs]
        if not any(counts):
            return "–"
        ends = sorted({min(counts), max(counts)}) if self.uneven() else [max(counts)]
        text = "–".join(f"{count:,}" for count in ends)
        return f"{text} {'steps' if self.online else 'updates'}"

    def uneven(self) -> bool:
        """Whether seeds stopped at other step counts than episodes that end early explain."""
        return any(
            max(counts) - min(counts) > 0.05 * max(counts)
            for counts in ([r.env_steps for r in self.runs], [r.updates for r in self.runs])
        )


@dataclass(frozen=True)
class EnvTable:
    """The rows of one environment, the best first."""

    env: str
    metric: Metric
    fingerprint: str | None
    entries: tuple[Entry, ...]

    @property
    def digits(self) -> int:
        """Decimals that numbers of this table are shown with."""
        largest = max(abs(entry.mean.value) for entry in self.entries)
        return 2 if self.metric == "success" or largest < 10 else int(largest < 100)

    def cells(self, entry: Entry) -> dict[str, str]:
        """Return what a table shows of a row, by column heading."""
        digits = self.digits
        gain, chance, lowest = entry.difference, entry.improvement, entry.lowest_difference
        return {
            "Method": entry.label,
            "IQM [95%]": entry.iqm.text(digits),
            "Mean [95%]": entry.mean.text(digits),
            "Best": number_text(entry.best, digits),
            "Gain [95%]": gain.text(digits, signed=True) if gain else "–",
            "Baseline": entry.baseline or "–",
            "Lowest seed": "–" if lowest is None else number_text(lowest, digits, signed=True),
            "P(better) [95%]": chance.text() if chance else "–",
            "Trained for": entry.trained_for(),
            "Seeds": str(len(entry.runs)),
            "Episodes": f"{sum(run.episodes for run in entry.runs):,}",
        }


@dataclass(frozen=True)
class Aggregate:
    """One method over all environments in which it has a success rate."""

    label: str
    envs: tuple[str, ...]
    runs: int
    iqm: Interval
    median: Interval
    mean: Interval
    optimality_gap: Interval
    improvement: Interval | None

    def cells(self) -> dict[str, str]:
        """Return what a table shows of the method, by column heading."""
        return {
            "Method": self.label,
            "IQM [95%]": self.iqm.text(),
            "Median [95%]": self.median.text(),
            "Mean [95%]": self.mean.text(),
            "Optimality gap [95%]": self.optimality_gap.text(),
            "P(better) [95%]": self.improvement.text() if self.improvement else "–",
            "Environments": str(len(self.envs)),
            "Runs": str(self.runs),
        }


@dataclass(frozen=True)
class Leaderboard:
    """Every table, with the rows it was computed from and the command that recomputes it."""

    title: str
    command: str
    versions: Mapping[str, str]
    tables: tuple[EnvTable, ...]
    aggregates: tuple[Aggregate, ...]
    notes: tuple[str, ...]
    intervals: str
    rows: pa.Table = field(repr=False, metadata={"plain": False})

    def to_dict(self) -> dict[str, Any]:
        """Return every number as JSON values, without the raw rows."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def to_json(self) -> str:
        """Return every number, and the command, as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return one line for each environment and method, numbers unrounded."""
        lines = [
            {"env": table.env, "metric": table.metric, "fingerprint": table.fingerprint}
            | _flat(entry)
            for table in self.tables
            for entry in table.entries
        ]
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return all tables and their provenance as Markdown."""
        parts = [f"# {self.title}", report.READING]
        for table in self.tables:
            rows = [table.cells(entry) for entry in table.entries]
            parts += [f"## {table.env}", f"Score: {report.METRIC_NAMES[table.metric]}."]
            parts += [_markdown_table(rows)]
        if self.aggregates:
            rows = [aggregate.cells() for aggregate in self.aggregates]
            parts += ["## Across environments", report.AGGREGATE_READING, _markdown_table(rows)]
        if self.notes:
            parts += ["## Notes", "\n".join(f"- {note}" for note in self.notes)]
        facts = report.provenance(self)
        parts += ["## Provenance", "\n".join(f"- {name}: `{text}`" for name, text in facts)]
        return "\n\n".join(parts) + "\n"


def build(
    table: pa.Table,
    *,
    metric: Metric | None = None,
    baselines: Baselines = None,
    command: str = "",
    versions: Mapping[str, str] | None = None,
    title: str | None = None,
    intervals: str = KINDS[0],
    repetitions: int = stats.REPETITIONS,
    seed: int = 0,
) -> Leaderboard:
    """Compute the leaderboard of a table of episode rows.

    Args:
        table: rows as :func:`trimtab.benchmarks.runs.rows.collect_episodes` returns them.
        metric: what is scored; None takes success where the environment has it, else the return.
        baselines: what each method is compared with: one name for all, or by method (None: with
            nothing). Names are labels such as ``dsrl_sac (flow)``, or algorithms. A method that is
            not named and has a base is compared with that base, left frozen.
        command: the command that recomputes this leaderboard.
        versions: package versions to print.
        title: heading; by default made from the suites in the rows.
        intervals: ``student_t``, which holds its level with few seeds, or ``bootstrap``, the
            field's percentile intervals.
        repetitions: resamples of each bootstrap, where those are wanted.
        seed: seed of the bootstraps.

    Raises:
        TrimtabError: if there is no row, rows of one environment have different physics, a score is
            missing or not finite, or a baseline or kind of interval is unknown.
    """
    kind = kind_of(intervals, repetitions, seed)
    if table.num_rows == 0:
        raise TrimtabError("leaderboard: no episode rows; evaluate a run first")
    notes: list[str] = []
    table = _newest_revisions(table, notes)
    physics = _one_physics(table)
    metrics = {env: _metric(table, env, metric) for env in physics}
    groups = _groups(table, metrics)
    _check_names(baselines, groups)
    tables = []
    for env, fingerprint in physics.items():
        here = [group for group in groups if group.env == env]
        numbers = _Numbers(kind, rate=metrics[env] == "success")
        entries = [numbers.entry(group, _baseline(group, here, baselines, notes)) for group in here]
        entries.sort(key=lambda entry: (-entry.iqm.value, -entry.mean.value, entry.label))
        tables.append(EnvTable(env, metrics[env], fingerprint, tuple(entries)))
    notes += _remarks(tables)
    suites = sorted({str(x) for x in table["suite"].unique().to_pylist() if x is not None})
    return Leaderboard(
        title=title or "Leaderboard" + (f": {', '.join(suites)}" if suites else ""),
        command=command,
        versions=dict(versions or {}),
        tables=tuple(tables),
        aggregates=tuple(_aggregates(tables, kind)),
        notes=tuple(notes),
        intervals=kind.description,
        rows=table,
    )


def write(leaderboard: Leaderboard, out_folder: str | Path) -> dict[str, Path]:
    """Write the leaderboard in every form; return the paths by name.

    Writes ``leaderboard.md``, ``.csv`` and ``.json``, ``index.html`` and ``episodes.parquet``, each
    whole or not at all; other files in the folder are left alone.
    """
    out = Path(out_folder)
    write_episodes(out / FILE_NAME, leaderboard.rows)
    texts = {
        "leaderboard.md": leaderboard.to_markdown(),
        "leaderboard.csv": leaderboard.to_csv(),
        "leaderboard.json": leaderboard.to_json(),
        "index.html": report.render(leaderboard),
    }
    for name, text in texts.items():
        atomic_write_text(out / name, text)
    return {name: out / name for name in (*texts, FILE_NAME)}


def print_table(leaderboard: Leaderboard, console: Console) -> None:
    """Print the tables to a terminal, with fewer columns than the files have."""
    shown = ("Method", "Mean [95%]", "Best", "Gain [95%]", "Trained for", "Seeds")
    console.print(f"[bold]{leaderboard.title}[/bold]", highlight=False)
    for table in leaderboard.tables:
        view = RichTable(
            title=f"{table.env} · {report.METRIC_NAMES[table.metric]}",
            title_justify="left",
            title_style="bold",
            caption="in the order of IQM, then of the mean",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for heading in shown:
            view.add_column(heading, justify="left" if heading == "Method" else "right")
        for entry in table.entries:
            cells = table.cells(entry)
            view.add_row(*(cells[heading] for heading in shown))
        console.print(view)
    for note in leaderboard.notes:
        console.print(f"note: {note}", style="dim", markup=False, highlight=False)


# ---------------------------------------------------------------------------------------------
# From rows to groups


@dataclass
class _Group:
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

    def evaluations(self) -> dict[int, list[tuple[tuple[int, int], Array]]]:
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


def _newest_revisions(table: pa.Table, notes: list[str]) -> pa.Table:
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


def _one_physics(table: pa.Table) -> dict[str, str | None]:
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


def _metric(table: pa.Table, env: str, wanted: Metric | None) -> Metric:
    """Return what an environment is scored by."""
    if wanted == "return":
        return "return"
    success = table.filter(pa.compute.equal(table["env"], env))["success"]
    if success.null_count == 0:
        return "success"
    if wanted is None and success.null_count == len(success):
        return "return"
    raise TrimtabError(
        f"leaderboard: {success.null_count} of {len(success)} rows of {env} have no success; "
        "score it with metric=return"
    )


def _groups(table: pa.Table, metrics: Mapping[str, Metric]) -> list[_Group]:
    """Return the configurations in a fixed order."""
    groups: dict[tuple[Any, ...], _Group] = {}
    names = ("env", "algorithm", "policy", "base", "config_hash", "dataset", "seed", "env_steps",
             "updates", "return", "success")  # fmt: skip
    columns = [table[name].to_pylist() for name in names]
    for *key, dataset, seed, env_steps, updates, total, success in zip(*columns, strict=True):
        group = groups.setdefault(tuple(key), _Group(*key))
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


def _distinguishing(family: Sequence[_Group]) -> tuple[str, ...]:
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


# ---------------------------------------------------------------------------------------------
# Baselines


def _check_names(baselines: Baselines, groups: Sequence[_Group]) -> None:
    """Refuse a baseline, or a method that is to have one, that is in no environment."""
    if baselines is None:
        return
    if isinstance(baselines, str):
        named = [baselines]
    else:
        named = [*baselines, *(name for name in baselines.values() if name is not None)]
    known = sorted({name for group in groups for name in (group.label, group.algorithm)})
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise TrimtabError(
                f"leaderboard: no method is called {name!r}, did you mean {near!r}? "
                f"There are: {', '.join(known)}"
            )


def _baseline(
    group: _Group, here: Sequence[_Group], baselines: Baselines, notes: list[str]
) -> _Group | None:
    """Return what a configuration is compared with in its environment, if anything."""
    name: str | None = FROZEN if group.base is not None else None
    exact = True  # the frozen base must be the very base; a named baseline need not share it
    if isinstance(baselines, str):
        name, exact = baselines, False
    elif baselines is not None:
        for key in (group.algorithm, group.label):  # a label says more than an algorithm
            if key in baselines:
                name, exact = baselines[key], False
    found = [other for other in here if other.label == name]
    found = found or [other for other in here if other.algorithm == name]
    if group in found:
        return None
    same = [x for x in found if (x.base, x.policy) == (group.base, group.policy)]
    alike = [x for x in found if x.policy == group.policy]
    found = same if exact else same or alike or found
    if len(found) > 1:
        notes.append(
            f"{group.env}: {group.label} is compared with nothing, because {name} may mean "
            f"{' or '.join(other.label for other in found)}."
        )
    return found[0] if len(found) == 1 else None


# ---------------------------------------------------------------------------------------------
# From groups to numbers


@dataclass(frozen=True)
class _Numbers:
    """The numbers of one environment's rows; ``rate`` where they are success rates."""

    kind: IntervalKind
    rate: bool

    def entry(self, group: _Group, baseline: _Group | None) -> Entry:
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
            **(self._comparison(last, baseline) if baseline else {}),
        )

    def _comparison(self, ours: dict[int, Array], baseline: _Group) -> dict[str, Any]:
        theirs = baseline.last()
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

    def _curve(
        self, evaluations: Mapping[int, list[tuple[tuple[int, int], Array]]]
    ) -> tuple[Point, ...]:
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


def _aggregates(tables: Sequence[EnvTable], kind: IntervalKind) -> list[Aggregate]:
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


def _remarks(tables: Sequence[EnvTable]) -> list[str]:
    """Return what a reader must know before believing a number."""
    notes = []
    for table in tables:
        lonely = [entry.label for entry in table.entries if len(entry.runs) == 1]
        if lonely:
            notes.append(
                f"{table.env}: one seed only, intervals over episodes alone: {', '.join(lonely)}."
            )
        equal = [
            entry.label
            for entry in table.entries
            if any(x and x.low == x.high for x in (entry.mean, entry.iqm, entry.difference))
        ]
        if equal:
            notes.append(
                f"{table.env}: all scores, or all gains, are equal, so no interval can be given: "
                f"{', '.join(equal)}."
            )
        for entry in table.entries:
            if entry.uneven():
                notes.append(f"{table.env}: the seeds of {entry.label} differ in training length.")
        if len({run.episodes for entry in table.entries for run in entry.runs}) > 1:
            notes.append(f"{table.env}: not every run was judged by as many episodes.")
    methods = {entry.algorithm for table in tables for entry in table.entries}
    if adapted := sorted(methods & set(adaptations())):
        notes.append(f"Adaptations of their papers, as their docstrings say: {', '.join(adapted)}.")
    return notes


# ---------------------------------------------------------------------------------------------
# Text


def _plain(value: Any) -> Any:
    """Return dataclasses, intervals and tuples as JSON values."""
    if isinstance(value, Interval):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        shown = [item for item in fields(value) if item.metadata.get("plain", True)]
        return {item.name: _plain(getattr(value, item.name)) for item in shown}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _flat(entry: Entry) -> dict[str, Any]:
    """Return a row's numbers under flat names, an interval as three."""
    line: dict[str, Any] = {
        "method": entry.label,
        "algorithm": entry.algorithm,
        "policy": entry.policy,
        "base": entry.base,
        "dataset": entry.dataset,
        "config_hash": entry.config_hash,
        "seeds": len(entry.runs),
        "episodes": sum(run.episodes for run in entry.runs),
        "env_steps": max(run.env_steps for run in entry.runs),
        "updates": max(run.updates for run in entry.runs),
        "best": entry.best,
        "baseline": entry.baseline,
        "lowest_difference": entry.lowest_difference,
    }
    for name in ("iqm", "mean", "difference", "improvement"):
        interval = getattr(entry, name) or (None, None, None)
        line |= zip((name, f"{name}_low", f"{name}_high"), interval, strict=True)
    return line


def _markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    heading = list(rows[0])
    lines = [heading, [":--", *["--:"] * (len(heading) - 1)], *([*row.values()] for row in rows)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
