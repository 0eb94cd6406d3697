"""The dataset that a run learns from: opened, or made where a recipe makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trimtab.benchmarks.training.data.offline_data import (
    dataset_of_runs,
    file_hints,
    open_dataset,
)
from trimtab.benchmarks.training.data.recipes import (
    is_recipe_section,
    recipe_identity,
    record_recipe,
)
from trimtab.benchmarks.training.folder import is_run
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.datasets.catalog import find_external
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.findings import noted
from trimtab.envs.core.spec import EnvSpec
from trimtab.errors import TrimtabError

__all__ = ["check_no_errors", "data_identity", "load_dataset", "load_expert"]

_MOST_OF_EXPERTS = 100_000


def load_dataset(
    config: RunConfig,
    env: EnvSpec | None,
    progress: Callable[[float], None] = lambda share: None,
) -> Dataset:
    """Load the dataset that ``config`` names; a recipe's is recorded where it is not on disk.

    Args:
        config: settings of the run.
        env: its task, which runs whose replay buffers are the dataset must share; None for a run
            without a task, whose dataset is a file or folder.
        progress: called with the share that is done.

    Raises:
        TrimtabError: if it is missing, damaged or wrong or contradicts itself, or the recipe fails.
    """
    dataset = _loaded(config, env, progress)
    check_no_errors(dataset)
    return dataset


def _loaded(config: RunConfig, env: EnvSpec | None, progress: Callable[[float], None]) -> Dataset:
    section, out, above = config["dataset"], Path(config["out"]), config["stream_above"]
    if env is not None and "runs" in section:
        return dataset_of_runs(section["runs"], env)
    if env is not None and "name" in section:
        path, hints = find_external(section["name"], env.id)
        return open_dataset(path, out, above, progress, **hints)
    if "path" not in section:
        return open_dataset(record_recipe(section, out, progress), out, above, progress)
    path = Path(section["path"])
    if is_run(path):
        if env is None:
            raise TrimtabError(
                f"dataset={path}: is a run, whose data belongs to its task; add env=…"
            )
        return dataset_of_runs([section["path"]], env)
    hints = file_hints(section)
    if env is not None:
        hints["task"] = env.id
    return open_dataset(path, out, above, progress, **hints)


def check_no_errors(dataset: Dataset) -> None:
    """Check that the reader of a dataset's file found no error in it.

    Raises:
        TrimtabError: naming the first one.
    """
    for finding in noted(dataset.recipe):
        if finding.level == "error":
            raise TrimtabError(f"dataset {dataset.id}: {finding.where}: {finding.message}")


def load_expert(config: RunConfig, env: EnvSpec) -> Dataset | None:
    """Load the data of good episodes that a method is guided by, or None where none is named.

    Args:
        config: settings of the run.
        env: its task.

    Raises:
        TrimtabError: if it is missing, damaged or large.
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
    return dataset


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
