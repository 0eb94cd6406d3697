"""Commit finished results: copy their files, and write their table in the README.

python scripts/publish.py runs/suites/quickstart
python scripts/publish.py speed                    # what `trimtab speed out=speed` wrote
python scripts/publish.py recompute                # every committed table, from its committed rows
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board import curves, leaderboard, report
from trimtab.benchmarks.board.intervals import verdict
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.runs.rows import collect_episodes
from trimtab.benchmarks.settings.groups import group_options
from trimtab.benchmarks.settings.words import nearest
from trimtab.benchmarks.speed.measure import Row
from trimtab.benchmarks.speed.report import readable
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text
from trimtab.processor import processor_kind

ROOT = Path(__file__).parent.parent
KINDS = (
    ("episodes.parquet", "leaderboard.md", "leaderboard.csv", "leaderboard.json", "index.html",
     "figure.png"),
    ("speed.json", "speed.md", "machine.json", "growth.json", "growth.png"),
)  # fmt: skip
"""Files of a suite, and of `trimtab speed`; a folder is of the kind whose first file it has."""
END = "<!-- end of table -->"
ORDER = (
    "robotics/PointMaze-TwoRoutes-v0",
    "robotics/PointMaze-TwoRoutes-Blocked-v0",
    "metaworld/push-v3",
)


def files_of(folder: Path) -> Sequence[str]:
    """Return the files of a folder that are to be published, after a look at all that has to be.

    Raises:
        TrimtabError: if it is no folder of a suite or of `trimtab speed`, or a file is missing.
    """
    if not folder.is_dir():
        raise TrimtabError(
            f"publish: {folder} is no folder; name that of a suite, such as runs/suites/quickstart"
        )
    kinds = [files for files in KINDS if (folder / files[0]).is_file()]
    if not kinds:
        names = ", ".join(files[0] for files in KINDS)
        raise TrimtabError(f"publish: {folder} has none of {names}; name a finished suite's folder")
    name = folder.name.replace("_", "-")
    suites = [suite.replace("_", "-") for suite in group_options("suite")]
    known = suites if kinds[0] is KINDS[0] else ["speed"]
    if name not in known:
        raise TrimtabError(f"publish: {folder}: no suite is called {name}; {nearest(name, known)}")
    needed = [folder / file for file in kinds[0]]
    if (folder / "suite.json").is_file():
        runs = json.loads((folder / "suite.json").read_text())["folders"].values()
        needed += [Path(run) / "provenance.json" for run in runs]
    missing = [path for path in needed if not path.is_file()]
    if missing:
        raise TrimtabError(f"publish: {missing[0]} is missing; run the suite again")
    return kinds[0]


def interval(value: dict[str, float], digits: int = 2, *, signed: bool = False) -> str:
    """Return ``mean [low, high]``."""
    form = f"{'+' if signed else ''},.{digits}f"
    return f"{value['value']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def gains(board: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of success rates and gains."""
    yield "task", "method", "success", "gain"
    by_env = {env["env"]: env["entries"] for env in board["tables"]}
    for env in ORDER:
        for entry in by_env[env]:
            gain = interval(entry["difference"], signed=True) if entry["difference"] else ""
            yield f"`{env}`", entry["label"], interval(entry["mean"]), gain


