"""Published rows of some methods give way to rows that were made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.benchmarks.training.rows import in_order
from trimtab.errors import TrimtabError
from trimtab.files import read_json
from trimtab.processor import processor_kind

__all__ = ["recorded_rows", "replaced_rows", "with_processor", "with_runs"]

_RUN = ("env", "algorithm", "policy", "seed")


def replaced_rows(committed: pa.Table, made: pa.Table, methods: Sequence[str]) -> pa.Table:
    """Return committed rows in which the named methods' rows are those that were made again.

    A method may come back with more tasks or seeds than it had, and never with fewer.

    Args:
        committed: rows in order, as :func:`trimtab.benchmarks.training.rows.read_episodes` returns
            those of a committed file.
        made: rows that were made again; those of methods that are not named are left out.
        methods: what the column ``algorithm`` has of the methods to replace.

    Raises:
        TrimtabError: if no method is named, one has no new rows, or the new rows lack a task,
            policy or seed that the committed ones have.
    """
    if not methods:
        raise TrimtabError("replace: no method is named; give those whose rows are to be replaced")
    names = pa.array(methods, pa.string())
    new = made.filter(pc.is_in(made["algorithm"], value_set=names))
    named = pc.is_in(committed["algorithm"], value_set=names)
    there = set(new["algorithm"].to_pylist())
    for method in methods:
        if method not in there:
            known = ", ".join(sorted(set(made["algorithm"].to_pylist())))
            raise TrimtabError(f"replace: there are no new rows of {method}, only of {known}")
    lacking = sorted(_runs(committed.filter(named)) - _runs(new), key=str)
    if lacking:
        env, method, policy, seed = lacking[0]
        raise TrimtabError(
            f"replace: {len(lacking)} committed runs have no new rows, the first is {method} "
            f"({policy}) in {env} with seed {seed}; run all tasks and seeds that are committed"
        )
    return in_order(pa.concat_tables([committed.filter(pc.invert(named)), new]))


def recorded_rows(rows: pa.Table, records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows of the runs that have a record.

    Args:
        rows: of any runs.
        records: one a run, with its ``config_hash`` and ``seed``.
    """
    runs = {(record["config_hash"], record["seed"]) for record in records}
    kept = [run in runs for run in zip(*_columns(rows), strict=True)]
    return rows.filter(pa.array(kept, pa.bool_()))


def with_runs(committed: pa.Table, made: pa.Table) -> pa.Table:
    """Return committed rows and those of further runs; a run that was made again has its new rows.

    Args:
        committed: rows in order.
        made: rows of further runs.
    """
    runs = [
        [f"{digest}/{seed}" for digest, seed in zip(*_columns(table), strict=True)]
        for table in (committed, made)
    ]
    again = {*runs[1]}
    kept = pa.array([run not in again for run in runs[0]], pa.bool_())
    return in_order(pa.concat_tables([committed.filter(kept), made]))


def with_processor(file: Path) -> dict[str, Any]:
    """Return what ``machine.json`` says, or would say first, with the kind of this processor.

    Raises:
        TrimtabError: if the file is there and damaged.
    """
    kind = processor_kind()
    machine: dict[str, Any] = read_json(file, "machine") if file.is_file() else {"processor": kind}
    others = sorted({*machine.get("others", []), kind} - {machine.get("processor")})
    return {**machine, **({"others": others} if others else {})}


def _columns(table: pa.Table) -> tuple[list[Any], list[Any]]:
    return table["config_hash"].to_pylist(), table["seed"].to_pylist()


def _runs(table: pa.Table) -> set[tuple[Any, ...]]:
    """Return which runs the rows are of."""
    return set(zip(*(table[name].to_pylist() for name in _RUN), strict=True))
