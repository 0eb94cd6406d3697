"""What datasets there are in a folder, and what is in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats import minari
from trimtab.types import TrimtabError

__all__ = ["find", "is_dataset", "list_datasets", "summary"]


def is_dataset(folder: str | Path) -> bool:
    """Return whether ``folder`` is laid out as a dataset; nothing in it is read."""
    return (Path(folder) / "data" / minari.METADATA_FILE).is_file()


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
            metadata = minari.read_metadata(folder)
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

    ``return`` and ``length`` hold mean, min and max over episodes; ``success_rate`` is the share of
    episodes with a success, None where success is not recorded; ranges are per dimension.
    """
    statistics = dataset.statistics()
    successes = [episode.success for episode in dataset.episodes]
    known = [value for value in successes if value is not None]
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
        "return": _spread([episode.total_reward for episode in dataset.episodes]),
        "length": _spread([len(episode) for episode in dataset.episodes]),
        "success_rate": float(np.mean(known)) if known else None,
        "terminated": int(ends[:, 0].sum()),
        "truncated": int(ends[:, 1].sum()),
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


def _spread(values: list[float] | list[int]) -> dict[str, float]:
    return {
        "mean": float(np.mean(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
    }
