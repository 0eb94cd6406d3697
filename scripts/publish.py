"""Commit finished results: copy their files, and write their tables in the README and docs/.

python scripts/publish.py runs/suites/quickstart
python scripts/publish.py speed                    # what `trimtab speed out=speed` wrote
python scripts/publish.py recompute                # every committed table, from its committed rows
python scripts/publish.py add runs/suites/arena-part    # further runs, of bench with only=
python scripts/publish.py claims                   # judge claims.yaml by committed rows
python scripts/publish.py looks                    # what would bring each claim to its next look
python scripts/publish.py looks run workers=2      # make these runs, cheapest claim first

docs/methods.md has means of these rows, too: then write it anew with python scripts/methods.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image
from published_tables import TABLES, write_pages

from trimtab.benchmarks.board import curves, leaderboard
from trimtab.benchmarks.board.arena import figure as arena_figure
from trimtab.benchmarks.board.arena import writing as arena_writing
from trimtab.benchmarks.board.arena.claim_list import check_names, read_claims
from trimtab.benchmarks.board.arena.claims import find
from trimtab.benchmarks.board.arena.findings import Finding
from trimtab.benchmarks.board.arena.findings import to_markdown as claims_markdown
from trimtab.benchmarks.board.arena.model import Arena
from trimtab.benchmarks.board.arena.next_looks import NextLook, plan_looks
from trimtab.benchmarks.board.arena.table import build as arena_table
from trimtab.benchmarks.board.data_contests import DataContest, contests_of
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.modes import MEASURES, contests_of_modes, read_modes
from trimtab.benchmarks.board.modes import to_markdown as modes_markdown
from trimtab.benchmarks.board.pictures import FIGURE
from trimtab.benchmarks.board.sources import Sources
from trimtab.benchmarks.cli.commands.bench import FURTHER
from trimtab.benchmarks.cli.records import RECORDS, merged_records, methods_of, write_records
from trimtab.benchmarks.suites.document import read_document
from trimtab.benchmarks.suites.grid import expanded
from trimtab.benchmarks.suites.suite import Suite, load_suite
from trimtab.benchmarks.training.rows import (
    FILE_NAME,
    collect_episodes,
    in_order,
    read_episodes,
    write_episodes,
)
from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text, read_json
from trimtab.processor import processor_kind

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SPEED = ("speed.json", "speed.md", "machine.json")
"""What `trimtab speed` writes."""
UNFROZEN_SUITES = ("offline", "offline_to_online", "from_nothing")
"""The suites without frozen bases that claims speak of."""
CALLED = {"": "arena", **{name: name for name in UNFROZEN_SUITES}}
CALLED |= dict.fromkeys(MEASURES, "from_nothing")
"""The suites by what a claim calls them; a measure of the study of modes is of this one's runs."""
MODES = "modes.csv"
"""Rows of the study of modes, beside those of the suite whose runs it measures."""
CLAIMS, BOARD = "claims.md", "leaderboard.json"


def publish(folder: Path, results: Path = RESULTS, project: Path = ROOT) -> None:
    """Publish what `trimtab speed` wrote, or a suite's runs in place of all its committed ones.

    Raises:
        TrimtabError: if a file of a measurement is missing; or as :func:`add`.
    """
    if not (folder / SPEED[0]).is_file():
        add(folder, results, project, anew=True)
        return
    for name in SPEED:
        if not (folder / name).is_file():
            raise TrimtabError(f"publish: {folder / name} is missing; run trimtab speed again")
    place = results / "speed"
    place.mkdir(parents=True, exist_ok=True)
    for name in SPEED:
        shutil.copyfile(folder / name, place / name)
    write_pages(place, project)


def documents_of(folder: Path) -> dict[str, Any]:
    """Return what a suite's hashes were computed from, by hash; runs that are gone have none."""
    found = {}
    (folders,) = fields_of(folder / "suite.json", "folders")
    for run in folders.values():
        file = Path(run) / "provenance.json"
        if file.is_file():
            provenance = read_json(file, "provenance")
            found[provenance["config_hash"]] = provenance["identity"]
    return found


def fields_of(file: Path, *names: str) -> list[Any]:
    """Return fields of a JSON object that a suite wrote.

    Raises:
        TrimtabError: if the file is missing or damaged, or lacks one of them.
    """
    found = read_json(file, "publish")
    for name in names:
        if not isinstance(found, dict) or name not in found:
            raise TrimtabError(f"publish: {file} has no {name}; run the suite again")
    return [found[name] for name in names]


