"""Each method's difference to the best control over all contests, as a table and a forest plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.benchmarks.board.arena.model import Arena, ArenaRow
from trimtab.benchmarks.board.arena.sides import Sides, control_contrasts
from trimtab.benchmarks.board.intervals.contests import (
    Contrast,
    contest_interval,
    tasks_interval,
)
from trimtab.benchmarks.board.pictures import picture
from trimtab.benchmarks.board.stats import Array, Interval
from trimtab.benchmarks.board.verdicts import Verdict, verdict_of

__all__ = ["FOREST", "Difference", "differences", "draw"]

FOREST = "differences.png"
_COLOURS: dict[Verdict, str] = {
    "better": "#007a50", "worse": "#d55e00", "no different": "#0066a6", "not told yet": "#6b7280",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A method, with one setting for all tasks, beside the best control of each contest.

    Attributes:
        method: its label; a variant is a method of its own here.
        contests: those scored by success that it is in.
        hindsight: the mean difference; *better* is read off it.
        held_out: the one that *worse* is read off.
        over_tasks: the mean over contests like these, which are its draws; infinite ends with one.
        verdict: what they say.
    """

    method: str
    contests: int
    hindsight: Interval
    held_out: Interval
    over_tasks: Interval
    verdict: Verdict


def differences(arena: Arena) -> list[Difference]:
    """Return the difference of each method that is in two contests at least, the largest first.

    Contests that are scored by return are left out, and so are methods that start from nothing:
    they stand beside each kind of base.
    """
    found: dict[str, list[tuple[Contrast, Contrast]]] = {}
    for contest in arena.contests:
        controls = {
            row.method: _scores(row)
            for row in contest.rows
            if row.method in arena.controls and row.variant is None
        }
        for row in contest.rows:
            if contest.metric != "success" or row.method in arena.controls or row.base is None:
                continue
            sides = Sides(contest.task, _scores(row), controls, rate=True)
            if (pair := control_contrasts(sides)) is not None:
                found.setdefault(row.label, []).append(pair)
    rows = [_difference(name, pairs) for name, pairs in found.items() if len(pairs) > 1]
    return sorted(rows, key=lambda row: (-row.hindsight.value, row.method))


def _scores(row: ArenaRow) -> dict[int, Array]:
    return dict(zip(row.seeds, row.episode_scores, strict=True))


def _difference(name: str, pairs: Sequence[tuple[Contrast, Contrast]]) -> Difference:
    below, above = ([pair[side] for pair in pairs] for side in (0, 1))
    hindsight, held_out = contest_interval(below), contest_interval(above)
    told = verdict_of(hindsight.low, held_out.high)
    return Difference(name, len(pairs), hindsight, held_out, tasks_interval(above), told)


def draw(rows: Sequence[Difference], path: Path) -> None:
    """Draw a line a method, as in a forest plot.

    It is thick for these contests, from the lower end in hindsight to the upper end held out, and
    thin for the mean over tasks like these; the dot is the difference in hindsight.

    Args:
        rows: in their order from above.
        path: PNG to write.
    """
    with picture(path, 1, 1, (9.0, 1.0 + 0.27 * len(rows))) as ((axis,),):
        from matplotlib.lines import Line2D

        for place, row in enumerate(reversed(rows)):
            colour = _COLOURS[row.verdict]
            axis.plot(row.over_tasks[1:], [place] * 2, color=colour, linewidth=0.9)
            ends = (row.hindsight.low, row.held_out.high)
            axis.plot(ends, [place] * 2, color=colour, linewidth=4.0, solid_capstyle="butt")
            axis.plot(row.hindsight.value, place, "o", color="black", markersize=4.0)
        labels = [f"{row.method} ({row.contests})" for row in reversed(rows)]
        axis.set_yticks(range(len(rows)), labels, fontsize=8)
        axis.axvline(0.0, color="black", linewidth=0.8)
        ends_of = [end for row in rows for end in (row.hindsight.low, row.held_out.high)]
        axis.set_xlim(min(*ends_of, 0.0) - 0.1, max(*ends_of, 0.0) + 0.25)
        axis.set_ylim(-0.7, len(rows) - 0.3)
        axis.set_xlabel("success less that of the best control (number of contests in brackets)")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.25)
        shown = [name for name in _COLOURS if any(row.verdict == name for row in rows)]
        handles = [Line2D([], [], color=_COLOURS[name], linewidth=4.0) for name in shown]
        axis.legend(handles, shown, loc="upper left", frameon=False, fontsize=8)
