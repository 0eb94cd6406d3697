"""What committed results say of each method and each task."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from published_tables import interval
from site_pages.text import escaped, table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_DIGITS = {"success": 2}


@dataclass(frozen=True)
class Entry:
    """One committed row of a leaderboard.

    Attributes:
        result: folder of the result.
        title: of the result.
        env: id of the task.
        method: registered name of the method.
        label: what the leaderboard calls it.
        score: mean and interval, as text.
        gain: difference to its baseline, with interval and name; empty where there is none.
        seeds: how many runs there are.
    """

    result: str
    title: str
    env: str
    method: str
    label: str
    score: str
    gain: str
    seeds: int


@functools.cache
def entries() -> Sequence[Entry]:
    """Return every row of every committed leaderboard."""
    found = []
    for file in sorted(RESULTS.glob("*/leaderboard.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        for one in board["tables"]:
            digits = _DIGITS.get(one["metric"], 0)
            for row in one["entries"]:
                gain = row["difference"]
                found.append(
                    Entry(
                        file.parent.name,
                        board["title"],
                        one["env"],
                        row["algorithm"],
                        row["label"],
                        f"{one['metric']} {interval(row['mean'], digits)}",
                        ""
                        if gain is None
                        else f"{interval(gain, digits, signed=True)} over {row['baseline']}",
                        len(row["runs"]),
                    )
                )
    return found


def results_table(found: Sequence[Entry], heading: str, first: Sequence[str], up: str) -> str:
    """Return rows of leaderboards as a table.

    Args:
        found: the rows.
        heading: of the first column.
        first: its cells.
        up: way from the page to the root of the site.
    """
    rows = [
        (
            cell,
            escaped(one.label),
            escaped(one.score),
            escaped(one.gain),
            str(one.seeds),
            f"[{one.title}]({up}results/{one.result}/index.md)",
        )
        for cell, one in zip(first, found, strict=True)
    ]
    return table((heading, "Row", "Score", "Gain", "Seeds", "Result"), rows)
