"""Minari's folders, read: those of this suite, and foreign ones in a separate process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Episode, EpisodesOnAccess
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, loads
from trimtab.datasets.formats.hints import Hints, wanted_keys
from trimtab.datasets.formats.minari.metadata import (
    DATA_FILE,
    METADATA_FILE,
    action_limits,
    env_of_spec,
    last_observed,
    observation_parts,
    read_metadata,
)
from trimtab.datasets.formats.minari.spaces import Part
from trimtab.datasets.formats.naming import NAMES, numbered
from trimtab.datasets.formats.own import check_no_end_inside, column_of, flags_of
from trimtab.datasets.io.hdf5 import (
    REOPEN,
    child,
    children,
    noted_number,
    opened,
    read_array,
    read_file,
)
from trimtab.datasets.io.sandbox import Read, Received
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file

__all__ = ["data_file", "load", "open_folder"]

logger = logging.getLogger(__name__)

_OURS = "trimtab_file_sha256"  # a key of the metadata that this suite wrote
_ROUNDING = 0.01  # of the rewards' sum, which may have been added up in any precision
_ADVICE = "make the dataset again or fetch a fresh copy"


def open_folder(path: str | Path, **hints: Unpack[Hints]) -> Contents:
    """Read the dataset in the folder ``path``, of this suite or of the ``minari`` package.

    A file of ours is compared with its SHA-256 before it is opened, and its content hash
    afterwards; a foreign one is opened in a separate process.

    Dict and Tuple observations are concatenated in the order of their space, flattened as Gymnasium
    does; the hint ``keys`` names some of their parts in another order
    (``observation,desired_goal``). Pictures and texts are left out. Infos of T+1 rows lose their
    first (the reset's).

    Raises:
        TrimtabError: if anything is missing, truncated, changed, of a wrong type or shape, NaN or
            infinite, the metadata and the arrays contradict each other, a step in the midst of a
            stranger's episode ends it, or there are no episodes; one line with the file, the
            episode and the key.
    """
    metadata = read_metadata(path)
    file_path = data_file(path)
    limits = action_limits(metadata, file_path.parent)
    fields = {
        "id": metadata["dataset_id"],
        "env": metadata.get("trimtab_env") or env_of_spec(metadata),
        "env_options": metadata.get("trimtab_env_options") or {},
        "control_rate": metadata.get("trimtab_control_rate"),
        "recipe": dict(metadata.get("trimtab_recipe") or {}),
        "fingerprint": metadata.get("trimtab_fingerprint"),
    }
    order, left_out = _chosen(metadata, wanted_keys(hints, f"dataset {path}"), f"dataset {path}")
    if left_out:
        fields["recipe"]["left_out"] = left_out
    if "trimtab_recipe" not in metadata and order != [""]:
        parts = {part.path: part for part in observation_parts(metadata, f"dataset {path}") or []}
        named = [(key.replace("/", "."), parts[key].width) for key in order]
        fields["recipe"][NAMES] = {"observation": numbered(named)}
    episodes: Sequence[Episode]
    if _OURS in metadata:
        _check_untouched(metadata, file_path)
        episodes = _FileEpisodes(metadata, file_path)
    else:
        received = read_file(file_path, _packed, metadata, str(file_path), order)
        episodes = _unpacked(received)
    check = partial(_check_totals, metadata, file_path)
    return Contents(file_path, episodes, fields, limits, check)


load = loads(open_folder)


def _chosen(
    metadata: Mapping[str, Any], wanted: list[str], where: str
) -> tuple[list[str], list[str]]:
    """Return the paths of the observation's parts, as they are wanted, and of what is no vector."""
    parts = observation_parts(metadata, where) or [Part("", ())]
    there = [part.path for part in parts if part.vector]
    left_out = [part.path or "observations" for part in parts if not part.vector]
    unknown = [key for key in wanted if key not in there]
    if unknown:
        vectors = f"there are {', '.join(there)}" if there != [""] else "it is one vector"
        raise TrimtabError(
            f"{where}: its observation has no part '{unknown[0]}'"
            f"{' that is a vector' * (unknown[0] in left_out)}; {vectors}; change keys="
        )
    if not there:
        raise TrimtabError(f"{where}: no vector to observe, only {', '.join(left_out)}")
    if left_out:
        logger.warning(
            "%s: left out, as not vectors: %s; read: %s (keys= takes some of these, in any order)",
            where, ", ".join(left_out), ", ".join(wanted or there),
        )  # fmt: skip
    return wanted or there, sorted(left_out)


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
        return map(_made, _read_episodes(self._metadata, self._path, range(len(self))))

    def episode(self, number: int) -> Episode:
        """Read an episode."""
        (read,) = _read_episodes(self._metadata, self._path, range(number, number + 1))
        return _made(read)


def _made(read: dict[str, Any]) -> Episode:
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused
        return Episode(**read)


def _read_episodes(
    metadata: Mapping[str, Any], path: Path, part: range, order: Sequence[str] = ("",)
) -> Iterator[dict[str, Any]]:
    """Yield what some of the episodes in ``path`` are made of, one in memory at a time.

    Raises:
        TrimtabError: if the file is damaged, or ``metadata`` says another number of episodes.
    """
    where, count = f"dataset {path}", len(part)
    parts = observation_parts(metadata, where)
    for first in range(0, count, REOPEN):
        with opened(path) as file:
            if len(file) != metadata["total_episodes"]:
                raise TrimtabError(
                    f"{where}: {len(file)} episodes, but {METADATA_FILE} says "
                    f"{metadata['total_episodes']}; {_ADVICE}"
                )
            for index in part[first : first + REOPEN]:
                yield _read_episode(file, index, metadata, parts, order, where)


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
    """Return episodes as what a separate process can hand over."""
    file.close()
    seeds: list[int | None] = []

    def arrays() -> Iterator[tuple[str, npt.NDArray[Any]]]:
        part = range(metadata["total_episodes"])
        for index, read in enumerate(_read_episodes(metadata, Path(path), part, order)):
            seeds.append(read.pop("seed"))
            infos = read.pop("infos")
            del read["last_observed"]
            for name, array in {**read, **{f"infos/{n}": a for n, a in infos.items()}}.items():
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
    return LazyEpisodes(len(keys), lambda index: _made(keys[index]))


def _read_episode(
    file: h5py.File,
    index: int,
    metadata: Mapping[str, Any],
    parts: Sequence[Part] | None,
    order: Sequence[str],
    where: str,
) -> dict[str, Any]:
    place = f"{where}: episode {index}"
    group = child(file, f"episode_{index}", where)
    if not isinstance(group, h5py.Group):
        raise TrimtabError(f"{place}: not a group; {_ADVICE}")
    arrays = {}
    for key in ("actions", "rewards", "terminations", "truncations"):
        arrays[key] = read_array(child(group, key, place), f"{place}, key '{key}'")
    arrays["rewards"] = column_of(arrays["rewards"])
    for key in ("terminations", "truncations"):
        arrays[key] = flags_of(arrays[key], f"{place}, key '{key}'")
        if _OURS not in metadata:
            check_no_end_inside(arrays[key], f"{place}, key '{key}'")
    _check_noted(group, index, arrays["rewards"], place)
    steps = len(arrays["rewards"])
    stored = child(group, "observations", place)
    seed = group.attrs.get("seed")
    return {
        "observations": _read_observations(stored, parts, order, place),
        **arrays,
        "infos": _read_infos(group, steps, place),
        "seed": int(seed) if isinstance(seed, int | np.integer) else None,
        "last_observed": last_observed(metadata, index),
    }


def _check_noted(group: h5py.Group, index: int, rewards: npt.NDArray[Any], place: str) -> None:
    """Check an episode's attributes against its arrays.

    Raises:
        TrimtabError: if they differ.
    """
    if rewards.ndim != 1:
        raise TrimtabError(f"{place}, key 'rewards': shape {rewards.shape} is not (T,); {_ADVICE}")
    for name, wanted in (("id", index), ("total_steps", len(rewards))):
        noted = noted_number(group, name, place)
        if noted not in (None, wanted):
            raise TrimtabError(f"{place}: its {name} is {noted:g}, expected {wanted}; {_ADVICE}")
    numbers = rewards.astype(np.float64)
    noted, total = noted_number(group, "rewards_sum", place), numbers.sum()
    near = noted is None or abs(noted - total) <= _ROUNDING * np.abs(numbers).sum() + 1e-6
    if np.isfinite(total) and not near:
        raise TrimtabError(
            f"{place}: its rewards_sum is {noted:g}, but the rewards' sum is {total:g}; {_ADVICE}"
        )


def _read_observations(
    member: h5py.Group | h5py.Dataset,
    parts: Sequence[Part] | None,
    order: Sequence[str],
    place: str,
) -> npt.NDArray[Any]:
    place = f"{place}, key 'observations'"
    found = {"": member} if isinstance(member, h5py.Dataset) else children(member, place)
    if parts is None and "" in found:
        return read_array(member, place)
    if {part.path for part in parts or ()} != set(found):
        raise TrimtabError(
            f"{place}: its arrays are not those of 'observation_space' in {METADATA_FILE}; "
            f"{_ADVICE}"
        )
    named = {part.path: part for part in parts or ()}
    rows = {name: f"{place}, '{name}'" if name else place for name in order}
    vectors = [named[name].rows(read_array(found[name], at), at) for name, at in rows.items()]
    if any(len(vector) != len(vectors[0]) for vector in vectors):
        counts = {name: len(vector) for name, vector in zip(order, vectors, strict=True)}
        raise TrimtabError(f"{place}: parts with other numbers of rows: {counts}; {_ADVICE}")
    return np.concatenate(vectors, axis=1)


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
