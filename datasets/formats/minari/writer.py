"""Datasets written as Minari's folders, with what Minari has no key for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from trimtab.datasets.episodes import Dataset, validate
from trimtab.datasets.formats.minari.metadata import (
    DATA_FILE,
    DIGEST,
    METADATA_FILE,
    PREFIX,
    algorithm_name,
    env_spec,
)
from trimtab.datasets.formats.own import ends_of
from trimtab.datasets.io.hdf5_writer import room_for, write_hdf5
from trimtab.errors import TrimtabError
from trimtab.files import (
    MOST_JSON,
    atomic_directory,
    read_bytes,
    sha256_file,
    sha256_json,
)

__all__ = ["FORMAT_VERSION", "check_id", "save"]

FORMAT_VERSION = "0.5.3"  # of Minari, whose reader refuses versions that it does not know
_ID = re.compile(r"(?:[-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v\d{1,9}", re.ASCII)
_CHUNK_BYTES = 1 << 20


def check_id(id: str) -> None:
    """Check a dataset's id.

    Raises:
        TrimtabError: if it is not of the form ``namespace/name-v0``.
    """
    if not (isinstance(id, str) and _ID.fullmatch(id)):
        raise TrimtabError(
            f"dataset id '{id}' is not of the form namespace/name-v0 (letters, "
            "digits, '-' and '_'; the namespace has two or more of them); rename it"
        )


def save(dataset: Dataset, folder: str | Path) -> None:
    """Write ``dataset`` as ``folder``, whole or not at all; the same dataset gives the same bytes.

    A dataset of ours already in ``folder`` is replaced.

    Raises:
        TrimtabError: if the dataset is not valid, its id is not of the form ``namespace/name-v0``,
            ``folder`` holds something else, or the disk refuses.
    """
    folder = Path(folder)
    check_id(dataset.id)
    validate(dataset, f"dataset {dataset.id}")
    _check_replaceable(folder)
    own = _plain(
        {
            "trimtab_env": dataset.env,
            "trimtab_env_options": dict(dataset.env_options),
            "trimtab_control_rate": dataset.control_rate,
            "trimtab_recipe": dict(dataset.recipe),
            "trimtab_fingerprint": dataset.fingerprint,
            "trimtab_content_hash": dataset.content_hash,
            **{PREFIX + key: value for key, value in ends_of(dataset).items()},
        },
        dataset.id,
    )
    with atomic_directory(folder) as beside:
        data = beside / "data"
        data.mkdir()
        room = room_for(a for e in dataset.episodes for a in e.arrays().values())
        write_hdf5(data / DATA_FILE, partial(_write_episodes, dataset), room, track_order=True)
        own["trimtab_file_sha256"] = sha256_file(data / DATA_FILE)
        own[DIGEST] = sha256_json(own)
        unbounded = [float("inf")] * dataset.obs_dim
        metadata = {
            "dataset_id": dataset.id,
            "total_episodes": len(dataset),
            "total_steps": dataset.num_steps,
            "data_format": "hdf5",
            "observation_space": _box([-x for x in unbounded], unbounded),
            "action_space": _box(list(dataset.action_low), list(dataset.action_high)),
            "minari_version": FORMAT_VERSION,
            "dataset_size": round((data / DATA_FILE).stat().st_size / 1e6, 1),
            "author": ["Trimtab"],
            "author_email": [],
            "algorithm_name": algorithm_name(dataset.recipe),
            **env_spec(dataset),
            "description": f"{len(dataset)} episodes of {dataset.env}",
            "requirements": [],
        }
        _write(data / METADATA_FILE, (json.dumps({**metadata, **own}, indent=2) + "\n").encode())


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace anything that is not a dataset of ours: it would be deleted."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TrimtabError(f"cannot write {folder}: a file is in its place; choose another folder")
    metadata = folder / "data" / METADATA_FILE
    if metadata.is_file() and PREFIX.encode() not in read_bytes(metadata, MOST_JSON):
        raise TrimtabError(
            f"cannot write {folder}: a dataset that Trimtab did not write; choose another folder"
        )
    if {entry.name for entry in folder.iterdir()} - {"data"} or (
        (folder / "data").exists() and not (folder / "data" / METADATA_FILE).is_file()
    ):
        raise TrimtabError(
            f"cannot write {folder}: it holds something other than a dataset; choose another folder"
        )


def _plain(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TrimtabError(
            f"dataset {name}: its recipe or options are not JSON ({error}); use plain values"
        ) from error
    return plain


def _box(low: list[float], high: list[float]) -> str:
    space = {"type": "Box", "dtype": "float32", "shape": [len(low)], "low": low, "high": high}
    return json.dumps(space)


def _write(path: Path, content: bytes) -> None:
    """Write to the disk itself, so that the folder is whole before it is renamed."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write_episodes(dataset: Dataset, file: h5py.File) -> None:
    for index, episode in enumerate(dataset.episodes):
        group = file.create_group(f"episode_{index}")
        rewards = episode.rewards.astype(np.float64)
        group.attrs["id"] = index
        group.attrs["total_steps"] = len(episode)
        if episode.seed is not None:
            group.attrs["seed"] = episode.seed
        for statistic in ("sum", "mean", "std", "max", "min"):
            group.attrs[f"rewards_{statistic}"] = float(getattr(rewards, statistic)())
        group.create_group("infos")  # Minari prints an episode only if it has infos
        for name, array in episode.arrays().items():
            if not array.size:  # HDF5 has no chunks of nothing
                group.create_dataset(name, data=array)
                continue
            rows = max(1, min(len(array), _CHUNK_BYTES // (array.nbytes // len(array))))
            group.create_dataset(
                name,
                data=array,
                chunks=(rows, *array.shape[1:]),
                maxshape=(None, *array.shape[1:]),  # so that Minari can append
            )
