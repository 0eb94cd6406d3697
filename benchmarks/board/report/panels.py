"""What stands in one panel of a figure: methods of one environment that had the same budget.

A panel names as many methods as there are colours. Further ones get panels of their own, in the
order of the table, and stand in the others in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.benchmarks.board.model import Entry, EnvTable, Leaderboard
from trimtab.benchmarks.board.report.looks import COLOURS, colours_of
from trimtab.benchmarks.board.report.series import curve_points, over_steps

__all__ = ["Panel", "budgets_of", "panels_of"]

_SAME = 0.8
"""Share of a budget that a method must have used to count as having had it: episodes end early, and
some methods stop before an evaluation or a trial that would not fit."""


@dataclass(frozen=True)
class Panel:
    """Methods that are drawn together.

    Attributes:
        table: their environment's.
        entries: what is named here, the best first.
        others: what is drawn in grey.
        budget: the most steps, or updates, that one of them made; 0 where none made any.
        budgets: how many budgets the environment has.
        place: rank of the first entry among all of this budget, from 1.
        group: number of this panel among those of its budget.
        colours: of each entry, by label.
    """

    table: EnvTable
    entries: tuple[Entry, ...]
    others: tuple[Entry, ...]
    budget: int
    budgets: int
    place: int
    group: int
    colours: Mapping[str, int]

    @property
    def everyone(self) -> tuple[Entry, ...]:
        """All methods that are drawn, named or not."""
        return (*self.entries, *self.others)

    @property
    def budget_text(self) -> str:
        """The budget in words."""
        unit = "environment steps" if over_steps(self.table) else "gradient updates"
        return f"{self.budget:,} {unit}"

    @property
    def places(self) -> str:
        """Which ranks are named here, in words; nothing where all are."""
        if not self.others:
            return ""
        last = self.place + len(self.entries) - 1
        return f"places {self.place} to {last} of {len(self.everyone)}"


def panels_of(board: Leaderboard) -> list[Panel]:
    """Return all panels: by environment, then by budget from the smallest, then by rank."""
    panels = [panel for table in board.tables for panel in _of_table(table)]
    colours = colours_of([[entry.label for entry in panel.entries] for panel in panels])
    return [replace(panel, colours=own) for panel, own in zip(panels, colours, strict=True)]


def _of_table(table: EnvTable) -> list[Panel]:
    panels = []
    budgets = budgets_of(table)
    for longest, members in budgets:
        start = 0
        for group, size in enumerate(_sizes(len(members))):
            named = members[start : start + size]
            others = (*members[:start], *members[start + size :])
            panels.append(
                Panel(table, named, others, longest, len(budgets), start + 1, group, colours={})
            )
            start += size
    return panels


def _sizes(count: int) -> list[int]:
    """Return into how many methods each panel is divided, as evenly as can be."""
    panels = -(-count // COLOURS)
    return [count // panels + (number < count % panels) for number in range(panels)]


def budgets_of(table: EnvTable) -> list[tuple[int, tuple[Entry, ...]]]:
    """Return an environment's methods by their budgets, the smallest first, with its size.

    What takes no steps is a level of every budget. A method whose seeds stopped at different counts
    stops by a rule of its own; it belongs to the smallest budget that it did not exceed.
    """
    ends = {
        place: points[-1][0]
        for place, entry in enumerate(table.entries)
        if (points := curve_points(table, entry))
    }
    sure = [place for place in ends if not table.entries[place].uneven()]
    groups = _clusters(sure, ends)
    loose: list[int] = []
    for place in ends:
        if place not in sure:
            wide = [group for group in groups if ends[group[0]] >= _SAME * ends[place]]
            (min(wide, key=lambda group: ends[group[0]]) if wide else loose).append(place)
    if loose:
        groups.append(sorted(loose, key=lambda place: -ends[place]))
    levels = [place for place in range(len(table.entries)) if place not in ends]
    found = []
    for group in groups or [[]]:
        members = tuple(table.entries[place] for place in sorted([*group, *levels]))
        found.append((int(max((ends[place] for place in group), default=0)), members))
    return sorted(found, key=lambda budget: budget[0])


def _clusters(places: Sequence[int], ends: Mapping[int, float]) -> list[list[int]]:
    """Return methods in groups with about the same end, the longest of a group first."""
    groups: list[list[int]] = []
    for place in sorted(places, key=lambda place: (-ends[place], place)):
        if groups and ends[place] >= _SAME * ends[groups[-1][0]]:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups
