"""What datasets there are: others' that are known here, those in a folder, and what is in one."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import trimtab
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.minari.metadata import METADATA_FILE, read_metadata
from trimtab.datasets.formats.ogbench.rewards import same_scene
from trimtab.datasets.formats.registry import recognise
from trimtab.datasets.recording import attempts_of
from trimtab.errors import TrimtabError

__all__ = [
    "PLACE",
    "External",
    "external_datasets",
    "find",
    "find_external",
    "format_of",
    "is_dataset",
    "list_datasets",
    "load_external",
    "load_file",
    "made_datasets",
    "success_sentence",
    "summary",
]

PLACE = "TRIMTAB_DATASETS"
"""Environment variable with the folder that others' datasets are below; ``data`` without it."""


@dataclass(frozen=True)
class External:
    """A dataset of others, which is used once its file is there; nothing is fetched.

    Attributes:
        id: its id here, ``project/name-v0``.
        env: id of the task that it is used with.
        file: file or folder that it is expected as, below the folder that ``PLACE`` names.
        licence: as its project states it.
        source: where it can be had.
        references: name of the score references of ``env`` that it is published with, or None.
        keys: observation keys in the task's order, where the format has several, or None.
    """

    id: str
    env: str
    file: str
    licence: str
    source: str
    references: str | None = None
    keys: str | None = None

    @property
    def path(self) -> Path:
        """Where it is expected."""
        return Path(os.environ.get(PLACE) or "data") / self.file


def _listed(name: str) -> dict[str, dict[str, Any]]:
    for root in trimtab.__path__:
        file = Path(root) / "datasets" / name
        if file.is_file():
            return dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    return {}


@functools.cache
def made_datasets() -> Mapping[str, Mapping[str, Any]]:
    """Return what ``datasets/made.yaml`` says of each recipe's dataset: hash, amount, size."""
    return _listed("made.yaml")


@functools.cache
def external_datasets() -> Mapping[str, External]:
    """Return what ``datasets/external.yaml`` lists, by id."""
    return {id: External(id, **fields) for id, fields in _listed("external.yaml").items()}


def load_external(id: str, task: str = "") -> Dataset:
    """Return a dataset of others from its file.

    Args:
        id: its id here.
        task: see :func:`find_external`.

    Raises:
        TrimtabError: as :func:`find_external`, or if the file is damaged.
    """
    path, hints = find_external(id, task)
    return load_file(path, **hints)


def find_external(id: str, task: str = "") -> tuple[Path, Hints]:
    """Return where a dataset of others lies, and what is known of it.

    Args:
        id: its id here.
        task: id of the task that it is wanted for: an OGBench file serves all single tasks of its
            scene. Otherwise the dataset is one of the task that the catalogue names.

    Raises:
        TrimtabError: if it is not listed or not on disk (then it says which file is expected).
    """
    known = external_datasets()
    if id not in known:
        raise TrimtabError(f"dataset {id}: it is not in the catalogue{_nearest(id)}")
    entry = known[id]
    if not entry.path.exists():
        raise TrimtabError(
            f"dataset {id} is not on disk, and nothing is fetched: it is expected as {entry.path} "
            f"(get it from {entry.source}, or let {PLACE} name another folder)"
        )
    hints: Hints = {"env": task if same_scene(task, entry.env) else entry.env, "id": id}
    if entry.keys is not None:
        hints["keys"] = entry.keys
    return entry.path, _taken(format_of(entry.path), hints)


def load_file(path: str | Path, **hints: Any) -> Dataset:
    """Return the dataset in ``path``, whatever its format; hints that it cannot take are left out.

    Raises:
        TrimtabError: if no format knows it, or it is damaged.
    """
    format = format_of(path)
    return format.load(path, **_taken(format, hints))


def format_of(path: str | Path) -> Format:
    """Return the format that ``path`` has.

    Raises:
        TrimtabError: if there is nothing (then it names the nearest known dataset), or no format
            knows it.
    """
    if not Path(path).exists():
        raise TrimtabError(f"dataset {path}: there is no such file or folder{_nearest(str(path))}")
    return recognise(path)


def _taken(format: Format, hints: Mapping[str, Any]) -> Hints:
    taken: Hints = {}
    taken.update({key: value for key, value in hints.items() if key in format.hints})  # type: ignore[typeddict-item]
    return taken


