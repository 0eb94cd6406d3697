"""What a file calls the entries of its observations and actions: joints, and the like."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.robomimic.tasks import PARTS

__all__ = ["NAMES", "names_in", "numbered"]

NAMES = "names"
"""Key of a recipe: the names of ``observation`` and ``action``, where the file has them."""


def numbered(parts: Iterable[tuple[str, int]]) -> list[str]:
    """Return a name for each entry of parts that are joined: its part's, numbered where wider.

    Args:
        parts: name and width of each.
    """
    return [
        name if width == 1 else f"{name}.{index}" for name, width in parts for index in range(width)
    ]


def names_in(dataset: Dataset) -> dict[str, list[str]]:
    """Return the names of ``observation`` and ``action`` entries, of those sides that have some.

    Names that are not as many as the entries, or not of different texts, count for nothing.
    """
    noted = dataset.recipe.get(NAMES)
    found: dict[str, Any] = dict(noted) if isinstance(noted, Mapping) else {}
    parts = dataset.recipe.get(PARTS)
    if "observation" not in found and isinstance(parts, list):
        with contextlib.suppress(TypeError, ValueError):
            found["observation"] = numbered((str(name), int(width)) for name, width in parts)
    widths = {"observation": dataset.obs_dim, "action": dataset.action_dim}
    return {
        side: names
        for side, width in widths.items()
        if isinstance(names := found.get(side), list)
        and len(names) == width == len({name for name in names if isinstance(name, str)})
    }
