"""Datasets that are made: recipes, which say who acts, where, for how long, and with what seed.

A recipe is a file of ``conf/dataset/`` with one of ``controller`` (a scripted behaviour or a
trained policy acts), ``run`` (a run's replay buffer) and ``of`` (the episodes of other recipes).
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.config import check_keywords, class_of, load_group
from trimtab.benchmarks.controllers import controller_identity
from trimtab.benchmarks.recording import RECORDER_REVISION, dataset_of, record_episodes, wanted_of
from trimtab.benchmarks.rundir import locked
from trimtab.datasets.catalog import made_datasets
from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats import minari
from trimtab.datasets.recipes.record import HopelessError
from trimtab.envs.registry import checked_names, get_spec
from trimtab.files import sha256_json
from trimtab.types import TrimtabError

__all__ = [
    "check_recipe",
    "definition",
    "definition_digest",
    "is_recipe",
    "is_recipe_section",
    "make_dataset",
    "parts_of",
    "recipe_digest",
    "recipe_folder",
    "recipe_identity",
    "record_recipe",
]

logger = logging.getLogger(__name__)


def is_recipe(name: str) -> bool:
    """Return whether a file of ``conf/dataset/`` says how data is made."""
    return is_recipe_section(load_group("dataset", name))


def is_recipe_section(section: Mapping[str, Any] | None) -> bool:
    """Return whether a run's setting ``dataset`` says how data is made, and not where it lies."""
    return bool({"controller", "run", "of"} & set(section or {}))


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
    minari.check_id(recipe["id"])
    options = recipe.get("env_options")
    if not isinstance(options, Mapping | None):
        raise TrimtabError(
            f"dataset.env_options={options}: must be a mapping, such as "
            "dataset.env_options.reward=sparse"
        )
    checked_names(options or {})
    if not {"controller", "run", "of"} & set(recipe):
        raise TrimtabError(f"recipe {recipe['id']}: it has no dataset.controller, which acts")
    if "controller" in recipe:
        wanted_of(recipe)
        _check_controller(recipe["controller"])


def _check_controller(settings: Any) -> None:
    check_keywords("dataset.controller", settings)
    target = settings["_target_"]
    if not callable(getattr(class_of(target, "dataset.controller._target_"), "act", None)):
        raise TrimtabError(f"dataset.controller._target_={target}: is no controller, it has no act")
    for key, value in settings.items():
        if not _finite(value):
            raise TrimtabError(f"dataset.controller.{key}={value}: must be finite")


def _finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


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

    Its id, its task with the options that differ from their defaults, and the physics; then one of
    these: how much is recorded with which seed by which controller (registered name, revision,
    settings, weights of its policies); all settings of the run whose replay buffer it is, also
    those that the recipe leaves to the method; the identities of the recipes that it consists of.

    Raises:
        TrimtabError: if the recipe's id, task, controller or run is wrong.
    """
    check_recipe(recipe)
    env = get_spec(recipe["env"], **(recipe.get("env_options") or {}))
    rest = {key: value for key, value in recipe.items() if value is not None}
    for key in ("env", "env_options", "controller", "run", "of"):
        rest.pop(key, None)
    found: dict[str, Any] = {
        **rest,
        "env": env.id,
        "env_options": dict(env.options),
        "fingerprint": env.fingerprint,
    }
    if "controller" in recipe:
        found["only_successful"] = recipe.get("only_successful", False)
        found["controller"] = controller_identity(recipe["controller"])
        if RECORDER_REVISION > 1:  # 1 is what published digests were computed with
            found["recorder"] = RECORDER_REVISION
    if "run" in recipe:
        from trimtab.benchmarks.replay_recipe import identity_of  # a run may need a dataset

        found["run"] = identity_of(recipe, out)
    if "of" in recipe:
        found["of"] = [recipe_identity(part, out) for part in parts_of(recipe)]
    return found


def make_dataset(
    recipe: Mapping[str, Any], out: Path, progress: Callable[[float], None] = lambda share: None
) -> Dataset:
    """Return a recipe's dataset, recording it if it is not on disk yet.

    Raises:
        TrimtabError: if the recipe cannot be carried out.
    """
    return minari.load(record_recipe(recipe, out, progress))


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
                dataset = dataset_of(recipe, _episodes(recipe, own, progress))
            except HopelessError:
                shutil.rmtree(own / "blocks", ignore_errors=True)
                raise
            validate(dataset, recipe["id"])
            minari.save(dataset, folder)
            shutil.rmtree(own / "blocks", ignore_errors=True)
    return folder


def parts_of(recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the recipes whose episodes, one after another, a recipe consists of.

    Raises:
        TrimtabError: if one of them is unknown, or another task's.
    """
    names = recipe["of"]
    if not (isinstance(names, list) and names):
        raise TrimtabError(f"dataset.of={names}: must be a list of recipes' names")
    parts = [load_group("dataset", str(name)) for name in names]
    for name, part in zip(names, parts, strict=True):
        for key in ("env", "env_options"):
            if part.get(key) != recipe.get(key):
                raise TrimtabError(
                    f"recipe {recipe['id']}: {name} has {key} {part.get(key)}, "
                    f"not {recipe.get(key)}"
                )
    return parts


def _episodes(
    recipe: Mapping[str, Any], own: Path, progress: Callable[[float], None]
) -> list[Episode]:
    """Let the recipe's controller act, or carry out its run, below the folder ``own``.

    A recipe of others has their episodes; they are datasets of their own, beside this one.
    """
    if "of" in recipe:
        parts = parts_of(recipe)

        def share_of(part: int) -> Callable[[float], None]:
            return lambda share: progress((part + share) / len(parts))

        episodes: list[Episode] = []
        for number, part in enumerate(parts):
            episodes += make_dataset(part, own.parent.parent, share_of(number)).episodes
            share_of(number)(1.0)  # also where it was there before
        return episodes
    if "run" in recipe:
        from trimtab.benchmarks.replay_recipe import record_replay

        logger.info("gathering %s by a run of its own below %s", recipe["id"], own)
        return record_replay(recipe, own / "runs", progress)
    logger.info("recording %s", recipe["id"])
    return record_episodes(recipe, own / "blocks", progress)
