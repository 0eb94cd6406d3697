"""Datasets in the layout of the Minari package: ``<folder>/data/{metadata.json, main_data.hdf5}``.

Written and read with h5py alone; the ``minari`` package reads what is written here (with
``folder = $MINARI_DATASETS_PATH/<dataset id>``), and its Box-spaced datasets are read here. What
Minari has no key for is kept under extra keys of ``metadata.json`` that begin with ``trimtab_``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode, EpisodesOnAccess, validate
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, loads
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.minari_metadata import (
    DIGEST,
    METADATA_FILE,
    PREFIX,
    action_limits,
    algorithm_name,
    env_of_spec,
    env_spec,
    last_observed,
    observation_keys,
    read_metadata,
)
from trimtab.datasets.formats.own import ends_of
from trimtab.datasets.io.hdf5 import (
    REOPEN,
    child,
    children,
    file_image,
    opened,
    read_array,
    read_file,
)
from trimtab.datasets.io.sandbox import Read, Received
from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, sha256_file, sha256_json

__all__ = ["FORMAT", "METADATA_FILE", "load", "read_metadata", "save"]

DATA_FILE = "main_data.hdf5"
FORMAT_VERSION = "0.5.3"  # of Minari, whose reader refuses versions that it does not know
_ID = re.compile(r"(?:[-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v\d{1,9}", re.ASCII)
_CHUNK_BYTES = 1 << 20
_ADVICE = "make the dataset again or fetch a fresh copy"


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
        image = file_image(lambda file: _write_episodes(file, dataset), track_order=True)
        _write(data / DATA_FILE, image)
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


def _open(path: str | Path, **hints: Unpack[Hints]) -> Contents:
    """Read the dataset in the folder ``path``, of this suite or of the ``minari`` package.

    A file of ours is compared with its SHA-256 before it is opened, and its content hash
    afterwards; a stranger's is opened in a process apart.

    A Dict observation is concatenated in the order of its space's keys, as Gymnasium flattens it;
    the hint ``keys`` names some of them in another order (``observation,desired_goal``).
    Infos of T+1 rows lose their first (the reset's).

    Raises:
        TrimtabError: if anything is missing, truncated, changed, of a wrong type or shape, NaN or
            infinite, or there are no episodes; one line with the file, the episode and the key.
    """
    metadata = read_metadata(path)
    file_path = data_file(path)
    limits = action_limits(metadata, file_path.parent)
    fields = {
        "id": metadata["dataset_id"],
        "env": metadata.get("trimtab_env") or env_of_spec(metadata),
        "env_options": metadata.get("trimtab_env_options") or {},
        "control_rate": metadata.get("trimtab_control_rate"),
        "recipe": metadata.get("trimtab_recipe") or {},
        "fingerprint": metadata.get("trimtab_fingerprint"),
    }
    order = _chosen_keys(observation_keys(metadata), hints.get("keys", ""), file_path)
    episodes: Sequence[Episode]
    if "trimtab_file_sha256" in metadata:
        _check_untouched(metadata, file_path)
        episodes = _FileEpisodes(metadata, file_path)
    else:
        received = read_file(file_path, _packed, metadata, str(file_path), order)
        episodes = _unpacked(received)
    check = partial(_check_totals, metadata, file_path)
    return Contents(file_path, episodes, fields, limits, check)


load = loads(_open)


def _chosen_keys(there: tuple[str, ...], keys: str, path: Path) -> tuple[str, ...]:
    """Return the observation's parts in the order that they are wanted in."""
    wanted = tuple(key.strip() for key in keys.split(",") if key.strip())
    unknown = [key for key in wanted if key not in there]
    if unknown:
        parts = f"there are {', '.join(there)}" if there else "it is one vector"
        raise TrimtabError(
            f"dataset {path}: its observation has no part '{unknown[0]}'; {parts}; change keys="
        )
    return wanted or there


def data_file(folder: str | Path) -> Path:
    """Return the HDF5 file of the dataset in ``folder``.

    Raises:
        TrimtabError: if it is missing.
    """
    path = Path(folder) / "data" / DATA_FILE
    if not path.is_file():
        raise TrimtabError(f"dataset {path}: the file is missing; {_ADVICE}")
    return path


class _FileEpisodes(EpisodesOnAccess):
    """The episodes in a file that is known to be whole; in their order they are read fastest.

    Args:
        metadata: of the dataset.
        path: its file.
    """

    def __init__(self, metadata: Mapping[str, Any], path: Path) -> None:
        self._metadata, self._path = metadata, path

    def __len__(self) -> int:
        return int(self._metadata["total_episodes"])

    def __iter__(self) -> Iterator[Episode]:
        return _read_episodes(self._metadata, self._path, range(len(self)))

    def episode(self, number: int) -> Episode:
        """Read an episode."""
        (episode,) = _read_episodes(self._metadata, self._path, range(number, number + 1))
        return episode


def _read_episodes(
    metadata: Mapping[str, Any], path: Path, part: range, order: tuple[str, ...] = ()
) -> Iterator[Episode]:
    """Yield some of the episodes in ``path``, one in memory at a time.

    Raises:
        TrimtabError: if the file is damaged, or ``metadata`` says another number of episodes.
    """
    where, count = f"dataset {path}", len(part)
    for first in range(0, count, REOPEN):
        with opened(path) as file:
            if len(file) != metadata["total_episodes"]:
                raise TrimtabError(
                    f"{where}: {len(file)} episodes, but {METADATA_FILE} says "
                    f"{metadata['total_episodes']}; {_ADVICE}"
                )
            for index in part[first : first + REOPEN]:
                yield _read_episode(file, index, metadata, order, where)


def _check_totals(
    metadata: Mapping[str, Any], path: Path, num_steps: int, content_hash: str
) -> None:
    """Check what was read from ``path`` against what ``metadata`` says of the whole.

    Raises:
        TrimtabError: if the number of steps or the content hash differs.
    """
    where = f"dataset {path}"
    if num_steps != metadata["total_steps"]:
        raise TrimtabError(
            f"{where}: {num_steps} steps, but {METADATA_FILE} says "
            f"{metadata['total_steps']}; {_ADVICE}"
        )
    if metadata.get("trimtab_content_hash", content_hash) != content_hash:
        raise TrimtabError(f"{where}: the content differs from its stored hash; {_ADVICE}")


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace anything that is not a dataset of ours: it would be deleted."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TrimtabError(f"cannot write {folder}: a file is in its place; choose another folder")
    metadata = folder / "data" / METADATA_FILE
    if metadata.is_file() and PREFIX.encode() not in metadata.read_bytes():
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


def _write_episodes(file: h5py.File, dataset: Dataset) -> None:
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


def _check_untouched(metadata: Mapping[str, Any], path: Path) -> None:
    """Check the SHA-256 of the file ``path`` against the one that ``save`` stored.

    Raises:
        TrimtabError: if it is another one, or the file cannot be read.
    """
    try:
        actual = sha256_file(path)
    except OSError as error:
        raise TrimtabError(f"dataset {path}: not readable ({error})") from error
    if metadata["trimtab_file_sha256"] != actual:
        raise TrimtabError(
            f"dataset {path}: truncated or changed (its SHA-256 is not the one in "
            f"{METADATA_FILE}); {_ADVICE}"
        )


def _packed(file: h5py.File, metadata: Mapping[str, Any], path: str, order: Sequence[str]) -> Read:
    """Return episodes as what a process apart can hand over."""
    file.close()
    seeds: list[int | None] = []

    def arrays() -> Iterator[tuple[str, npt.NDArray[Any]]]:
        part = range(metadata["total_episodes"])
        for index, episode in enumerate(_read_episodes(metadata, Path(path), part, tuple(order))):
            seeds.append(episode.seed)
            for name, array in episode.arrays().items():
                yield f"{index}/{name}", array

    return {"seeds": seeds}, arrays()


def _unpacked(received: Received) -> LazyEpisodes:
    values, arrays = received
    keys: list[dict[str, Any]] = [{"infos": {}, "seed": seed} for seed in values["seeds"]]
    for place, array in arrays.items():
        index, _, name = place.partition("/")
        group, _, info = name.partition("/")
        if info:
            keys[int(index)][group][info] = array
        else:
            keys[int(index)][name] = array
    return LazyEpisodes(len(keys), lambda index: Episode(**keys[index]))


def _read_episode(
    file: h5py.File, index: int, metadata: Mapping[str, Any], order: tuple[str, ...], where: str
) -> Episode:
    place = f"{where}: episode {index}"
    group = child(file, f"episode_{index}", where)
    if not isinstance(group, h5py.Group):
        raise TrimtabError(f"{place}: not a group; {_ADVICE}")
    arrays = {}
    for key in ("actions", "rewards", "terminations", "truncations"):
        arrays[key] = read_array(child(group, key, place), f"{place}, key '{key}'")
    for key in ("terminations", "truncations"):
        if arrays[key].dtype != np.bool_ and not np.isin(arrays[key], (0, 1)).all():
            raise TrimtabError(f"{place}, key '{key}': values other than 0 and 1; {_ADVICE}")
    steps = len(arrays["rewards"]) if arrays["rewards"].ndim else 0
    if int(group.attrs.get("total_steps", steps)) != steps:
        raise TrimtabError(f"{place}: {steps} rewards, but total_steps says otherwise; {_ADVICE}")
    stored = child(group, "observations", place)
    observations = _read_observations(stored, observation_keys(metadata), order, place)
    seed = group.attrs.get("seed")
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused
        return Episode(
            observations=observations,
            infos=_read_infos(group, steps, place),
            seed=int(seed) if isinstance(seed, int | np.integer) else None,
            last_observed=last_observed(metadata, index),
            **arrays,
        )


def _read_observations(
    member: h5py.Group | h5py.Dataset, there: tuple[str, ...], order: tuple[str, ...], place: str
) -> npt.NDArray[Any]:
    place = f"{place}, key 'observations'"
    if isinstance(member, h5py.Dataset):
        return read_array(member, place)
    found = children(member, place)
    if not there or set(there) != set(found):
        raise TrimtabError(
            f"{place}: its arrays are not those of 'observation_space' in {METADATA_FILE}; "
            f"{_ADVICE}"
        )
    parts = [read_array(found[name], f"{place}, '{name}'") for name in order]
    if any(part.ndim != 2 or len(part) != len(parts[0]) for part in parts):
        raise TrimtabError(f"{place}: parts of shapes {[p.shape for p in parts]}; {_ADVICE}")
    return np.concatenate(parts, axis=1)


def _read_infos(group: h5py.Group, steps: int, place: str) -> dict[str, npt.NDArray[Any]]:
    """Return the infos that are one number or array a step; others (text, ragged) are left out."""
    if "infos" not in group:
        return {}
    member = child(group, "infos", place)
    if not isinstance(member, h5py.Group):
        raise TrimtabError(f"{place}, key 'infos': not a group; {_ADVICE}")
    infos = {}
    for name, stored in children(member, place).items():
        if stored.dtype.kind in "biuf" and stored.shape and stored.shape[0] in (steps, steps + 1):
            infos[name] = read_array(stored, f"{place}, key 'infos/{name}'")[-steps:]
    return infos


def _recognises(path: Path) -> bool:
    return (path / "data" / METADATA_FILE).is_file()


FORMAT = Format(
    name="minari",
    description="Minari's folder of HDF5 and JSON; what Trimtab makes and trains on",
    suffixes=("",),
    load=load,
    open=_open,
    recognises=_recognises,
    save=save,
    hints=frozenset({"env", "id", "mask", "keys"}),
)
