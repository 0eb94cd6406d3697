"""What a leaderboard is: runs, rows and tables, and their Markdown, CSV and JSON.

A row of a table is one configuration, by (env, algorithm, policy, base, config_hash), judged at the
last evaluation of each of its runs. ``best`` is the mean over runs of each run's best evaluation: a
maximum over noisy checkpoints, hence optimistic, and shown beside the last and never instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import pyarrow as pa

from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.board.tables import csv_table, markdown_table
from trimtab.benchmarks.board.wording import AGGREGATE_READING, METRIC_NAMES, READING
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["Aggregate", "EnvTable", "Entry", "Leaderboard", "Metric", "Point", "Run", "decimals"]

Metric = Literal["success", "return"]
"""What an environment is scored by."""
_INTERVALS = ("iqm", "mean", "difference", "improvement")
"""What of an entry is an interval, or None."""


def decimals(metric: Metric, scores: Sequence[float]) -> int:
    """Return the decimals that scores of one table are shown with at least."""
    largest = max(map(abs, scores))
    return 2 if metric == "success" or largest < 10 else int(largest < 100)


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
        return decimals(self.metric, [entry.mean.value for entry in self.entries])

    def cells(self, entry: Entry) -> dict[str, str]:
        """Return what a table shows of a row, by column heading."""
        digits = entry.mean.decimals(self.digits)
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

    def provenance(self) -> list[tuple[str, str]]:
        """Return what the numbers depend on, as pairs of name and text."""
        facts = [("command", self.command)] if self.command else []
        facts += [("rows", f"{self.rows.num_rows:,} evaluation episodes (episodes.parquet)")]
        facts += [("intervals", self.intervals)]
        if self.versions:
            facts += [("versions", ", ".join(f"{k} {v}" for k, v in self.versions.items()))]
        return facts + [(f"physics of {t.env}", t.fingerprint or "unknown") for t in self.tables]

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
        return csv_table(lines, _INTERVALS)

    def to_markdown(self) -> str:
        """Return all tables and their provenance as Markdown."""
        parts = [f"# {self.title}", READING]
        for table in self.tables:
            rows = [table.cells(entry) for entry in table.entries]
            parts += [f"## {table.env}", f"Score: {METRIC_NAMES[table.metric]}."]
            parts += [markdown_table(rows)]
        if self.aggregates:
            parts += ["## Across environments", AGGREGATE_READING, *self._across()]
        if self.notes:
            parts += ["## Notes", "\n".join(f"- {note}" for note in self.notes)]
        facts = self.provenance()
        parts += ["## Provenance", "\n".join(f"- {name}: `{text}`" for name, text in facts)]
        return "\n\n".join(parts) + "\n"

    def _across(self) -> list[str]:
        """Return tables of methods that were run in the same environments, two or more.

        Sets of several methods come first, and then those with most environments; in the end stand
        the methods that are in no table.
        """
        alike: dict[tuple[str, ...], list[Aggregate]] = defaultdict(list)
        for row in self.aggregates:
            alike[tuple(sorted(row.envs))].append(row)
        parts, left = list[str](), dict[str, str]()
        for envs in sorted(alike, key=lambda envs: (len(alike[envs]) < 2, -len(envs), envs)):
            rows = alike[envs]
            if len(envs) > 1:
                alone = "" if len(rows) > 1 else " (one method only, so nothing compares)"
                parts += [f"In {', '.join(envs)}{alone}:"]
                parts += [markdown_table([row.cells() for row in rows])]
            else:
                left[envs[0]] = ", ".join(row.label for row in rows)
        if left:
            shown = "\n".join(f"- {env}: {left[env]}" for env in sorted(left))
            parts.append(f"In no table, because they were run in one environment only:\n\n{shown}")
        return parts


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
    """Return a row's numbers under flat names."""
    return {
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
        **{name: getattr(entry, name) for name in _INTERVALS},
    }