def _nearest(id: str) -> str:
    near = difflib.get_close_matches(id, external_datasets(), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else "; check the path"


def is_dataset(folder: str | Path) -> bool:
    """Return whether ``folder`` is laid out as a dataset; nothing in it is read."""
    return (Path(folder) / "data" / METADATA_FILE).is_file()


def find(root: str | Path) -> Iterator[Path]:
    """Yield the folders of all datasets in and below ``root``, sorted; hidden folders are skipped.

    Raises:
        TrimtabError: if ``root`` is not a folder or cannot be read.
    """
    root = Path(root)
    if not root.is_dir():
        raise TrimtabError(f"dataset root {root}: there is no such folder; check the path")
    if is_dataset(root):
        yield root
        return
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        raise TrimtabError(f"dataset root {root}: not readable ({error.strerror})") from error
    for entry in entries:
        # A link may lead back up, and the search would not end.
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield from find(entry)


def list_datasets(root: str | Path) -> list[dict[str, Any]]:
    """Return one JSON-able row for each dataset below ``root``, from its metadata alone.

    Keys: ``id, env, episodes, steps, megabytes, folder, problem``; ``problem`` is None, or says why
    the metadata cannot be read (the keys before ``folder`` are then None).
    """
    rows: list[dict[str, Any]] = []
    for folder in find(root):
        row: dict[str, Any] = dict.fromkeys(("id", "env", "episodes", "steps", "megabytes"))
        problem = None
        try:
            metadata = read_metadata(folder)
            row.update(
                id=metadata["dataset_id"],
                env=metadata.get("trimtab_env"),
                episodes=metadata["total_episodes"],
                steps=metadata["total_steps"],
                megabytes=metadata.get("dataset_size"),
            )
        except TrimtabError as error:
            problem = str(error)
        rows.append({**row, "folder": str(folder), "problem": problem})
    return rows


def summary(dataset: Dataset) -> dict[str, Any]:
    """Return what is in ``dataset`` as JSON values.

    ``return`` and ``length`` hold mean, min and max over episodes; without rewards, that is where
    all are equal (``only_reward``), ``return`` is None. ``success_rate`` is the share of episodes
    with a success, None where success is not recorded; ``attempts`` the episodes that a recipe
    which keeps successes alone has played for them, else None; ``attempt_success_rate`` is the
    share of successes among those. Ranges are per dimension.
    """
    statistics = dataset.statistics()
    successes = [episode.success for episode in dataset.episodes]
    known = [value for value in successes if value is not None]
    attempts = attempts_of(dataset)
    ends = np.array([(e.terminations[-1], e.truncations[-1]) for e in dataset.episodes])
    return {
        "id": dataset.id,
        "env": dataset.env,
        "env_options": dict(dataset.env_options),
        "episodes": len(dataset),
        "steps": dataset.num_steps,
        "obs_dim": dataset.obs_dim,
        "action_dim": dataset.action_dim,
        "control_rate": dataset.control_rate,
        "return": None
        if dataset.only_reward is not None
        else _spread([episode.total_reward for episode in dataset.episodes]),
        "only_reward": dataset.only_reward,
        "length": _spread([len(episode) for episode in dataset.episodes]),
        "success_rate": float(np.mean(known)) if known else None,
        "attempts": attempts,
        "attempt_success_rate": None if attempts is None else len(dataset) / attempts,
        "terminated": int(ends[:, 0].sum()),
        "truncated": int(ends[:, 1].sum()),
        "without_last_observation": sum(not e.last_observed for e in dataset.episodes),
        "obs_min": statistics.obs_min.tolist(),
        "obs_max": statistics.obs_max.tolist(),
        "action_min": statistics.action_min.tolist(),
        "action_max": statistics.action_max.tolist(),
        "action_low": list(dataset.action_low),
        "action_high": list(dataset.action_high),
        "infos": sorted(dataset.episodes[0].infos),
        "fingerprint": dataset.fingerprint,
        "recipe": dict(dataset.recipe),
        "content_hash": dataset.content_hash,
    }


def success_sentence(dataset: Dataset) -> str:
    """Return in words how often what gathered a dataset has succeeded."""
    attempts, total = attempts_of(dataset), len(dataset)
    if attempts is not None:
        return f"success: {total} of {attempts} attempts ({total / attempts:.0%}), which are kept"
    known = [e.success for e in dataset.episodes if e.success is not None]
    if not known:
        return "success: the data does not record it"
    return f"success: {sum(known)} of {len(known)} episodes ({np.mean(known):.0%})"


def _spread(values: list[float] | list[int]) -> dict[str, float]:
    return {
        "mean": float(np.mean(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
    }
