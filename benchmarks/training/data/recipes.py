"""Datasets that are made: recipes, which say what acts, where, for how long, and with what seed.

A recipe is a file of ``conf/dataset/``. What its episodes come from is its kind: one setting, such
as ``controller``, by a module of ``benchmarks/recipe_kinds/`` that defines ``KIND``.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.data.recording import dataset_of
from trimtab.benchmarks.training.locking import locked
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.datasets.catalog import made_datasets, success_sentence
from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import check_id
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.recording import HopelessError
from trimtab.discovery import modules_in
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json

__all__ = [
    "RecipeKind",
    "check_recipe",
    "definition",
    "definition_digest",
    "is_recipe",
    "is_recipe_section",
    "make_dataset",
    "recipe_digest",
    "recipe_folder",
    "recipe_identity",
    "record_recipe",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecipeKind:
    """What a recipe's episodes come from.

    Attributes:
        key: the recipe's setting that says it.
        check: ends with one line on wrong settings, before anything is recorded.
        definition: returns what the kind adds to the recipe's definition, as JSON values:
            ``(recipe, folder of runs)``.
        episodes: returns the episodes: ``(recipe, own folder, progress)``, where progress is called
            with the share that is done. What is kept for going on later lies in the own folder.
    """

    key: str
    check: Callable[[Mapping[str, Any]], None]
    definition: Callable[[Mapping[str, Any], Path], dict[str, Any]]
    episodes: Callable[[Mapping[str, Any], Path, Callable[[float], None]], list[Episode]]


@functools.cache
def _kinds() -> Mapping[str, RecipeKind]:
    """Find the modules of ``benchmarks/recipe_kinds/`` that define ``KIND``, by their keys."""
    found = (module.KIND for module in modules_in("benchmarks", "recipe_kinds"))
    return {kind.key: kind for kind in found}


def _kind(recipe: Mapping[str, Any]) -> RecipeKind:
    """Return a recipe's kind.

    Raises:
        TrimtabError: if it has none, or two.
    """
    there = [key for key in _kinds() if key in recipe]
    keys = [key for key in there if recipe[key] is not None] or there
    if not keys:
        raise TrimtabError(f"recipe {recipe['id']}: it has no dataset.controller, which acts")
    if len(keys) > 1:
        raise TrimtabError(
            f"recipe {recipe['id']}: give one of {' and '.join(f'dataset.{key}' for key in keys)}; "
            "set the other to null"
        )
    return _kinds()[keys[0]]


def is_recipe(name: str) -> bool:
    """Return whether a file of ``conf/dataset/`` says how data is made."""
    return is_recipe_section(load_group("dataset", name))


def is_recipe_section(section: Mapping[str, Any] | None) -> bool:
    """Return whether a run's setting ``dataset`` says how data is made, and not where it lies."""
    return bool(_kinds().keys() & set(section or {}))


def recipe_digest(recipe: Mapping[str, Any]) -> str:
    """Return ten hexadecimal digits over a recipe's settings."""
    return sha256_json(dict(recipe))[:10]


def check_recipe(recipe: Mapping[str, Any]) -> None:
    """Check a recipe's settings, before anything is recorded or its task is made.

    Raises:
        TrimtabError: naming the setting.
    """
    for key in ("id", "env"):
        if not isinstance(recipe.get(key), str):
            raise TrimtabError(f"dataset.{key}={recipe.get(key)}: must be given, as text")
    check_id(recipe["id"])
    options = recipe.get("env_options")
    if not isinstance(options, Mapping | None):
        raise TrimtabError(
            f"dataset.env_options={options}: must be a mapping, such as "
            "dataset.env_options.reward=sparse"
        )
    checked_names(options or {})
    _kind(recipe).check(recipe)


def recipe_folder(recipe: Mapping[str, Any], out: Path) -> Path:
    """Return where a recipe's dataset lies, ``<out>/datasets/<identity>/<id>``.

    Raises:
        TrimtabError: as :func:`recipe_identity`.
    """
    return out / "datasets" / recipe_identity(recipe, out) / str(recipe["id"])


def recipe_identity(recipe: Mapping[str, Any], out: Path) -> str:
    """Return the ten hexadecimal digits that a recipe's dataset is known by.

    They are a digest of the recipe's :func:`definition`, so that they are equal on every machine,
    whatever last bits its processor computes. A recipe whose definition is that of a published
    dataset keeps the digits that the dataset was published with (``datasets/made.yaml``).

    Args:
        recipe: its settings.
        out: folder of runs; it decides nothing, the run of a replay recipe is composed with it.

    Raises:
        TrimtabError: if the recipe's id, task, controller or run is wrong.
    """
    digest = definition_digest(recipe, out)
    published = {row.get("definition"): row.get("identity") for row in made_datasets().values()}
    return str(published.get(digest) or digest)


def definition_digest(recipe: Mapping[str, Any], out: Path) -> str:
    """Return ten hexadecimal digits over a recipe's :func:`definition`.

    Raises:
        TrimtabError: as :func:`definition`.
    """
    return sha256_json(definition(recipe, out))[:10]


def definition(recipe: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Return all that decides what a recipe makes, as JSON values, with defaults filled in.

    Its id, its task with the options that differ from their defaults, the physics, and what its
    kind adds: what acts, for how long, with what seed.

    Raises:
        TrimtabError: if the recipe's id, task, controller or run is wrong.
    """
    check_recipe(recipe)
    env = get_spec(recipe["env"], **(recipe.get("env_options") or {}))
    rest = {key: value for key, value in recipe.items() if value is not None}
    for key in ("env", "env_options", *_kinds()):
        rest.pop(key, None)
    return {
        **rest,
        "env": env.id,
        "env_options": dict(env.options),
        "fingerprint": env.fingerprint,
        **_kind(recipe).definition(recipe, out),
    }


def make_dataset(
    recipe: Mapping[str, Any], out: Path, progress: Callable[[float], None] = lambda share: None
) -> Dataset:
    """Return a recipe's dataset, recording it if it is not on disk yet.

    Raises:
        TrimtabError: if the recipe cannot be carried out.
    """
    return load_minari(record_recipe(recipe, out, progress))


def record_recipe(
    recipe: Mapping[str, Any], out: Path, progress: Callable[[float], None] = lambda share: None
) -> Path:
    """Return the folder of a recipe's dataset, recording it if it is not on disk yet.

    Raises:
        TrimtabError: if the recipe cannot be carried out.
    """
    folder = recipe_folder(recipe, out)
    place = folder.relative_to(out).parts[1]  # the digest: an id may have any number of parts
    own = out / "datasets" / place
    with locked(own, wait=True):  # runs that start together make it once
        if not folder.exists():
            try:
                episodes = _kind(recipe).episodes(recipe, own, progress)
                dataset = dataset_of(recipe, episodes)
            except HopelessError:
                shutil.rmtree(own / "blocks", ignore_errors=True)
                raise
            validate(dataset, recipe["id"])
            save_minari(dataset, folder)
            logger.info("%s: %s", dataset.id, success_sentence(dataset))
            shutil.rmtree(own / "blocks", ignore_errors=True)
    return folder
