"""What is claimed, and by whom: the entries of ``claims.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimtab.benchmarks.board.intervals.looks import MOST_LOOKS
from trimtab.benchmarks.board.verdicts import MARGIN
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError

__all__ = ["DATA_KINDS", "KINDS", "Claim", "check_names", "read_claims"]

KINDS = ("higher", "most", "control", "sooner")
"""How a claim about the arena can be judged."""
DATA_KINDS = ("higher", "keeps")
"""How a claim about a suite without frozen bases can be judged."""
_COMPARED = ("higher", "control")
"""Kinds of claims that have a difference, and so looks and a margin."""
_CONTROLLED = ("control",)
"""Kinds of claims that are held against the best of several controls."""
_NAMES, _NUMBER, _SEEDS = "list of names", "number above 0", "list of seeds"
_FORMS = {
    "tasks": _NAMES, "factor": _NUMBER, "margin": _NUMBER, "seeds": _SEEDS,
    "control_seeds": _SEEDS, "looks": _SEEDS,
}  # fmt: skip
"""The forms of entries that are no text."""


@dataclass(frozen=True)
class Claim:
    """What somebody claims.

    Attributes:
        text: the claim in a sentence.
        source: the paper that makes it.
        tier: how sure its numbers are known: paper, abstract, or ours.
        kind: how it is judged: ``higher``, ``most``, ``control``, ``sooner`` or ``keeps``.
        method: of whom it is claimed.
        than: the method that it is compared with, where there is one.
        tasks: the tasks that it speaks of; empty for all.
        measure: ``score`` at the end, or the ``area`` under the curve; in a suite of data also the
            ``drop`` at the switch.
        factor: for ``sooner``: how many times fewer environment steps.
        suite: a suite without frozen bases, or a measure of the study of modes (``modes``,
            ``closed``); empty for the arena.
        seeds: the seeds that it is judged by; empty for all. Without looks, those with which it was
            read; with looks, those after the ones that were seen before it was written.
        control_seeds: for ``control`` with ``seeds``: the seeds by which the best control is
            picked; empty for all. Picked by the seeds that judge, a control has luck on its side.
        margin: differences up to this are none: of success, or as a share of the larger return.
        looks: numbers of seeds a contest at which it is read, at most four, rising; the last one
            is the largest budget. It names its ``tasks``: a further one would open again what is
            told. Empty: it is read once.
    """

    text: str
    source: str
    tier: str
    kind: str
    method: str = ""
    than: str = ""
    tasks: tuple[str, ...] = ()
    measure: str = "score"
    factor: float = 1.0
    suite: str = ""
    seeds: tuple[int, ...] = ()
    control_seeds: tuple[int, ...] = ()
    margin: float = MARGIN
    looks: tuple[int, ...] = ()


def read_claims(path: Path) -> list[Claim]:
    """Return the claims of a YAML file.

    Raises:
        TrimtabError: if it cannot be read, lists something else, or a claim is of no known kind.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TrimtabError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise TrimtabError(f"{path}: must be a list of claims")
    claims = []
    for number, entry in enumerate(entries):
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        try:
            claim = Claim(**values)
        except TypeError as error:
            told = str(error).removeprefix("Claim.__init__() ")
            raise TrimtabError(f"{path}: claim {number + 1}: {told}") from error
        if fault := _fault_of(claim):
            raise TrimtabError(f"{path}: claim {number + 1}: {fault}")
        claims.append(claim)
    return claims


def _fault_of(claim: Claim) -> str:
    """Return what is wrong with a claim; nothing if it is right."""
    for key, value in vars(claim).items():
        form = _FORMS.get(key, "text")
        if not _is(form, value):
            return f"{key}: {value!r} is no {form}"
    kinds, measures = (DATA_KINDS, ("score", "drop")) if claim.suite else (KINDS, ("score", "area"))
    if claim.measure not in measures:
        return f"measure: use {' or '.join(measures)}"
    if claim.kind not in kinds:
        return f"kind {claim.kind!r}; use {', '.join(kinds)}"
    if claim.kind not in _COMPARED and (claim.looks or claim.seeds or claim.margin != MARGIN):
        return f"looks, seeds and margin: only for claims of kind {' or '.join(_COMPARED)}"
    if claim.margin > 1:
        return f"margin: {claim.margin:g} is no share; use a number from 0 to 1"
    return _fault_of_looks(claim) or _fault_of_seeds(claim)


def _fault_of_looks(claim: Claim) -> str:
    looks = claim.looks
    if looks and (len(looks) > MOST_LOOKS or sorted({*looks}) != [*looks] or looks[0] < 2):
        return (
            f"looks: at most {MOST_LOOKS} rising numbers of seeds, each at least 2, not {[*looks]}"
        )
    if looks and not claim.tasks:
        return "looks: name the tasks, too; a further one would open again what is told"
    if looks and claim.seeds and looks[-1] > len(claim.seeds):
        return f"looks: the last one, {looks[-1]}, is more than the seeds, {len(claim.seeds)}"
    return ""


def _fault_of_seeds(claim: Claim) -> str:
    for key, seeds in (("seeds", claim.seeds), ("control_seeds", claim.control_seeds)):
        if len({*seeds}) < len(seeds):
            return f"{key}: name each once, not {[*seeds]}"
    if not claim.control_seeds:
        return ""
    if claim.kind not in _CONTROLLED:
        return f"control_seeds: only for claims of kind {' or '.join(_CONTROLLED)}"
    if not claim.seeds:
        return "control_seeds: name the seeds that judge, too"
    if shared := {*claim.seeds} & {*claim.control_seeds}:
        return (
            f"control_seeds: {min(shared)} also judges (seeds); the control must be picked by "
            "other seeds"
        )
    return ""


def _is(form: str, value: object) -> bool:
    """Return whether an entry of a claim has a form."""
    if form == _NAMES:
        return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
    if form == _NUMBER:
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        )
    if form == _SEEDS:
        return isinstance(value, tuple) and all(type(one) is int for one in value)
    return isinstance(value, str)


def check_names(claims: Sequence[Claim], places: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Check that claims speak of tasks and methods that their suites have.

    Args:
        claims: the claims.
        places: where each run of a suite stands in its grid, by the suite's name; the arena's is
            empty.

    Raises:
        TrimtabError: if a suite or a name in it is unknown.
    """
    for claim in claims:
        if claim.suite not in places:
            raise TrimtabError(
                f"claim {claim.text!r}: suite {claim.suite}; {nearest(claim.suite, places)}"
            )
        for key, names in (
            ("method", [one for one in (claim.method, claim.than) if one]),
            ("task", claim.tasks),
        ):
            known = {str(place[key]) for place in places[claim.suite] if place.get(key)}
            for name in names:
                if name not in known:
                    raise TrimtabError(
                        f"claim {claim.text!r}: {key} {name}; {nearest(name, sorted(known))}"
                    )