def documents_for(rows: pa.Table, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the hashes of the rows were computed from, by hash.

    Raises:
        TrimtabError: if that is not known of a hash.
    """
    hashes = sorted(set(rows["config_hash"].to_pylist()))
    for digest in hashes:
        if digest not in known:
            raise TrimtabError(
                f"publish: no run's provenance.json says what {digest} was computed from; keep the "
                "folders that suite.json names until their rows are published"
            )
    return {digest: known[digest] for digest in hashes}


def recompute(results: Path = RESULTS, project: Path = ROOT) -> None:
    """Write every committed leaderboard, its learning curves and the pages' tables anew.

    The rows, the command and the versions stay: they say how the rows were made.
    """
    for board in sorted(results.glob("*/leaderboard.json")):
        place = board.parent
        write_tables(place, board_of(place, collect_episodes(place / FILE_NAME)), project)
    for place in sorted({results / folder for table in TABLES for folder in table.folders}):
        if place.is_dir():  # those of speed, and of a GPU, have no leaderboard
            write_pages(place, project)


def add(folder: Path, results: Path = RESULTS, project: Path = ROOT, *, anew: bool = False) -> None:
    """Add the runs of a part of a suite to its committed ones; write the tables.

    So a long suite is published in several sittings, whose processors ``machine.json`` names. A
    run that is committed already gets its new rows. In a suite with records of its runs, so does a
    run whose settings have changed, and a run that the suite no longer has goes.

    Args:
        folder: what ``trimtab bench suite=… only=…`` wrote.
        results: folder of the committed results.
        project: folder whose README.md and docs/ have tables of them.
        anew: whether the committed runs go.

    Raises:
        TrimtabError: as :func:`suite_made_in` and :func:`joined`. Nothing is written then.
    """
    suite = suite_made_in(folder, anew=anew)
    place = results / suite.name.replace("_", "-")
    figure = folder / FIGURE
    if anew and suite.figure is not None and not figure.is_file():
        raise TrimtabError(f"publish: {figure} is missing; run the suite again")
    rows, documents, records, machine = joined(folder, place, suite, anew=anew)
    (versions,) = fields_of(folder / BOARD, "versions")
    board = leaderboard.build(
        rows,
        sources=Sources(baselines=suite.baselines),  # those whose methods are committed
        command=f"trimtab bench suite={suite.name}",
        versions=versions,
        title=suite.title,
    )
    if suite.controls:
        arena_table(rows, records, suite.controls)  # which refuses what does not belong together
    place.mkdir(parents=True, exist_ok=True)
    write_episodes(place / FILE_NAME, rows)
    text = json.dumps(documents, indent=1, sort_keys=True)
    atomic_write_text(place / "configurations.json", text + "\n")
    if suite.has_records:
        write_records(place / RECORDS, records)
    atomic_write_text(place / "machine.json", json.dumps(machine, indent=1) + "\n")
    if anew and suite.figure is not None:
        shutil.copyfile(figure, place / FIGURE)
    write_tables(place, board, project)


def suite_made_in(folder: Path, *, anew: bool) -> Suite:
    """Return the suite whose runs a folder has.

    Args:
        folder: what ``trimtab bench suite=…`` wrote.
        anew: whether it is to take the place of all committed runs.

    Raises:
        TrimtabError: if it is no such folder, or of another scale than the suite's first; if its
            rows are not of one suite of ours; or if a part is to take the place of all.
    """
    if not (folder / "suite.json").is_file():
        raise TrimtabError(f"publish: {folder} is no folder of a suite; run trimtab bench first")
    names = sorted(set(collect_episodes(folder / FILE_NAME)["suite"].to_pylist()))
    (command,) = fields_of(folder / BOARD, "command")
    if len(names) != 1 or names[0] not in group_options("suite"):
        raise TrimtabError(f"publish: {folder}: its rows are of {', '.join(names)}, not of a suite")
    if " scale=" in command:
        raise TrimtabError(f"publish: {folder} is of {command}; run it without scale=")
    if anew and " only=" in command:
        raise TrimtabError(
            f"publish: {folder} is of {command}, a part of the suite; add it: "
            f"publish.py add {folder}"
        )
    return load_suite(names[0], "runs")


def joined(
    folder: Path, place: Path, suite: Suite, *, anew: bool
) -> tuple[pa.Table, dict[str, Any], list[Any], dict[str, Any]]:
    """Return rows, what their hashes were computed from, records and machine, of old runs and new.

    Args:
        folder: what ``trimtab bench suite=…`` wrote.
        place: the suite's committed results, if there are any.
        suite: the suite.
        anew: whether the committed runs go.

    Raises:
        TrimtabError: if a file is damaged, or it is not known what a hash was computed from.
    """
    committed = not anew and (place / FILE_NAME).is_file()
    rows, known = collect_episodes(folder / FILE_NAME), documents_of(folder)
    machine = {"processor": processor_kind()}
    if committed:
        machine = with_processor(place / "machine.json")
        rows = with_runs(read_episodes(place / FILE_NAME), rows)
        known |= read_json(place / "configurations.json", "configurations")
    names = [job.name for job in suite.jobs]
    of_records = [place / RECORDS] if committed else []
    records = merged_records([*of_records, folder / RECORDS], names)
    records = [record for record in records if record["name"] in names]
    if suite.has_records:
        rows = recorded_rows(rows, records)
    return rows, documents_for(rows, known), records, machine


def recorded_rows(rows: pa.Table, records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows of the runs that have a record.

    Args:
        rows: of any runs.
        records: one a run, with its ``config_hash`` and ``seed``.
    """
    runs = {(record["config_hash"], record["seed"]) for record in records}
    return rows.filter(pa.array([run in runs for run in _runs_of(rows)], pa.bool_()))


def with_runs(committed: pa.Table, made: pa.Table) -> pa.Table:
    """Return committed rows and those of further runs; a run that was made again has its new rows.

    Args:
        committed: rows in order.
        made: rows of further runs.
    """
    again = {*_runs_of(made)}
    kept = pa.array([run not in again for run in _runs_of(committed)], pa.bool_())
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


def _runs_of(table: pa.Table) -> list[tuple[str, int]]:
    """Return the run of each row."""
    return [*zip(table["config_hash"].to_pylist(), table["seed"].to_pylist(), strict=True)]


def board_of(place: Path, rows: pa.Table) -> Leaderboard:
    """Return the leaderboard of a result's rows, under the committed title and command."""
    command, versions, title = fields_of(place / BOARD, "command", "versions", "title")
    return leaderboard.build(
        rows,
        sources=Sources(baselines=load_suite(suite_of(place), "runs").baselines),
        command=command,
        versions=versions,
        title=title,
    )


def suite_of(place: Path) -> str:
    """Return the name of the suite whose results a folder has."""
    return place.name.replace("-", "_")


def write_tables(place: Path, board: Leaderboard, project: Path) -> None:
    """Write a leaderboard in all its forms, its learning curves, and the pages' tables of it."""
    leaderboard.write_tables(board, place)
    suite = load_suite(suite_of(place), "runs")
    names = methods_of(read_json(place / RECORDS, "runs")) if suite.has_records else {}
    if suite.controls:
        arena = arena_of(place)
        arena_writing.write(arena, place)
        arena_figure.draw(arena, place / "figure.png")
    elif suite.figure is None:
        curves.draw(board, place / "figure.png", names)
    if suite.tables:
        rows = collect_episodes(place / FILE_NAME)
        for name in suite.tables:
            FURTHER[name].write(rows, place, names)
    if (place / MODES).is_file():
        records = read_json(place / RECORDS, "runs")
        text = modes_markdown(read_modes(place / MODES), records)
        atomic_write_text(place / "modes.md", text)
    shrink_pictures(place)
    write_pages(place, project)


def shrink_pictures(place: Path) -> None:
    """Write the pictures of a result with 256 colours: a third of the bytes, and the same look."""
    for file in place.glob("*.png"):
        with Image.open(file) as picture:
            if picture.mode != "P":
                few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
                few.save(file, optimize=True)


def arena_of(place: Path) -> Arena:
    """Return the arena's tables from the rows and records of a suite's committed result."""
    controls = load_suite(suite_of(place), "runs").controls
    return arena_table(
        collect_episodes(place / FILE_NAME), read_json(place / RECORDS, "runs"), controls
    )


def contests_in(results: Path = RESULTS) -> dict[str, list[DataContest]]:
    """Return the contests of each suite without frozen bases that is committed, and of its studies.

    Raises:
        TrimtabError: if committed rows are damaged.
    """
    found = {}
    for suite in UNFROZEN_SUITES:
        place = results / suite.replace("_", "-")
        if (place / RECORDS).is_file():
            records = read_json(place / RECORDS, "runs")
            found[suite] = contests_of(collect_episodes(place / FILE_NAME), records)
            if (place / MODES).is_file():
                runs = read_modes(place / MODES)
                found |= {name: contests_of_modes(runs, records, name) for name in MEASURES}
    return found


def judge(results: Path = RESULTS) -> list[Finding]:
    """Judge the claims of ``claims.yaml`` by the committed rows of the arena and suites of data.

    Raises:
        TrimtabError: if no arena is committed, or a claim is none or speaks of what no suite has.
    """
    place = results / "arena"
    if not (place / RECORDS).is_file():
        raise TrimtabError(f"publish: {place} has no {RECORDS}; publish the suite arena first")
    data = contests_in(results)
    listed = read_claims(results / "claims.yaml")
    places = {}
    for key, name in CALLED.items():  # their whole grids: a claim may wait for its rows
        document = read_document(name)[1]
        runs = [*expanded(name, document["grid"], {}).values(), *document.get("runs", {}).values()]
        places[key] = [run.get("place", {}) for run in runs]
    check_names(listed, places)
    return find(listed, arena_of(place), data)


def claims(results: Path = RESULTS) -> None:
    """Write what committed rows say of the claims.

    Raises:
        TrimtabError: as :func:`judge`.
    """
    atomic_write_text(results / CLAIMS, claims_markdown(judge(results)))


def next_looks(results: Path = RESULTS) -> list[NextLook]:
    """Judge the claims, and return what would bring those that may be told to their next looks."""
    files = {key: results / name.replace("_", "-") / RECORDS for key, name in CALLED.items()}
    records = {
        key: read_json(file, "runs") if file.is_file() else [] for key, file in files.items()
    }
    return plan_looks(judge(results), records, load_suite("arena", "runs").controls)


def print_looks(looks: Sequence[NextLook]) -> None:
    """Print a plan, a line for each claim, in order."""
    for one in looks:
        sys.stdout.write(
            f"{one.hours:5.1f} core-hours, {len(one.runs):3d} runs: to {one.look} seeds: "
            f"{one.claim.text}\n"
        )
    hours = sum(one.hours for one in looks)
    sys.stdout.write(
        f"{hours:5.1f} core-hours in all; a claim's runs are not counted again, and claims that no "
        "look is likely to tell are left out\n"
    )


def run_looks(words: Sequence[str], results: Path = RESULTS, project: Path = ROOT) -> None:
    """Make the runs of the next looks, those of the cheapest claim first; judge after each claim.

    It ends where every claim is told or has spent its budget. Stop it at any time, and give the
    same command again to go on: a run that was stopped resumes, and a finished one is added.

    Args:
        words: further words of ``trimtab bench``, such as ``workers=1``.
        results: folder of the committed results.
        project: folder whose README.md and docs/ have tables of them.

    Raises:
        TrimtabError: if a suite's run fails.
    """
    while looks := next_looks(results):
        first = looks[0]
        print_looks(looks[:1])
        suite = CALLED[first.claim.suite]
        wanted: dict[str, list[int]] = {}
        for name, seed in first.runs:
            wanted.setdefault(name, []).append(seed)
        for seeds in sorted({tuple(sorted(some)) for some in wanted.values()}):
            names = [name for name, some in wanted.items() if tuple(sorted(some)) == seeds]
            part = Path("runs") / "suites" / f"{suite}-part"
            chosen = [f"only={','.join(names)}", f"seeds={','.join(map(str, seeds))}"]
            trimtab = [sys.executable, "-m", "trimtab.benchmarks.cli.main"]
            # The words cannot say run and out= otherwise: rows of an older call would be added.
            chosen += ["run", f"suite={suite}", f"out={part}"]
            done = subprocess.run([*trimtab, "bench", *chosen, *words])
            if done.returncode:
                raise TrimtabError("publish: the suite did not end; give the same command again")
            add(part, results, project)
        claims(results)


def main(words: Sequence[str], results: Path = RESULTS, project: Path = ROOT) -> int:
    """Do what the words of the command line say; return 2, after one line, if it is refused."""
    if "--help" in words or "-h" in words:
        sys.stdout.write(str(__doc__))
        return 0
    try:
        match words:
            case ["recompute"]:
                recompute(results, project)
            case ["claims"]:
                claims(results)
            case ["looks"]:
                print_looks(next_looks(results))
            case ["looks", "run", *more]:
                run_looks(more, results, project)
            case ["looks", *_]:
                raise TrimtabError("publish: write looks, or looks run with words of trimtab bench")
            case ["add", folder]:
                add(Path(folder), results, project)
            case [folder]:
                publish(Path(folder), results, project)
            case _:
                raise TrimtabError("publish: name one folder, or recompute; --help tells more")
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.stderr.write("publish: interrupted; give the same command again\n")
        sys.exit(130)
