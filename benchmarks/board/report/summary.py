"""What stands on top of the page: the headline, and contents that say which is first where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from trimtab.benchmarks.board.model import Entry, Leaderboard
from trimtab.benchmarks.board.report.panels import Panel
from trimtab.benchmarks.board.wording import METRIC_NAMES

__all__ = ["contents", "headline"]

_LISTED = 3  # environments, of which a headline lists each


def headline(board: Leaderboard, panels: Sequence[Panel]) -> str:
    """Return the leaderboard's result in a sentence or two, as text.

    Being first is by the table's order, within one budget. How sure it is, is said by the chance to
    be told from the next.
    """
    contests = [panel for panel in panels if panel.place == 1 and len(panel.everyone) > 1]
    if not contests:
        return "Every environment has one method only, so none is ahead of another."
    if len(contests) == 1:
        first, *rest = _ranked(contests[0])
        digits, name = contests[0].table.digits, METRIC_NAMES[contests[0].table.metric]
        return (
            f"{first.label} has the highest {name}, {first.mean.text(digits)}; "
            f"{rest[0].label} is next with {rest[0].mean.text(digits)}.{_apart(first, rest[0])}"
        )
    counts = Counter(_ranked(panel)[0].label for panel in contests)
    most = max(counts.values())
    names = sorted(label for label, count in counts.items() if count == most)
    several = any(panel.budgets > 1 for panel in contests)
    what = "environments and budgets" if several else "environments"
    if most == 1 and len(contests) <= _LISTED:
        return f"First are {'; '.join(_first_in(panel) for panel in contests)}."
    if most == 1:
        return f"No method is first in more than one of {len(contests)} {what}."
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    each = " each" if len(names) > 1 else ""
    verb = "are" if len(names) > 1 else "is"
    return f"{listed} {verb} first most often, in {most} of {len(contests)} {what}{each}."


def _first_in(panel: Panel) -> str:
    """Return the first method in one environment or budget, with its score."""
    first = _ranked(panel)[0]
    budget = f" with {panel.budget_text}" if panel.budgets > 1 else ""
    return f"{first.label} in {panel.table.env}{budget}, {first.mean.text(panel.table.digits)}"


def _ranked(panel: Panel) -> list[Entry]:
    """Return all methods of a panel's budget, in the order of the table."""
    order = {entry.label: place for place, entry in enumerate(panel.table.entries)}
    return sorted(panel.everyone, key=lambda entry: order[entry.label])


def _apart(first: Entry, second: Entry) -> str:
    """Return a caution where the intervals of two overlap."""
    if first.mean.low > second.mean.high:
        return ""
    return " Their intervals overlap."


def contents(board: Leaderboard, panels: Sequence[Panel], more: Sequence[tuple[str, str]]) -> str:
    """Return the contents: a line for each environment, with its first method, and other sections.

    Args:
        board: the leaderboard.
        panels: of its figures.
        more: name and anchor of the sections after the environments.
    """
    lines = []
    for number, table in enumerate(board.tables):
        here = [panel for panel in panels if panel.table is table and panel.place == 1]
        winners = "".join(_winner(panel) for panel in here)
        lines.append(
            f'<li><a href="#env-{number}">{escape(table.env)}</a>'
            f'<span class="muted"> · {escape(METRIC_NAMES[table.metric])}</span>{winners}</li>'
        )
    others = " · ".join(f'<a href="#{anchor}">{escape(name)}</a>' for name, anchor in more)
    return (
        '<nav aria-label="Contents"><h2>Contents, and who is first</h2>'
        f'<ol class="glance">{"".join(lines)}</ol><p class="more">{others}</p></nav>'
    )


def _winner(panel: Panel) -> str:
    """Return the first and the next method of a budget, with their scores."""
    first, *rest = _ranked(panel)
    digits = panel.table.digits
    budget = f'<span class="muted">{panel.budget_text}: </span>' if panel.budgets > 1 else ""
    line = f"<strong>{escape(first.label)}</strong> {first.mean.text(digits)}"
    if rest:
        line += (
            f'<span class="muted">, next {escape(rest[0].label)} '
            f"{rest[0].mean.text(digits)}.{_apart(first, rest[0])}</span>"
        )
    return f"<div>{budget}{line}</div>"
