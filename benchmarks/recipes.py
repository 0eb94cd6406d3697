"""Datasets that are made: recipes, which say who acts, where, for how long, and with what seed.

A recipe is a file of ``conf/dataset/`` with one of ``controller`` (a scripted behaviour or a
trained policy acts), ``run`` (a run's replay buffer) and ``of`` (the episodes of other recipes).
"""

from __future__ import annotations

import inspect
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.config import check_keywords, class_of, load_group
from trimtab.benchmarks.recording import dataset_of, record_episodes, wanted_of
from trimtab.benchmarks.rundir import locked
from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats import minari
from trimtab.datasets.recipes.record import HopelessError
from trimtab.envs.registry import checked_names, get_spec
from trimtab.files import sha256_file, sha256_json
from trimtab.types import TrimtabError

__all__ = [
    "check_recipe",
    "is_recipe",
    "make_dataset",
    "parts_of",
    "recipe_digest",
    "recipe_folder",
    "record_recipe",
]

logger = logging.getLogger(__name__)


def is_recipe(name: str) -> bool:
    """Return whether a file of ``conf/dataset/`` says how data is made."""
    return bool({"controller", "run", "of"} & set(load_group("dataset", name)))


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
    """Return where a recipe's dataset lies, ``<out>/datasets/<digest>/<id>``.

    Its settings, its task's physics and the source of its controller's module are in the digest,
    and where it is a run's replay buffer all settings of the run, also those that the recipe leaves
    to the method.

    Raises:
        TrimtabError: if the recipe's id, task, controller or run is wrong.
    """
    check_recipe(recipe)
    env = get_spec(recipe["env"], **(recipe.get("env_options") or {}))
    identity: dict[str, Any] = {"recipe": dict(recipe), "fingerprint": env.fingerprint}
    if "of" in recipe:
        identity["of"] = [recipe_folder(part, Path()).parts[1] for part in parts_of(recipe)]
    if "controller" in recipe:
        settings = dict(recipe["controller"])
        acts = class_of(settings.pop("_target_"), "dataset.controller._target_")
        of_controller = getattr(acts, "identity", None)
        if of_controller is not None:  # such as the weights of a policy
            identity["controller"] = of_controller(settings)
        identity["code"] = _code_of(acts)
    if "run" in recipe:
        from trimtab.benchmarks.replay_recipe import identity_of  # a run may need a dataset

        identity["run"] = identity_of(recipe, out)
    return out / "datasets" / sha256_json(identity)[:10] / str(recipe["id"])


def _code_of(acts: type[Any]) -> str | None:
    """Return the SHA-256 of the file that a controller is written in; None where there is none."""
    try:
        file = inspect.getsourcefile(acts)
    except TypeError:
        return None
    return sha256_file(Path(file)) if file is not None and Path(file).is_file() else None


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
