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
from trimtab.benchmarks.training.rows import FILE_NAME, collect_episodes
from trimtab.errors import TrimtabError
from trimtab.processor import processor_kind

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


def made_on(place: Path) -> str:
    """Return the kind of processor that published rows were made on.

    Raises:
        TrimtabError: if ``place`` is no folder of a published suite's results, or does not say it.
    """
    told = sorted(path.parent.name for path in RESULTS.glob("*/machine.json") if _has_rows(path))
    if place.name not in told:
        what = "does not say which processor made them" if place.is_dir() else "are not published"
        raise TrimtabError(f"the results {place.name} {what}; compared can be: {', '.join(told)}")
    machine: dict[str, str] = json.loads((place / "machine.json").read_text(encoding="utf-8"))
    return machine["processor"]


def _has_rows(machine: Path) -> bool:
    return machine.with_name(FILE_NAME).is_file()


def compare(folder: Path) -> int:
    """Compare and tell; return the exit code.

    Raises:
        TrimtabError: if rows cannot be read, or are of no suite whose results can be compared.
    """
    made = collect_episodes(folder / FILE_NAME)
    place = RESULTS / folder.resolve().name.replace("_", "-")
    published = made_on(place)
    found = compare_rows(made, collect_episodes(place / FILE_NAME))
    sys.stdout.write(f"published on: {published}\nhere:         {processor_kind()}\n")
    sys.stdout.write(f"{found.equal} of {found.rows} rows are equal, {found.missing} missing\n")
    for name, score, interval, inside in found.scores:
        sys.stdout.write(f"{name}: {score}, published {interval}{'' if inside else '  OUTSIDE'}\n")
    return 0 if found.same or (published != processor_kind() and found.within) else 1


def main(words: list[str]) -> int:
    """Carry out the command line; the exit code is 2 on wrong input."""
    if "--help" in words or "-h" in words:
        sys.stdout.write(__doc__)
        return 0
    try:
        if len(words) != 1:
            raise TrimtabError("name one folder, that of a suite, such as runs/suites/quickstart")
        return compare(Path(words[0]))
    except TrimtabError as error:
        sys.stderr.write(f"compare_results: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
