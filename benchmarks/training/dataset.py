"""The dataset that a run learns from: opened or made, and checked against the run's task."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.benchmarks.training.data.offline_data import (
    dataset_of_runs,
    file_hints,
    is_run,
    open_dataset,
)
from trimtab.benchmarks.training.data.recipes import (
    check_recipe,
    is_recipe_section,
    recipe_folder,
    recipe_identity,
    record_recipe,
)
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.datasets.catalog import find_external
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.findings import noted
from trimtab.datasets.formats.ogbench.rewards import REWARDS_OF, numbered
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

__all__ = [
    "check_dataset_fits",
    "check_goes_on",
    "check_no_errors",
    "check_recipe_fits",
    "check_rewards_fit",
    "check_rewards_tell",
    "check_same_task",
    "check_successes",
    "data_identity",
    "data_without_task",
    "expert_of",
    "fitting_dataset",
    "is_there",
    "resolve_dataset",
]

logger = logging.getLogger(__name__)

_MOST_OF_EXPERTS = 100_000
_UNKNOWN = "unknown"  # environment of a dataset whose file does not say it


def fitting_dataset(
    config: RunConfig, env: EnvSpec, progress: Callable[[float], None] = lambda share: None
) -> Dataset:
    """Load the dataset that ``config`` names, and check that it is of the run's task.

    Raises:
        TrimtabError: as :func:`resolve_dataset`, or naming what does not fit.
    """
    if "env" in config["dataset"]:  # known before anything is recorded
        check_recipe_fits(config["dataset"], env, other_task=config["other_task"])
    dataset = resolve_dataset(config, env, progress)
    check_dataset_fits(dataset.id, dataset.env, dataset.obs_dim, dataset.action_dim, env)
    check_rewards_fit(dataset, env)
    check_same_task(
        dataset.id, dataset.env, dataset.env_options, dataset.fingerprint, env,
        allowed=config["other_task"],
    )  # fmt: skip
    if len(dataset.episodes) == 1:
        logger.warning(
            "dataset %s is a single episode: what is learned from it holds where that one went",
            dataset.id,
        )
    return dataset


def data_without_task(
    config: RunConfig, progress: Callable[[float], None] = lambda share: None
) -> Dataset:
    """Load the file or folder that a run without a task learns from.

    Raises:
        TrimtabError: if it is missing, damaged, contradicts itself, or is a run.
    """
    recipe = config["dataset"]
    path = Path(recipe["path"])
    if is_run(path):
        raise TrimtabError(f"dataset={path}: is a run, whose data belongs to its task; add env=…")
    hints = file_hints(path, recipe)
    found = open_dataset(path, Path(config["out"]), config["stream_above"], progress, **hints)
    check_no_errors(found)
    return found


def expert_of(config: RunConfig, env: EnvSpec) -> Dataset | None:
    """Load the data of good episodes that a method is guided by, or None where none is named.

    Args:
        config: settings of the run.
        env: its task, which the data must be of; with ``other_task`` one of the same shapes.

    Raises:
        TrimtabError: if it is missing, damaged, of another task, or large.
    """
    path = config.settings.get("expert")  # runs of an earlier version lack it
    if path is None:
        return None
    given = Path(path).expanduser()
    if not given.exists():
        raise TrimtabError(
            f"expert={path}: does not exist; give a dataset's file or folder, and no name of a "
            "recipe: trimtab dataset make records one"
        )
    dataset = open_dataset(given, Path(config["out"]), None, task=env.id)
    check_no_errors(dataset)
    if dataset.num_steps > _MOST_OF_EXPERTS:
        raise TrimtabError(
            f"expert={path}: has {dataset.num_steps:,} steps, and a method is guided by a few "
            f"hundred; give at most {_MOST_OF_EXPERTS:,}"
        )
    called = f"{dataset.id} (expert={path})"
    check_dataset_fits(called, dataset.env, dataset.obs_dim, dataset.action_dim, env)
    check_same_task(
        called, dataset.env, dataset.env_options, dataset.fingerprint, env,
        allowed=config["other_task"],
    )  # fmt: skip
    return dataset


def is_there(config: RunConfig, env: EnvSpec) -> bool:
    """Return whether the dataset that ``config`` names need not be recorded first.

    Raises:
        TrimtabError: if it is to be recorded and would not be of the run's task.
    """
    recipe = config["dataset"]
    if not is_recipe_section(recipe):
        return True
    check_recipe_fits(recipe, env, other_task=config["other_task"])
    return recipe_folder(recipe, Path(config["out"])).exists()


def resolve_dataset(
    config: RunConfig, env: EnvSpec, progress: Callable[[float], None] = lambda share: None
) -> Dataset:
    """Load the dataset that ``config`` names; a recipe is made first where it is not on disk.

    Args:
        config: settings of the run.
        env: its task, which runs whose replay buffers are the dataset must share.
        progress: called with the share that is done.

    Raises:
        TrimtabError: if the file is missing, damaged or wrong or contradicts itself, or the recipe
            fails.
    """
    dataset = _resolved(config, env, progress)
    check_no_errors(dataset)
    return dataset


def check_no_errors(dataset: Dataset) -> None:
    """Check that the reader of a dataset's file found no error in it.

    Raises:
        TrimtabError: naming the first one.
    """
    for finding in noted(dataset.recipe):
        if finding.level == "error":
            raise TrimtabError(f"dataset {dataset.id}: {finding.where}: {finding.message}")


def _resolved(config: RunConfig, env: EnvSpec, progress: Callable[[float], None]) -> Dataset:
    recipe, out = config["dataset"], Path(config["out"])
    if "runs" in recipe:
        return dataset_of_runs(recipe["runs"], env)
    if "name" in recipe:
        path, hints = find_external(recipe["name"], env.id)
        return open_dataset(path, out, config["stream_above"], progress, **hints)
    if "path" in recipe and is_run(Path(recipe["path"])):
        return dataset_of_runs([recipe["path"]], env)
    if "path" not in recipe:
        folder = record_recipe(recipe, out, progress)
        return open_dataset(folder, out, config["stream_above"], progress)
    hints = file_hints(Path(recipe["path"]), recipe)
    hints["task"] = env.id
    return open_dataset(Path(recipe["path"]), out, config["stream_above"], progress, **hints)


def data_identity(config: RunConfig, dataset: Dataset | None) -> dict[str, str] | None:
    """Return what a run's data is known by, or None for a run without data.

    A recipe is known by what defines it, so that the same recipe on another kind of processor,
    where last bits differ, is the same data, and before it is recorded. Everything else is known by
    its content, and by the control rate where a setting says it.
    """
    recipe = config["dataset"]
    if recipe is not None and is_recipe_section(recipe):
        return {"recipe": recipe_identity(recipe, Path(config["out"]))}
    if dataset is None:
        return None
    stated = (recipe or {}).get("control_rate")
    more = {} if stated is None else {"control_rate": f"{float(stated):g}"}
    return {"content": dataset.content_hash, **more}


def check_recipe_fits(recipe: Mapping[str, Any], env: EnvSpec, *, other_task: bool) -> None:
    """Check that a recipe's dataset would be of the task, before it is made.

    Args:
        recipe: the dataset's.
        env: task of the run.
        other_task: whether another task of the same shapes is allowed.

    Raises:
        TrimtabError: naming what differs, or what is wrong with the recipe's own task.
    """
    check_recipe(recipe)
    made_in = get_spec(recipe["env"], **(recipe.get("env_options") or {}))
    check_dataset_fits(recipe["id"], made_in.id, made_in.obs_dim, made_in.action_dim, env)
    if not other_task:  # the warning comes once, with the dataset
        check_same_task(
            recipe["id"], made_in.id, made_in.options, made_in.fingerprint, env, allowed=False
        )


def check_dataset_fits(id: str, made_in: str, obs_dim: int, action_dim: int, env: EnvSpec) -> None:
    """Check that a dataset's shapes are those of the task.

    Raises:
        TrimtabError: naming what differs.
    """
    ours, theirs = (env.obs_dim, env.action_dim), (obs_dim, action_dim)
    if ours != theirs:
        raise TrimtabError(
            f"dataset {id} does not fit {env.id}: observation and action lengths "
            f"{theirs} against {ours}; it was made in {made_in}"
        )


def check_rewards_fit(dataset: Dataset, env: EnvSpec) -> None:
    """Check that rewards which were told from states for one task are used for that task.

    Raises:
        TrimtabError: naming both tasks.
    """
    task = dataset.recipe.get(REWARDS_OF)
    if task is not None and task != numbered(env.id):
        raise TrimtabError(
            f"dataset {dataset.id} has the rewards of {task}, not of {env.id}; convert the file "
            f"that it comes from with env={env.id}"
        )


def check_rewards_tell(dataset: Dataset, method: str) -> None:
    """Check that some decisions of a dataset are better than others.

    Where all rewards are equal they can still tell how long an episode went on, unless they are 0
    or no episode is terminated.

    Args:
        dataset: the data.
        method: name of the method that learns from it.

    Raises:
        TrimtabError: if they are not.
    """
    only = dataset.only_reward
    if only is None or only and any(episode.terminations[-1] for episode in dataset.episodes):
        return
    raise TrimtabError(
        f"dataset {dataset.id}: every reward is {only:g}, which tells {method} nothing; choose "
        "data with rewards, or clone it with algorithm=bc"
    )


def check_successes(dataset: Dataset, method: str, least: float) -> None:
    """Check that a dataset has decisions that are successes, and others.

    Args:
        dataset: the data.
        method: name of the method that learns to tell them apart.
        least: least reward of a success.

    Raises:
        TrimtabError: if one of the two is not there.
    """
    kinds: set[bool] = set()
    for episode in dataset.episodes:
        kinds |= set(np.unique(episode.rewards >= least).tolist())
        if len(kinds) == 2:
            return
    which = "every step" if True in kinds else "no step"
    raise TrimtabError(
        f"dataset {dataset.id}: {which} of it has a reward of at least {least:g}, so {method} "
        "cannot learn what a success is; give data with env_options.reward=sparse in which some "
        "episodes succeed, or set algorithm.success_reward"
    )


def check_goes_on(dataset: Dataset, method: str, act_steps: int) -> None:
    """Check that of some decision of a dataset it is known what was done next.

    Args:
        dataset: the data.
        method: name of the method that learns from next actions.
        act_steps: actions of a decision.

    Raises:
        TrimtabError: if each episode is cut off before a second decision.
    """
    if all(len(one) <= act_steps and not one.terminations.any() for one in dataset.episodes):
        raise TrimtabError(
            f"dataset {dataset.id}: each of its {len(dataset.episodes)} episodes is cut off within "
            f"its first decision ({act_steps} steps), so no next action is known, which {method} "
            "learns from; give longer episodes, or fewer act_steps"
        )


def check_same_task(
    id: str,
    made_in: str,
    options: Mapping[str, Any],
    fingerprint: str | None,
    env: EnvSpec,
    *,
    allowed: bool,
) -> None:
    """Check that a dataset is of the task itself, as far as it says what it is of.

    ``other_task`` is in no run's identity: it changes no number, and the identity already has the
    data, with its task.

    Args:
        id: the dataset's.
        made_in: id of its task; a stranger's file may have the name without a family.
        options: its task's.
        fingerprint: of its physics, or None where it was not recorded here.
        env: task of the run.
        allowed: whether another task is only warned of (``other_task=true``).

    Raises:
        TrimtabError: naming both tasks.
    """
    # A file of others has Gymnasium's id, without the family or the package that registers it.
    name = env.id.rpartition(":")[2] if ":" in env.id else env.id.partition("/")[2]
    if fingerprint is None:
        same = made_in in {_UNKNOWN, env.id, name} or name.startswith(f"{made_in}-")
        theirs, ours = made_in, env.id
    else:
        same = fingerprint == env.fingerprint
        theirs = f"{made_in} with env_options {dict(options)} and physics {fingerprint}"
        ours = f"{env.id} with {dict(env.options)} and {env.fingerprint}"
    if same:
        if made_in == _UNKNOWN:
            logger.info("dataset %s does not name its task; it is taken as one of %s", id, env.id)
        return
    differs = (
        f"dataset {id} is of {theirs}, this run is in {ours}: its rewards and ends may mean "
        "something else"
    )
    if not allowed:
        remedy = _options_of(options, env) if made_in == env.id else ""
        raise TrimtabError(
            f"{differs}; {remedy or 'choose a dataset of this task'}, or add other_task=true"
        )
    logger.warning("%s", differs)


def _options_of(options: Mapping[str, Any], env: EnvSpec) -> str:
    """Return the words that make a run's task the one that a dataset is of, as far as they do."""
    words = [
        shlex.quote(f"env_options.{name}={value if isinstance(value, str) else json.dumps(value)}")
        for name, value in options.items()
        if dict(env.options).get(name) != value
    ]
    more = [f"env_options.{name}" for name in dict(env.options) if name not in options]
    remedies = [f"give the run {' '.join(words)}"] if words else []
    return " and ".join([*remedies, *([f"leave out {' '.join(more)}"] if more else [])])
