"""Measure how often intervals hold the truth, and what few seeds can tell.

python interval_coverage.py                  # about fifteen minutes on one core
python interval_coverage.py --write          # and writes its results and docs/statistics.md
python interval_coverage.py --tables         # writes the pages anew from the committed rows

Every cell is a situation in which the truth is known. The interval of
``benchmarks/board/intervals/`` (new) and the percentile bootstrap of
``benchmarks/board/stats.py`` (old) are computed for many draws of it; the coverage is the share of
draws whose interval holds the truth. The same command gives the same rows. Situations,
measurements and tables are in ``coverage_study/``.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coverage_study.measuring import NEW_DRAWS, OLD_DRAWS, measure
from coverage_study.power import POWER_SEEDS, WORSE_BY, verdicts
from coverage_study.situations import cells
from coverage_study.tables import (
    contests_table,
    looks_table,
    page,
    seeds_table,
    starts_table,
    summary,
    tasks_table,
    unequal_table,
    verdict_table,
)
from coverage_study.verdicts import look_rows, start_rows, task_rows, unequal_rows, verdict_rows

from trimtab.files import atomic_write_text

RESULTS = Path(__file__).resolve().parent
DOCUMENT = RESULTS.parents[2] / "docs" / "statistics.md"


def main() -> None:
    """Measure every cell; print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tables", action="store_true")
    settings = parser.parse_args()
    if settings.tables:
        write_pages()
        return
    rows = []
    for cell in cells():
        rows.append(asdict(measure(cell, NEW_DRAWS, OLD_DRAWS)))
        sys.stderr.write(f"{rows[-1]}\n")
    powers = [
        {"seeds": seeds, "worse_by": worse_by, **verdicts(seeds, worse_by, 4 * NEW_DRAWS)}
        for worse_by in WORSE_BY
        for seeds in POWER_SEEDS
    ]
    told = {
        "verdicts": [*verdict_rows(NEW_DRAWS)],
        "looks": [*look_rows(NEW_DRAWS)],
        "starts": [*start_rows(NEW_DRAWS)],
        "unequal": [*unequal_rows(4 * NEW_DRAWS)],
        "tasks": [*task_rows(4 * NEW_DRAWS)],
    }
    if settings.write:
        atomic_write_text(RESULTS / "coverage.csv", as_csv(rows))
        atomic_write_text(RESULTS / "power.csv", as_csv(powers))
        for name, found in told.items():
            atomic_write_text(RESULTS / f"{name}.csv", as_csv(found))
        write_pages()
    else:
        sys.stdout.write(page(rows, powers))


def write_pages() -> None:
    """Write ``coverage.md`` and the tables in ``docs/statistics.md`` from the committed rows."""
    atomic_write_text(RESULTS / "coverage.md", page(committed("coverage"), committed("power")))
    text = DOCUMENT.read_text()
    for name, lines in document_tables().items():
        before, start, rest = text.partition(
            f"<!-- {name} table: written by benchmarks/results/coverage/interval_coverage.py -->"
        )
        _, end, after = rest.partition("<!-- end of table -->")
        if not end:
            sys.exit(f"{DOCUMENT.name} lacks the place of the table {name}")
        text = f"{before}{start}\n{lines}\n{end}{after}"
    atomic_write_text(DOCUMENT, text)


def document_tables() -> dict[str, str]:
    """Return the tables of ``docs/statistics.md`` by name, from the committed rows."""
    return {
        "coverage": summary(committed("coverage")),
        "seeds": seeds_table(),
        "verdict": verdict_table(committed("power")),
        "contests": contests_table(committed("verdicts")),
        "looks": looks_table(committed("looks")),
        "starts": starts_table(committed("starts")),
        "unequal": unequal_table(committed("unequal")),
        "tasks": tasks_table(committed("tasks")),
    }


def committed(name: str) -> list[dict[str, str]]:
    """Return committed rows, by the name of their file."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    main()
