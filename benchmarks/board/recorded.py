"""Rows held against what their runs' results say of the same evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from trimtab.benchmarks.board.sources import Sources
from trimtab.errors import TrimtabError

__all__ = ["check_recorded"]

_RUN = ["config_hash", "seed"]
_POINT = ["env_steps", "updates"]
_SAME = 1e-9
"""Relative difference of two means of the same numbers that are added in another order."""


def check_recorded(table: pa.Table, sources: Sources) -> None:
    """Check that rows have the scores that the results of their runs recorded.

    Args:
        table: episode rows.
        sources: with the results of their runs, as far as those are known. A run of an earlier
            version recorded the scores of its last evaluation only.

    Raises:
        TrimtabError: naming the first run and evaluation whose rows say something else.
    """
    if not sources.results:
        return
    scored = table.append_column("rate", table["success"].cast(pa.float64()))
    means = scored.group_by([*_RUN, *_POINT]).aggregate(
        [("return", "mean"), ("rate", "mean"), ("return", "count")]
    )
    found = {
        (row["config_hash"], row["seed"], row["env_steps"], row["updates"]): row
        for row in means.to_pylist()
    }
    there = {(digest, seed) for digest, seed, *_ in found}
    for run, result in sources.results.items():
        if run not in there:  # a table may have the rows of some runs only
            continue
        last = {**result, "count": result["episodes"]}
        for said in [*(x for x in result.get("evaluations", []) if "return" in x), last]:
            row = found.get((*run, said["env_steps"], said["updates"]))
            for name, column in (
                ("return", "return_mean"), ("success", "rate_mean"), ("count", "return_count"),
            ):  # fmt: skip
                if name in said and not _same(row and row[column], said[name]):
                    raise _contradiction(sources, run, said, name, row and row[column])


def _same(ours: float | None, theirs: float | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return math.isclose(ours, theirs, rel_tol=_SAME, abs_tol=_SAME)


def _contradiction(
    sources: Sources, run: tuple[str, int], said: Mapping[str, Any], name: str, found: float | None
) -> TrimtabError:
    what = {"return": "a mean return", "success": "a success rate", "count": "a number of episodes"}
    folder = sources.folders.get(run, "/".join(map(str, run)))
    has = "no rows" if found is None else f"{found:.10g}"
    return TrimtabError(
        f"leaderboard: {folder}: of the evaluation after {said['env_steps']:,} environment steps "
        f"and {said['updates']:,} updates its result recorded {what[name]} of {said[name]}, and "
        f"the rows have {has}; restore its episodes.parquet, or move the run's folder away and run "
        "it again"
    )
