"""Per-episode results: the raw rows from which every table and figure is computed.

One row is one evaluation episode. A run keeps its rows in
``runs/<env>/<algorithm>/<config hash>/seed<k>/episodes.parquet``; a suite keeps the collection of
its runs' rows in one such file. Pages carry checksums, so that a damaged file is an error and
never a different number.

The schema has a version, which stands in the file. Version 2 has more columns than version 1, all
of which may be null; a file of version 1 is read with nulls in them.
"""

from __future__ import annotations

import bisect
import io
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trimtab.benchmarks.training.locking import remedy
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, read_bytes

FILE_NAME = "episodes.parquet"
STOPPED_EARLY = "stopped_early"
"""Metric of the rows of a run that a callback ended early; its result has an entry of this name."""
OVERLAP = "overlap"
"""Metric of the rows of a run whose actions were chosen by the weights of one decision's updates
ago (``overlap=true``); its result has an entry of this name."""
SUITE_NOTE = "suite.json"
"""The file beside a suite's tables: which runs are done or wait, and what is compared with what."""

VERSION = 2
"""Version of the schema."""
_VERSION_KEY = b"trimtab_rows"

# What says which episode a row is about, and what was measured in it. The columns left over say who
# asked, how long it took and on which device: a repetition may differ in them.
_IDENTITY = (
    "env", "algorithm", "config_hash", "seed", "env_steps", "updates", "eval_episode",
)  # fmt: skip
_MEASURED = (
    "policy", "dataset", "base", "eval_seed", "return", "success", "length", "fingerprint",
    "hash_version", "revision", "policy_revision", "protocol_revision", "act_steps",
    "deterministic", "success_rule", "horizon", "control_hz", "delay_ms",
)  # fmt: skip
_REQUIRED = (*_IDENTITY, "eval_seed", "return", "length")


@dataclass(frozen=True, kw_only=True)
class EpisodeRow:
    """One evaluation episode; its fields are the columns, in their order.

    Attributes:
        suite: suite that asked for the run, if any.
        env: environment id, such as ``metaworld/push-v3``.
        algorithm: name of the method, such as ``dsrl_sac``; ``frozen`` is a base left as it is.
        policy: kind of the policy, or of the base that is steered.
        dataset: id of the offline dataset, if any.
        base: what the run started from or steered, if anything.
        seed: seed of the training run.
        env_steps: environment steps that the run had taken when it was evaluated.
        updates: gradient updates that the run had made when it was evaluated.
        eval_episode: number of the episode within its evaluation, from 0.
        eval_seed: seed with which the episode was reset.
        return_: undiscounted sum of raw rewards; the column is called ``return``.
        success: whether the task was solved; None where the task has no such notion.
        length: environment steps of the episode.
        seconds: wall time of the episode.
        fingerprint: name of the environment's physics.
        config_hash: hash of the run's configuration without its seed.
        hash_version: version of the document that ``config_hash`` was computed from.
        revision: that of the method; like the next two, null means 1.
        policy_revision: that of the policy's kind.
        protocol_revision: that of the harness's own protocol.
        act_steps: executed actions of a chunk.
        deterministic: whether the policy acted with zero noise.
        success_rule: when an episode counts as a success: ``any_step``.
        horizon: steps after which an episode is truncated.
        control_hz: actions per simulated second.
        delay_ms: time between an observation and the action that follows from it.
        device: where the networks were.
        metrics: further numbers of the episode by name, such as ``success_at_end``.
    """

    suite: str | None = None
    env: str
    algorithm: str
    policy: str | None = None
    dataset: str | None = None
    base: str | None = None
    seed: int
    env_steps: int
    updates: int
    eval_episode: int
    eval_seed: int
    return_: float
    success: bool | None = None
    length: int
    seconds: float | None = None
    fingerprint: str | None = None
    config_hash: str
    hash_version: int | None = None
    revision: int | None = None
    policy_revision: int | None = None
    protocol_revision: int | None = None
    act_steps: int | None = None
    deterministic: bool | None = None
    success_rule: str | None = None
    horizon: int | None = None
    control_hz: float | None = None
    delay_ms: float | None = None
    device: str | None = None
    metrics: Mapping[str, float] | None = None

    def to_row(self) -> dict[str, Any]:
        """Return the row by column name; ``metrics`` as sorted pairs."""
        values = {field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}
        if self.metrics is not None:
            values["metrics"] = sorted(self.metrics.items())
        return values

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> EpisodeRow:
        """Return the episode that ``to_row`` gave ``row`` of."""
        values = dict(row)
        values["return_"] = values.pop("return")
        if values["metrics"] is not None:
            values["metrics"] = dict(values["metrics"])
        return cls(**values)


