"""Progress bars of many runs: one of all of them, and one of each that is being carried out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from trimtab.benchmarks.core.progress import Pace, telling

__all__ = ["Bars"]


class Bars:
    """Shows how far many runs are; as a context it is on the screen.

    Args:
        title: what all of them together are called.
        weights: of each run, by its label: how long it takes, in any unit.
        console: where they are shown; one that is no terminal gets a line for each run that ends,
            and one that says how far they are, every so many seconds.
    """

    def __init__(self, title: str, weights: Mapping[str, float], console: Console) -> None:
        self._weights, self._console, self._title = weights, console, title
        self._pace, self._lines = Pace(), ExitStack()
        self._progress = Progress(
            TextColumn("{task.description}", table_column=None),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>4.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[text]}"),
            console=console,
            refresh_per_second=2,
        )
        total = sum(weights.values())
        self._whole = self._progress.add_task(f"[bold]{title}[/bold]", total=total, text="")
        self._tasks: dict[str, TaskID] = {}
        self._shares: dict[str, float] = {}
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()  # runs end in one thread, their messages come in by another

    def __enter__(self) -> Bars:
        if self._console.is_terminal:
            self._progress.start()
        else:
            self._pace.left(0.0)
            self._lines.enter_context(telling(self._line, self._write))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.close()
        if self._console.is_terminal:
            self._progress.stop()

    def _line(self) -> str:
        """Return how far all runs are, and each that is being carried out."""
        with self._lock:
            share = self._done() / max(sum(self._weights.values()), 1e-9)
            words = [f"{share:.0%}", f"{self._count(' of ')} runs", self._pace.left(share)]
            running = [
                f"{label} {self._shares[label]:.0%}, {self._texts[label]}" for label in self._tasks
            ]
        return f"{self._title}: {', '.join(filter(None, words))}" + "".join(
            f"; {one}" for one in running
        )

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tell(self, label: str, share: float, text: str) -> None:
        """Show that a run is done to ``share``, with a few words."""
        with self._lock:
            if self._shares.get(label, 0.0) >= 1.0:
                return
            if label not in self._tasks:
                self._tasks[label] = self._progress.add_task(label, total=1.0, text="")
            self._shares[label], self._texts[label] = share, text
            self._progress.update(self._tasks[label], completed=share, text=text)
            if share >= 1.0:
                self._end(label)
            self._refresh()

    def finished(self, label: str, state: str = "done") -> None:
        """Show that a run has come to its end, and how."""
        with self._lock:
            self._end(label)
            self._refresh()
        if not self._console.is_terminal:
            self._write(f"{self._count()} {label} {state}")

    def _end(self, label: str) -> None:
        self._shares[label] = 1.0
        if label in self._tasks:
            self._progress.remove_task(self._tasks.pop(label))

    def _refresh(self) -> None:
        text = f"{self._count(' of ')} runs"
        self._progress.update(self._whole, completed=self._done(), text=text)

    def _done(self) -> float:
        return sum(self._weights[label] * share for label, share in self._shares.items())

    def _count(self, between: str = "/") -> str:
        return f"{sum(s >= 1 for s in self._shares.values())}{between}{len(self._weights)}"
