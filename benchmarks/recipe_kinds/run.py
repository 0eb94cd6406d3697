"""A recipe whose data is what one of our methods gathered: the replay buffer of a whole run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.data.recipes import RecipeKind
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.words import quoted
from trimtab.benchmarks.training.train import train
from trimtab.datasets.episodes import Episode
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.errors import TrimtabError

__all__ = ["KIND", "identity_of", "record_replay", "run_of"]

logger = logging.getLogger(__name__)

_OWN = ("env", "env_options", "seed", "out")
"""Settings that a recipe's run takes from the recipe."""


def run_of(recipe: Mapping[str, Any], runs: Path) -> RunConfig:
    """Return the settings of a recipe's run.

    Args:
        recipe: ``run`` holds words of ``trimtab train``; ``env``, ``env_options`` and ``seed`` are
            the run's.
        runs: folder of the run.

    Raises:
        TrimtabError: if ``run`` is not a list of words, or one of them is wrong.
    """
    words = recipe["run"]
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise TrimtabError(
            f"dataset.run={words}: must be a list of words, such as "
            '\'dataset.run=["algorithm=sac","online_steps=30000"]\''
        )
    for word in words:
        if word.lstrip("+~").split("=")[0].split(".")[0] in _OWN:
            raise TrimtabError(
                f"dataset.run: {word} is not the run's to say; set it as dataset.* instead"
            )
    options = (recipe.get("env_options") or {}).items()
    own = [f"env={recipe['env']}", f"seed={recipe['seed']}", f"out={quoted(str(runs))}"]
    return compose_run([*words, *own, *(f"env_options.{name}={value}" for name, value in options)])


def identity_of(recipe: Mapping[str, Any], runs: Path) -> str:
    """Return the hash of all settings of a recipe's run, also those that it leaves to the method.

    Raises:
        TrimtabError: as :func:`run_of`, and if the run does not fit together.
    """
    return checked_plan(run_of(recipe, runs)).config_hash


def record_replay(
    recipe: Mapping[str, Any], runs: Path, progress: Callable[[float], None] = lambda share: None
) -> list[Episode]:
    """Carry out the recipe's run, or go on with it, and return what its replay buffer holds.

    Args:
        recipe: see :func:`run_of`.
        runs: folder of the run.
        progress: called with the share that is done.

    Raises:
        TrimtabError: if the run fails or keeps no replay buffer of single steps.
    """
    config = run_of(recipe, runs)
    plan = checked_plan(config)
    if not config["online_steps"] or plan.algorithm.pace.rollout_steps or plan.act_steps != 1:
        raise TrimtabError(
            f"recipe {recipe['id']}: a run of {config.algorithm} with these settings keeps no "
            "replay buffer of single steps; take an off-policy method, online_steps and act_steps=1"
        )
    result = train(config, lambda share, text: progress(share))
    state: Any = load_checkpoint(result.folder / "checkpoint")
    if state is None:
        raise TrimtabError(
            f"recipe {recipe['id']}: {result.folder} has lost its checkpoint; remove that folder"
        )
    return ReplayBuffer.from_state(state["experience"]["buffer"]).episodes()


def _check(recipe: Mapping[str, Any]) -> None:
    """Leave it to the definition: a run is checked when it is composed, which takes its time."""


def _definition(recipe: Mapping[str, Any], out: Path) -> dict[str, Any]:
    return {"run": identity_of(recipe, out)}


def _episodes(
    recipe: Mapping[str, Any], own: Path, progress: Callable[[float], None]
) -> list[Episode]:
    logger.info("gathering %s by a run of its own below %s", recipe["id"], own)
    return record_replay(recipe, own / "runs", progress)


KIND = RecipeKind("run", _check, _definition, _episodes)