def parity(board: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of returns beside those of the peers."""
    yield "task", "method", "return", "the peer's", "P(better)", "seeds", "shown"
    for env in board["tables"]:
        means = {entry["label"]: entry["mean"] for entry in env["entries"]}
        for entry in env["entries"]:
            if entry["baseline"]:
                yield (
                    f"`{env['env']}`",
                    entry["label"],
                    interval(entry["mean"], 0),
                    interval(means[entry["baseline"]], 0),
                    interval(entry["improvement"]),
                    str(len(entry["runs"])),
                    verdict(Interval(**entry["improvement"])),
                )


def ratios(rows: Any) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table of what was faster or slower than whom."""
    yield "what", "measured against", "Trimtab", "peer", "unit", "ours / peer"
    for row in (Row(**row) for row in rows):
        if row.ratio_median is not None and not row.name.endswith("_generic"):  # no peer: our own
            cells = readable(row)
            name = f"`{row.name}`"
            yield (
                name, cells["measured against"], cells["ours"], cells["peer"], row.unit,
                cells["ours / peer"],
            )  # fmt: skip


TABLES: dict[str, tuple[str, Callable[[Any], Iterator[tuple[str, ...]]]]] = {
    "quickstart": ("leaderboard.json", gains),
    "online-parity": ("leaderboard.json", parity),
    "speed": ("speed.json", ratios),
}
"""Results that the README has a table of, and the file that it is made from."""


def markdown(lines: Iterator[tuple[str, ...]]) -> str:
    """Return lines of cells as a table; the first two columns are words, the others numbers."""
    heading, *rest = lines
    rule = [":--" if number < 2 else "--:" for number in range(len(heading))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, rule, *rest))


def publish(folder: Path) -> None:
    """Copy the files of ``folder`` and write the README's table."""
    files = files_of(folder)
    name = folder.name.replace("_", "-")
    results = ROOT / "benchmarks" / "results" / name
    results.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(folder / file, results / file)
    if (folder / "suite.json").is_file():
        write_configurations(folder / "suite.json", results)
    write_readme(name)


def write_configurations(note: Path, results: Path) -> None:
    """Write what a finished suite's hashes were computed from, and what its bits depend on."""
    folders = json.loads(note.read_text())["folders"].values()
    found = {}
    for folder in folders:
        provenance = json.loads((Path(folder) / "provenance.json").read_text())
        found[provenance["config_hash"]] = provenance["identity"]
    text = json.dumps(dict(sorted(found.items())), indent=1, sort_keys=True)
    atomic_write_text(results / "configurations.json", text + "\n")
    machine = json.dumps({"processor": processor_kind()}, indent=1)
    atomic_write_text(results / "machine.json", machine + "\n")


def recompute() -> None:
    """Write every committed leaderboard, its learning curves and the README's tables anew.

    The rows, the command and the versions stay: they say how the rows were made.
    """
    for rows in sorted((ROOT / "benchmarks" / "results").glob("*/leaderboard.json")):
        folder, suite = rows.parent, load_suite(rows.parent.name.replace("-", "_"), "runs")
        committed = json.loads(rows.read_text())
        board = leaderboard.build(
            collect_episodes(folder / "episodes.parquet"),
            baselines=suite.baselines or None,
            command=committed["command"],
            versions=committed["versions"],
            title=committed["title"],
        )
        atomic_write_text(folder / "leaderboard.md", board.to_markdown())
        atomic_write_text(folder / "leaderboard.csv", board.to_csv())
        atomic_write_text(folder / "leaderboard.json", board.to_json())
        atomic_write_text(folder / "index.html", report.render(board))
        if suite.figure is None:
            curves.draw(board, folder / "figure.png")
        write_readme(folder.name)


def write_readme(name: str) -> None:
    """Write the README's table of a result, if it has one."""
    if name not in TABLES:
        return
    results = ROOT / "benchmarks" / "results" / name
    start = f"<!-- {name} table: written by scripts/publish.py -->"
    readme = ROOT / "README.md"
    before, found, rest = readme.read_text().partition(start)
    if not found:
        sys.exit(f"README.md lacks the line {start}")
    _, _, after = rest.partition(END)
    file, lines = TABLES[name]
    content = json.loads((results / file).read_text())
    readme.write_text(f"{before}{start}\n{markdown(lines(content))}\n{END}{after}")


def main(words: Sequence[str]) -> int:
    """Do what the words of the command line say; return 2, after one line, if it is refused."""
    if "--help" in words or "-h" in words:
        sys.stdout.write(__doc__)
        return 0
    try:
        match words:
            case ["recompute"]:
                recompute()
            case [folder]:
                publish(Path(folder))
            case _:
                raise TrimtabError("publish: name one folder, or recompute; --help tells more")
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
