"""Minari's folders, read: those of this suite, and strangers' in a process apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Episode, EpisodesOnAccess
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, loads
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.minari.metadata import (
    DATA_FILE,
    METADATA_FILE,
    action_limits,
    env_of_spec,
    last_observed,
    observation_keys,
    observation_widths,
    read_metadata,
)
from trimtab.datasets.formats.naming import NAMES, numbered
from trimtab.datasets.io.hdf5 import REOPEN, child, children, opened, read_array, read_file
from trimtab.datasets.io.sandbox import Read, Received
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file

__all__ = ["data_file", "load", "open_folder"]

_ADVICE = "make the dataset again or fetch a fresh copy"


def open_folder(path: str | Path, **hints: Unpack[Hints]) -> Contents:
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
    if "trimtab_recipe" not in metadata and (widths := observation_widths(metadata)):
        names = numbered([(key.replace("/", "."), widths[key]) for key in order])
        fields["recipe"] = {NAMES: {"observation": names}}
    episodes: Sequence[Episode]
    if "trimtab_file_sha256" in metadata:
        _check_untouched(metadata, file_path)
        episodes = _FileEpisodes(metadata, file_path)
    else:
        received = read_file(file_path, _packed, metadata, str(file_path), order)
        episodes = _unpacked(received)
    check = partial(_check_totals, metadata, file_path)
    return Contents(file_path, episodes, fields, limits, check)


load = loads(open_folder)


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
