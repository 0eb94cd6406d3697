"""Say whether a suite that was run here gave the published rows again; exit code 1 if it did not.

python scripts/compare_results.py runs/suites/quickstart

On the kind of processor that the published rows were made on every row must be equal. On another
one every method's score must lie within its published interval.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trimtab.benchmarks.board.reproduction import compare_rows
from trimtab.benchmarks.runs.rows import collect_episodes
from trimtab.processor import processor_kind

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


def main(folder: Path) -> int:
    """Compare and tell."""
    place = RESULTS / folder.name.replace("_", "-")
    found = compare_rows(
        collect_episodes(folder / "episodes.parquet"), collect_episodes(place / "episodes.parquet")
    )
    made_on = json.loads((place / "machine.json").read_text())["processor"]
    sys.stdout.write(f"published on: {made_on}\nhere:         {processor_kind()}\n")
    sys.stdout.write(f"{found.equal} of {found.rows} rows are equal, {found.missing} missing\n")
    for name, score, interval, inside in found.scores:
        sys.stdout.write(f"{name}: {score}, published {interval}{'' if inside else '  OUTSIDE'}\n")
    return 0 if found.same or (made_on != processor_kind() and found.within) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
