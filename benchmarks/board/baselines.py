"""Baselines: what each configuration is compared with in its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.benchmarks.board.groups import Group
from trimtab.benchmarks.board.stats import Array
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError

__all__ = ["Baselines", "baseline_of", "check_names", "known_among", "last_scores"]

Baselines = Mapping[str, str | None] | str | None
"""One name for all methods, or one for each; None leaves every method with its frozen base."""

FROZEN = "frozen"
"""Name of the algorithm that leaves its base as it is: the default baseline of what steers it."""


def known_among(baselines: Mapping[str, str | None], groups: Sequence[Group]) -> Baselines:
    """Return the baselines whose names are all there, such as those that a suite has noted.

    Of a suite's rows some may be left out, and a label may say less where settings are not known.
    """
    known = {None, *(name for group in groups for name in (group.label, group.algorithm))}
    return {name: other for name, other in baselines.items() if {name, other} <= known} or None


def check_names(baselines: Baselines, groups: Sequence[Group]) -> None:
    """Refuse a baseline, or a method that is to have one, that is in no environment."""
    if baselines is None:
        return
    if isinstance(baselines, str):
        named = [baselines]
    else:
        named = [*baselines, *(name for name in baselines.values() if name is not None)]
    known = sorted({name for group in groups for name in (group.label, group.algorithm)})
    for name in named:
        if name not in known:
            raise TrimtabError(f"leaderboard: no method is called {name!r}; {nearest(name, known)}")


def baseline_of(
    group: Group, here: Sequence[Group], baselines: Baselines, notes: list[str]
) -> Group | None:
    """Return what a configuration is compared with in its environment, if anything."""
    name: str | None = FROZEN if group.base is not None else None
    exact = True  # the frozen base must be the very base; a named baseline need not share it
    if isinstance(baselines, str):
        name, exact = baselines, False
    elif baselines is not None:
        for key in (group.algorithm, group.label):  # a label says more than an algorithm
            if key in baselines:
                name, exact = baselines[key], False
    found = [other for other in here if other.label == name]
    found = found or [other for other in here if other.algorithm == name]
    if group in found:
        return None
    same = [x for x in found if (x.base, x.policy) == (group.base, group.policy)]
    alike = [x for x in found if x.policy == group.policy]
    found = same if exact else same or alike or found
    if len(found) > 1:
        notes.append(
            f"{group.env}: {group.label} is compared with nothing, because {name} may mean "
            f"{' or '.join(other.label for other in found)}."
        )
    return found[0] if len(found) == 1 else None


def last_scores(one: Group, other: Group) -> tuple[dict[int, Array], dict[int, Array]]:
    """Return the last scores of two configurations, of the seeds that both have, if there are two.

    A seed is a base, and what else both start from. One that only one side has says nothing of
    their difference. Every gain that is shown anywhere is that of these scores.
    """
    ours, theirs = one.last(), other.last()
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 2:
        return ours, theirs
    return {seed: ours[seed] for seed in both}, {seed: theirs[seed] for seed in both}
