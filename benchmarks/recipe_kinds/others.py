"""A recipe whose data is that of other recipes, one after another (``dataset.of``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.data.recipes import RecipeKind, make_dataset, recipe_identity
from trimtab.benchmarks.training.settings.groups import load_group, name_in_group
from trimtab.datasets.episodes import Episode
from trimtab.errors import TrimtabError

__all__ = ["KIND", "parts_of"]


def parts_of(recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the recipes whose episodes, one after another, a recipe consists of.

    Raises:
        TrimtabError: if one of them is unknown, or another task's.
    """
    names = recipe["of"]
    if not (isinstance(names, list) and names):
        raise TrimtabError(f"dataset.of={names}: must be a list of recipes' names")
    parts = [load_group("dataset", name_in_group("dataset", str(name))) for name in names]
    for name, part in zip(names, parts, strict=True):
        for key in ("env", "env_options"):
            if part.get(key) != recipe.get(key):
                raise TrimtabError(
                    f"recipe {recipe['id']}: {name} has {key} {part.get(key)}, "
                    f"not {recipe.get(key)}"
                )
    return parts


def _check(recipe: Mapping[str, Any]) -> None:
    parts_of(recipe)


def _definition(recipe: Mapping[str, Any], out: Path) -> dict[str, Any]:
    return {"of": [recipe_identity(part, out) for part in parts_of(recipe)]}


def _episodes(
    recipe: Mapping[str, Any], own: Path, progress: Callable[[float], None]
) -> list[Episode]:
    """Return the parts' episodes; they are datasets of their own, beside this one."""
    parts = parts_of(recipe)

    def share_of(part: int) -> Callable[[float], None]:
        return lambda share: progress((part + share) / len(parts))

    episodes: list[Episode] = []
    for number, part in enumerate(parts):
        episodes += make_dataset(part, own.parent.parent, share_of(number)).episodes
        share_of(number)(1.0)  # also where it was there before
    return episodes


KIND = RecipeKind("of", _check, _definition, _episodes)
