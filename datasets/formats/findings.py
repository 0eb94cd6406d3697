"""What is found in a dataset that is legal but probably a mistake, by its reader or by ``lint``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["NOTED", "Finding", "note", "noted"]

NOTED = "findings"
"""Key of a recipe: what its reader found in the file that the data comes from."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: ``error`` (training on it is wrong) or ``warning`` (look at it).
        code: stable name of the check.
        where: file, episode, key and dimension concerned.
        message: what is wrong and what to do.
    """

    level: Literal["error", "warning"]
    code: str
    where: str
    message: str


def note(findings: Iterable[Finding]) -> dict[str, list[dict[str, str]]]:
    """Return the entry of a recipe that notes ``findings``; nothing where there are none."""
    rows = [dataclasses.asdict(finding) for finding in findings]
    return {NOTED: rows} if rows else {}


def noted(recipe: Mapping[str, Any]) -> list[Finding]:
    """Return what a reader noted in ``recipe``."""
    rows, names = recipe.get(NOTED), {field.name for field in dataclasses.fields(Finding)}
    rows = rows if isinstance(rows, list) else []
    return [Finding(**row) for row in rows if isinstance(row, dict) and row.keys() == names]
