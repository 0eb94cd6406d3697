"""What commands show: tables, JSON and progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.benchmarks.core.numerals import lone_number, rate_text
from trimtab.benchmarks.core.progress import Pace, telling

_LONGEST_NAME = 48
_WIDEST = 1000


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar, and yield the function that updates it.

    The function takes the share that is done, from 0 to 1, and a few words. Without a terminal,
    a line says how far it is, every so many seconds.
    """
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        with _progress_lines(description, console) as tell_line:
            yield tell_line
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.fields[text]}"),
    )  # fmt: skip
    progress = Progress(*columns, console=console)
    task = progress.add_task(description, total=1.0, text="")

    def tell(share: float, text: str) -> None:
        progress.start()  # only now: wrong input ends before any bar is shown
        progress.update(task, completed=share, text=text)

    try:
        yield tell
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def _progress_lines(description: str, console: Console) -> Iterator[Callable[[float, str], None]]:
    """Yield the function that takes how far work is, which lines on a console then say."""
    pace, now = Pace(), ("", 0.0, "")  # nothing is said of what has not begun

    def tell(share: float, text: str) -> None:
        nonlocal now
        pace.left(share)  # the first call says what was done before
        now = description, share, text

    def describe() -> str:
        what, share, text = now
        words = (f"{share:.0%}", text, pace.left(share) if what else "")
        return f"{what}: {', '.join(filter(None, words))}" if what else ""

    def write(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with telling(describe, write):
        yield tell


def print_result(folder: str, summary: Mapping[str, Any], *, already_done: bool) -> None:
    """Print the folder of a run and the result of its last evaluation."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{'already done' if already_done else 'done'}: {folder}")
    success = summary["success"]
    rate = f", success {rate_text(success)}" if success is not None else ""
    if summary["return"] is None:
        console.print(f"{summary['updates']:,} updates on data alone, without a task to play")
    else:
        console.print(
            f"return {lone_number(summary['return'])}{rate} over {summary['episodes']} episodes "
            f"after {summary['env_steps']:,} environment steps and {summary['updates']:,} updates"
        )
    if "held_out" in summary:
        console.print(_held_out(summary["held_out"]))
    if summary.get("reached") is False:
        console.print(
            f"it did not reach the success of {summary['stop_at_success']} where it was to stop; "
            "no run can start from it"
        )
    elif summary.get("all_tried") is False:
        console.print(summary["spending"][-1])


def _held_out(found: Mapping[str, Any]) -> str:
    """Return in one line how well a policy repeats held-out episodes, and what the controls do."""
    controls = (f"{name} {lone_number(fit['error'])}" for name, fit in found["controls"].items())
    exported = ""
    if "best_at" in found:
        exported = f"; the policy of update {found['best_at']:,}, the best, is exported"
        exported += ", and the run ended early" if found["ended_early"] else ""
    return (
        f"held-out action error {lone_number(found['error'])} standard deviations over "
        f"{len(found['episodes'])} episodes ({', '.join(controls)}){exported}"
    )


def print_line(text: str, *, error: bool = False) -> None:
    """Write a text as it is, to standard output or to standard error."""
    console = Console(stderr=error, soft_wrap=True, highlight=False, markup=False)
    console.print(text, markup=False)


def print_json(value: Any) -> None:
    """Write a value as JSON to standard output."""
    out = answer_stream()
    out.write(json.dumps(value, indent=2, default=str) + "\n")
    out.flush()


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table with one column for each key of the first row.

    The first column has names, which are shown whole.
    """
    table = Table()
    keys = list(rows[0]) if rows else ["nothing"]
    longest = max((len(str(row[keys[0]])) for row in rows), default=0)
    for key in keys:
        whole = min(longest, _LONGEST_NAME) if key == keys[0] else None
        table.add_column(str(key), overflow="fold", min_width=whole)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    # In a pipe lines are as long as they have to be: folded ids could not be searched for.
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDEST
    console = Console(width=wide, highlight=False, markup=False)
    console.print(title, style="table.title", markup=False)  # a table folds its own to its width
    console.print(table)
