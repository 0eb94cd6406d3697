"""The leaderboard, computed from raw episode rows and from nothing else; written and printed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from trimtab.benchmarks.board import stats
from trimtab.benchmarks.board.baselines import Baselines, baseline_of, check_names, known_among
from trimtab.benchmarks.board.groups import (
    grouped,
    metric_of,
    newest_revisions,
    one_physics,
    with_physics,
)
from trimtab.benchmarks.board.intervals.kinds import KINDS, kind_of
from trimtab.benchmarks.board.model import EnvTable, Leaderboard, Metric
from trimtab.benchmarks.board.numbers import Numbers, aggregates_of
from trimtab.benchmarks.board.recorded import check_recorded
from trimtab.benchmarks.board.remarks import early_ends, remarks
from trimtab.benchmarks.board.sources import Sources
from trimtab.benchmarks.board.tables import write_texts
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.benchmarks.training.rows import FILE_NAME, read_episodes, write_episodes
from trimtab.errors import TrimtabError
from trimtab.files import check_own
from trimtab.policies.bundle.files import CONFIG, MODEL

__all__ = ["build", "check_place", "print_table", "write", "write_tables"]

_MARKS = {
    "leaderboard.md": "## Provenance",
    "leaderboard.csv": "env,metric,fingerprint,",
    "leaderboard.json": '"intervals": "',
}
"""Text that the files of a leaderboard have near their beginning or end, by which one is known."""


def build(
    table: pa.Table,
    *,
    metric: Metric | None = None,
    baselines: Baselines = None,
    command: str = "",
    versions: Mapping[str, str] | None = None,
    title: str | None = None,
    intervals: str = KINDS[0],
    repetitions: int = stats.REPETITIONS,
    seed: int = 0,
    sources: Sources | None = None,
    physics: Sequence[str] = (),
) -> Leaderboard:
    """Compute the leaderboard of a table of episode rows.

    Args:
        table: rows as :func:`trimtab.benchmarks.training.rows.collect_episodes` returns them.
        metric: what is scored; None takes success where the environment has it, else the return.
        baselines: what each method is compared with: one name for all, or by method (None: with
            nothing). Names are labels such as ``dsrl_sac (flow)``, or algorithms. A method that is
            not named and has a base is compared with that base, left frozen.
        command: the command that recomputes this leaderboard.
        versions: package versions to print.
        title: heading; by default made from the suites in the rows.
        intervals: ``student_t``, which holds its level with few seeds, or ``bootstrap``, the
            field's percentile intervals.
        repetitions: resamples of each bootstrap, where those are wanted.
        seed: seed of the bootstraps.
        sources: what is known of the rows beside them, for names and notes.
        physics: fingerprints; of an environment with several, only rows of one of these count.

    Raises:
        TrimtabError: if there is no row, rows of one environment have different physics, a score is
            missing, not finite or another than a run's result recorded, or a baseline or kind of
            interval is unknown.
    """
    kind = kind_of(intervals, repetitions, seed)
    if table.num_rows == 0:
        raise TrimtabError("leaderboard: no episode rows; evaluate a run first")
    notes: list[str] = []
    known = sources or Sources()
    check_recorded(table, known)
    table = with_physics(newest_revisions(table, notes), physics, notes)
    fingerprints = one_physics(table, known, physics)
    metrics = {env: metric_of(table, env, metric) for env in fingerprints}
    groups = grouped(table, metrics, known.settings)
    check_names(baselines, groups)
    baselines = baselines or known_among(known.baselines, groups)
    tables = []
    for env, fingerprint in fingerprints.items():
        here = [group for group in groups if group.env == env]
        numbers = Numbers(kind, rate=metrics[env] == "success")
        entries = [
            numbers.entry(group, baseline_of(group, here, baselines, notes)) for group in here
        ]
        entries.sort(key=lambda entry: (-entry.iqm.value, -entry.mean.value, entry.label))
        tables.append(EnvTable(env, metrics[env], fingerprint, tuple(entries)))
    notes += [*remarks(tables, known), *early_ends(table), *known.notes]
    suites = sorted({str(x) for x in table["suite"].unique().to_pylist() if x is not None})
    return Leaderboard(
        title=title or "Leaderboard" + (f": {', '.join(suites)}" if suites else ""),
        command=command,
        versions=dict(versions or {}),
        tables=tuple(tables),
        aggregates=tuple(aggregates_of(tables, kind)),
        notes=tuple(notes),
        intervals=kind.description,
        rows=table,
    )


def check_place(out_folder: str | Path) -> None:
    """Check that a leaderboard written to a folder replaces none but an earlier leaderboard.

    Rows are an earlier leaderboard's if one lies beside them; else they are those of a run or of an
    evaluation, which are there once.

    Raises:
        TrimtabError: naming the file of somebody else's.
    """
    out = Path(out_folder)
    if all((out / name).is_file() for name in (CONFIG, MODEL)):
        raise TrimtabError(f"out={out}: is a policy's bundle; name a folder for the leaderboard")
    for name, mark in _MARKS.items():
        check_own(out / name, mark, "out")
    rows = out / FILE_NAME
    if os.path.lexists(rows):
        try:
            read_episodes(rows)
        except TrimtabError as error:
            raise TrimtabError(
                f"out={rows}: something is there that this command has not made; name another "
                "folder, or remove it"
            ) from error
        if not (out / "leaderboard.json").is_file():
            raise TrimtabError(
                f"out={out}: has the rows of a run or of an evaluation, which a leaderboard would "
                "replace; name another folder"
            )


def write(leaderboard: Leaderboard, out_folder: str | Path) -> dict[str, Path]:
    """Write the leaderboard in every form; return the paths by name.

    Writes ``leaderboard.md``, ``.csv`` and ``.json`` and ``episodes.parquet``, each whole or not
    at all; other files in the folder are left alone.

    Raises:
        TrimtabError: if one of these files is somebody else's, or cannot be written.
    """
    out = Path(out_folder)
    check_place(out)
    paths = write_tables(leaderboard, out)
    write_episodes(out / FILE_NAME, leaderboard.rows)  # last: beside it there is a leaderboard
    return {**paths, FILE_NAME: out / FILE_NAME}


def write_tables(leaderboard: Leaderboard, folder: Path) -> dict[str, Path]:
    """Write ``leaderboard.md``, ``.csv`` and ``.json``; return the paths by name."""
    texts = (leaderboard.to_markdown(), leaderboard.to_csv(), leaderboard.to_json())
    return write_texts(folder, dict(zip(_MARKS, texts, strict=True)))


def print_table(leaderboard: Leaderboard, console: Console) -> None:
    """Print the tables to a terminal, with fewer columns than the files have."""
    shown = ("Method", "Mean [95%]", "Best", "Gain [95%]", "Baseline", "Trained for", "Seeds")
    console.print(leaderboard.title, style="bold", markup=False, highlight=False)
    for table in leaderboard.tables:
        view = RichTable(
            title=f"{table.env} · {METRIC_NAMES[table.metric]}",
            title_justify="left",
            title_style="bold",
            caption="in the order of IQM, then of the mean",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        # Names are folded, not cut: what tells two of them apart may be at the end.
        view.add_column(shown[0], overflow="fold")
        for heading in shown[1:]:
            view.add_column(heading, justify="right")
        for entry in table.entries:
            cells = table.cells(entry)
            view.add_row(*(cells[heading] for heading in shown))
        console.print(view)
    for note in leaderboard.notes:
        console.print(f"note: {note}", style="dim", markup=False, highlight=False)