_TYPES = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(),
    "Mapping[str, float]": pa.map_(pa.string(), pa.float64()),
}  # fmt: skip
SCHEMA = pa.schema(
    [
        (field.name.rstrip("_"), _TYPES[str(field.type).removesuffix(" | None")])
        for field in fields(EpisodeRow)
    ]
)
_OF_VERSION_1 = SCHEMA.names[: SCHEMA.names.index("config_hash") + 1]


def episodes_table(rows: Iterable[EpisodeRow]) -> pa.Table:
    """Return the rows as a table of :data:`SCHEMA`.

    Raises:
        TrimtabError: if a value has the wrong type.
    """
    try:
        return pa.Table.from_pylist([row.to_row() for row in rows], schema=SCHEMA)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise TrimtabError(f"episode rows: {error}; give every field its declared type") from error


def write_episodes(path: str | Path, rows: Iterable[EpisodeRow] | pa.Table) -> None:
    """Write rows to a Parquet file, whole or not at all; equal rows give equal bytes.

    Raises:
        TrimtabError: if a value has the wrong type or the file cannot be written.
    """
    table = rows if isinstance(rows, pa.Table) else episodes_table(rows)
    table = _conform(table, str(path)).combine_chunks()
    table = table.replace_schema_metadata({_VERSION_KEY: str(VERSION).encode()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    atomic_write_bytes(path, buffer.getvalue())


def read_episodes(path: str | Path) -> pa.Table:
    """Return the rows of one Parquet file as a table of :data:`SCHEMA`.

    Raises:
        TrimtabError: if the file is missing, truncated or damaged, or has other columns.
    """
    path = Path(path)
    try:
        data = read_bytes(path)
        table = pq.read_table(
            pa.BufferReader(data), use_threads=False, page_checksum_verification=True
        )
        table.validate(full=True)
    except FileNotFoundError as error:
        raise TrimtabError(f"episodes: {path} does not exist; check the path") from error
    except TrimtabError as error:
        raise TrimtabError(f"episodes: {error}{_or_mended(path)}") from error
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise TrimtabError(
            f"episodes: {path} is damaged or not a Parquet file ({error}); restore it"
            f"{_or_mended(path)}"
        ) from error
    return _conform(table, str(path))


def _or_mended(path: Path) -> str:
    """Return what else may be done about a file that may be part of a run."""
    return f", or, if it lies in the folder of a run, {remedy(path.parent)}"


def collect_episodes(folder_or_file: str | Path) -> pa.Table:
    """Return all rows found in a file, or in every ``episodes.parquet`` below a folder.

    The order of the rows does not depend on the order of the files. An episode that is found twice
    (in a run and in a suite's collection of runs) counts once.

    Args:
        folder_or_file: a folder of runs, or one Parquet file.

    Raises:
        TrimtabError: if there is nothing to collect, a file is unreadable, or two files
            contradict each other about one episode.
    """
    place = Path(folder_or_file)
    if place.is_dir():
        found = episode_files(place)
        if not found:
            raise TrimtabError(
                f"episodes: no {FILE_NAME} below {place}; name a folder of runs, or train first"
            )
    else:
        found = [place]
    return collect_files(found, place)


def episode_files(place: Path) -> list[Path]:
    """Return every ``episodes.parquet`` below a folder."""
    found = []
    for at, names, files in os.walk(place):  # passes over folders that vanish meanwhile
        # Hidden folders are half-written ones that wait for their last rename.
        names[:] = (x for x in names if not x.startswith("."))
        if FILE_NAME in files:
            found.append(Path(at, FILE_NAME))
    return sorted(found)


def collect_files(paths: Sequence[Path], place: Path) -> pa.Table:
    """Return all rows of some files, as :func:`collect_episodes` does; ``place`` names them all.

    Raises:
        TrimtabError: as :func:`collect_episodes`.
    """
    tables = [read_episodes(path) for path in paths]
    ends = list(itertools.accumulate(one.num_rows for one in tables))

    def file_of(row: int) -> Path:
        return paths[bisect.bisect_right(ends, row)]

    table = _without_repetitions(pa.concat_tables(tables), place, file_of)
    if table.num_rows == 0:
        raise TrimtabError(f"episodes: {place} holds no evaluation episode; evaluate a run first")
    return table


def _without_repetitions(table: pa.Table, place: Path, file_of: Callable[[int], Path]) -> pa.Table:
    """Return one row an episode, sorted; an error if two rows of one episode disagree."""
    every = pc.CountOptions(mode="all")  # a null beside a value is a contradiction too
    place_of = "row number"
    numbered = table.append_column(place_of, pa.array(range(table.num_rows), pa.int64()))
    grouped = numbered.group_by(list(_IDENTITY), use_threads=False).aggregate(
        [(place_of, "min"), (place_of, "max"), ("suite", "first")]
        + [(name, "count_distinct", every) for name in _MEASURED]
    )
    for name in _MEASURED:
        clash = grouped.filter(pc.greater(grouped[f"{name}_count_distinct"], 1))
        if clash.num_rows:
            row = clash.slice(0, 1).to_pylist()[0]
            files = [file_of(row[f"{place_of}_{end}"]) for end in ("min", "max")]
            raise TrimtabError(
                f"episodes: below {place}, {row['env']} {row['algorithm']} "
                f"{row['config_hash']} seed {row['seed']} episode {row['eval_episode']} at "
                f"{row['env_steps']} steps and {row['updates']} updates has two values of "
                f"{name}, in {' and in '.join(map(str, dict.fromkeys(files)))}; remove the "
                "outdated copy, or name a folder that has one of them"
            )
    single = table.take(grouped[f"{place_of}_min"])
    named = grouped["suite_first"]  # a run on its own has no suite, the collection that has it does
    single = single.set_column(0, SCHEMA.field("suite"), named)
    return in_order(single)


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows in the order of collected ones: by task, method, hash, seed and so on."""
    return table.sort_by([(name, "ascending") for name in (*_IDENTITY, "eval_seed")])


def _conform(table: pa.Table, where: str) -> pa.Table:
    """Return the table with exactly the columns, order and types of :data:`SCHEMA`."""
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"")
    if version.isdigit() and int(version) > VERSION:
        raise TrimtabError(
            f"episodes: {where} has rows of version {int(version)}, this Trimtab reads up to "
            f"{VERSION}; install a newer one"
        )
    if table.column_names == _OF_VERSION_1:
        for field in list(SCHEMA)[len(_OF_VERSION_1) :]:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    if table.column_names != SCHEMA.names:
        missing = [name for name in SCHEMA.names if name not in table.column_names]
        extra = [name for name in table.column_names if name not in SCHEMA.names]
        raise TrimtabError(
            f"episodes: {where} has the wrong columns (missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(extra) or 'none'}); the order is {', '.join(SCHEMA.names)}"
        )
    try:
        table = table.replace_schema_metadata(None).cast(SCHEMA)
    except pa.ArrowException as error:
        raise TrimtabError(f"episodes: {where} has a column of the wrong type ({error})") from error
    for name in _REQUIRED:
        if table[name].null_count:
            raise TrimtabError(
                f"episodes: {where} has {table[name].null_count} rows without {name}; every row "
                "needs it"
            )
    _check_values(table, where)
    return table


def _check_values(table: pa.Table, where: str) -> None:
    """Check that names are not empty and that what is counted is not negative.

    Raises:
        TrimtabError: naming the column and the value.
    """
    for field in SCHEMA:
        wrong = None
        if pa.types.is_int64(field.type):
            least = pc.min(table[field.name]).as_py()
            wrong = least if least is not None and least < 0 else None
        elif field.name in _REQUIRED and pa.types.is_string(field.type):
            shortest = pc.min(pc.utf8_length(pc.utf8_trim_whitespace(table[field.name]))).as_py()
            wrong = "an empty text" if shortest == 0 else None
        if wrong is not None:
            raise TrimtabError(
                f"episodes: {where} has {wrong} as {field.name}; restore the file, or delete its "
                "run folder and run it again"
            )
