"""A recipe whose data a controller gathers: a scripted behaviour, or a trained policy.

A controller of this package is known by the class attributes ``name`` and ``revision``, so that a
file which is moved or formatted anew leaves every dataset its name. One of a user's own is known by
the bytes of the file that it is written in, as nobody counts its revisions.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.data.recipes import RecipeKind
from trimtab.benchmarks.training.data.recording import RECORDER_REVISION, record_episodes, wanted_of
from trimtab.benchmarks.training.settings.constructors import (
    check_keywords,
    class_of,
    is_ours,
    is_outside,
    keywords,
    source_of,
)
from trimtab.datasets.episodes import Episode
from trimtab.errors import TrimtabError

__all__ = ["KIND", "controller_identity"]

logger = logging.getLogger(__name__)


def controller_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that decides how a controller acts, as JSON values.

    Args:
        settings: a recipe's ``controller``: ``_target_`` and the keywords of its constructor.

    Returns:
        ``acts``: for the class and each of its parents, ``{"name", "revision"}`` where it is one
        of this package's controllers, ``{"class", "source"}`` with the SHA-256 of its file where it
        is a user's. ``settings``: the keywords, those of this package with their defaults
        filled in, without what the class's own ``placeless`` takes away, such as where a policy
        lies. ``weights``: what the class's own ``identity`` says, such as hashes of policies.

    Raises:
        TrimtabError: if ``_target_`` names no class.
    """
    keys = dict(settings)
    target = keys.pop("_target_")
    acts = class_of(target, "dataset.controller._target_")
    identity: dict[str, Any] = {"acts": [known for kind in acts.__mro__ if (known := _known(kind))]}
    if is_ours(acts):
        defaults = {
            name: parameter.default
            for name, parameter in keywords(target).items()
            if parameter.default is not inspect.Parameter.empty
        }
        keys = {**defaults, **keys}
        for name, default in defaults.items():  # 1 and 1.0 are one value of such a keyword
            if isinstance(default, float) and type(keys[name]) is int:
                keys[name] = float(keys[name])
    of_controller = getattr(acts, "identity", None)
    if of_controller is not None:
        identity["weights"] = of_controller(keys)
    placeless = getattr(acts, "placeless", dict)
    identity["settings"] = placeless(keys)
    return identity


def _known(kind: type[Any]) -> dict[str, Any] | None:
    """Return what one class is known by; None for Python's own, and for unnamed parents of ours.

    A parent of ours without a name is a part of its children: their revisions count its changes.
    """
    if is_ours(kind):
        own = vars(kind)
        return {"name": own["name"], "revision": own["revision"]} if "name" in own else None
    if not is_outside(kind):
        return None
    return {"class": kind.__qualname__, "source": source_of(kind)}


def _check(recipe: Mapping[str, Any]) -> None:
    wanted_of(recipe)
    settings = recipe["controller"]
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


def _definition(recipe: Mapping[str, Any], out: Path) -> dict[str, Any]:
    found = {
        "only_successful": recipe.get("only_successful", False),
        "controller": controller_identity(recipe["controller"]),
    }
    # 1 is what published digests were computed with.
    return found if RECORDER_REVISION == 1 else {**found, "recorder": RECORDER_REVISION}


def _episodes(
    recipe: Mapping[str, Any], own: Path, progress: Callable[[float], None]
) -> list[Episode]:
    logger.info("recording %s", recipe["id"])
    return record_episodes(recipe, own / "blocks", progress)


KIND = RecipeKind("controller", _check, _definition, _episodes)
