"""D4RL's HDF5: all transitions end to end, with ``terminals`` and ``timeouts``.

The layout and what its readers make of it: ``d4rl/offline_env.py`` and ``qlearning_dataset`` in
``d4rl/__init__.py``. Those readers pass over keys below ``metadata``, where ours are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats.hdf5 import (
    child,
    children,
    file_image,
    read_array,
    read_file,
    root_names,
)
from trimtab.datasets.formats.own import (
    Own,
    assemble,
    check_replaceable,
    common_infos,
    flag_ends,
    flags_of,
    parse,
    rows_of,
    text_of,
    uneven_infos,
    with_common_infos,
)
from trimtab.datasets.formats.registry import Format, Hints
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_FLAGS = ("terminals", "timeouts")
_DIMENSIONS = {"observations": 2, "next_observations": 2, "actions": 2, "rewards": 1}
_OPTIONAL = ("timeouts", "next_observations")
_TEXT = "metadata/trimtab/json"  # as bytes: HDF5 limits the length of an attribute
_TRUNCATIONS = "metadata/trimtab/truncations"
_ADVICE = "make the dataset again or fetch a fresh copy"


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a file of D4RL's layout, also one in chunks (``virtual/<int>``).

    An episode ends at a terminal or a timeout. Its final observation is ``next_observations`` where
    the file has them. Otherwise a row that ended by the clock has no known successor: the
    transition is dropped, as D4RL drops it, and its observation is the final one; so is the last
    row of the file. After a terminal the final observation has no effect and is repeated.

    Raises:
        TrimtabError: if anything is missing, damaged or of a wrong shape, or the file marks no
            timeouts and no ``horizon`` is given.
    """
    path = Path(path)
    where = f"dataset {path}"
    _, read = read_file(path, lambda file: ({}, _read(file, where)))
    arrays = {name: _column(name, array) for name, array in read.items()}
    for name, dimensions in _DIMENSIONS.items():
        if name in arrays and arrays[name].ndim != dimensions:
            raise TrimtabError(
                f"{where}, key '{name}': shape {arrays[name].shape} is not of {dimensions} "
                f"dimensions; {_ADVICE}"
            )
    rows = len(arrays["rewards"])
    for name in (*_REQUIRED, *(n for n in _OPTIONAL if n in arrays)):
        if arrays[name].ndim == 0 or len(arrays[name]) != rows or not rows:
            raise TrimtabError(
                f"{where}, key '{name}': shape {arrays[name].shape}, expected {rows} rows; "
                f"{_ADVICE}"
            )
    for name in _FLAGS:
        if name in arrays:
            arrays[name] = flags_of(arrays[name], f"{where}, key '{name}'")
    own = parse(arrays.pop(_TEXT).tobytes(), where) if _TEXT in arrays else None
    if own is not None:
        episodes = list(_own_episodes(arrays, own, where))
    else:
        episodes = list(_episodes(arrays, _ends(arrays, hints.get("horizon"), where)))
        kept = sum(len(episode) for episode in episodes)
        if kept < rows:
            logger.info("%s: %d of %d rows have no successor", where, rows - kept, rows)
    return assemble(path, episodes, own, hints, recipe={"imported": "d4rl"})


def _read(file: h5py.File, where: str) -> Arrays:
    chunks: list[h5py.Group] = [file]
    if "virtual" in file:
        inside = child(file, "virtual", where)
        numbers = sorted((name for name in inside if name.isdigit()), key=int)
        chunks = [child(inside, name, where) for name in numbers]
    found: list[Arrays] = []
    for chunk in chunks:
        names = [*_REQUIRED, *(name for name in _OPTIONAL if name in chunk)]
        arrays = {n: read_array(child(chunk, n, where), f"{where}, key '{n}'") for n in names}
        rows = arrays["rewards"].shape[:1]
        if "infos" in chunk and isinstance(infos := child(chunk, "infos", where), h5py.Group):
            for name, member in children(infos, where).items():
                if member.dtype.kind in "biuf" and member.shape[:1] == rows != ():
                    arrays[f"infos/{name}"] = read_array(member, f"{where}, key 'infos/{name}'")
        found.append(arrays)
    if not found:
        raise TrimtabError(f"{where}: no chunk in 'virtual'; {_ADVICE}")
    joined = {n: np.concatenate([a[n] for a in found]) for n in found[0]} if found[1:] else found[0]
    if _TEXT.split("/")[0] in file and _TEXT in file:
        for name in (_TEXT, _TRUNCATIONS):
            group: Any = file
            for part in name.split("/"):
                group = child(group, part, where)
            joined[name] = read_array(group, f"{where}, key '{name}'")
    return joined


def _column(key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``rewards`` and flags that are stored as ``[N, 1]`` as ``[N]``."""
    flat = key in ("rewards", *_FLAGS)
    return array[:, 0] if flat and array.ndim == 2 and array.shape[1] == 1 else array


def _ends(arrays: Arrays, horizon: int | None, where: str) -> npt.NDArray[np.bool_]:
    """Return the rows after which another episode begins."""
    terminals: npt.NDArray[np.bool_] = arrays["terminals"]
    if "timeouts" in arrays:
        ends = terminals | arrays["timeouts"]
    elif "next_observations" in arrays:
        ends = terminals.copy()
        following, observations = arrays["next_observations"], arrays["observations"]
        if following.shape != observations.shape:
            raise TrimtabError(f"{where}, key 'next_observations': other shape; {_ADVICE}")
        ends[:-1] |= (following[:-1] != observations[1:]).reshape(len(ends) - 1, -1).any(1)
    elif horizon:
        ends, begin = terminals.copy(), 0
        for end in [*np.flatnonzero(terminals).tolist(), len(terminals) - 1]:
            ends[begin + horizon - 1 : end + 1 : horizon] = True
            begin = end + 1
    else:
        raise TrimtabError(
            f"{where}: it has no 'timeouts', so that ends by the clock are not marked; give "
            "horizon=<steps of a whole episode>"
        )
    return ends


def _episodes(arrays: Arrays, ends: npt.NDArray[np.bool_]) -> Iterator[Episode]:
    observations, terminals = arrays["observations"], arrays["terminals"]
    following = arrays.get("next_observations")
    stops = np.flatnonzero(ends).tolist()
    if not stops or stops[-1] != len(ends) - 1:
        stops.append(len(ends) - 1)
    begin = 0
    for last in stops:
        final = following[last] if following is not None else observations[last]
        whole = following is not None or terminals[last]
        stop = last + 1 if whole else last  # the row that the clock ended has no successor
        if stop > begin:
            terminated = bool(terminals[last]) if whole else False
            yield _episode(
                arrays, begin, stop, final, flag_ends(stop - begin, terminated=terminated)
            )
        begin = last + 1


def _own_episodes(arrays: Arrays, own: Own, where: str) -> Iterator[Episode]:
    truncations, following = arrays.pop(_TRUNCATIONS), arrays.get("next_observations")
    if following is None or not sum(own["lengths"]) == len(arrays["rewards"]) == len(truncations):
        raise TrimtabError(f"{where}: not the rows that Trimtab saved; {_ADVICE}")
    begin = 0
    for length, seed in zip(own["lengths"], own["seeds"], strict=True):
        rows = slice(begin, begin + length)
        flags = (arrays["terminals"][rows], truncations[rows])
        final = following[begin + length - 1]
        yield _episode(arrays, begin, begin + length, final, flags, seed)
        begin += length


def _episode(
    arrays: Arrays,
    begin: int,
    stop: int,
    final: npt.NDArray[Any],
    flags: Any,
    seed: int | None = None,
) -> Episode:
    rows = slice(begin, stop)
    prefix = "infos/"
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused
        return Episode(
            observations=np.concatenate([arrays["observations"][rows], final[None]]),
            actions=arrays["actions"][rows],
            rewards=arrays["rewards"][rows],
            terminations=flags[0],
            truncations=flags[1],
            infos={
                n.removeprefix(prefix): a[rows] for n, a in arrays.items() if n.startswith(prefix)
            },
            seed=seed,
        )


def _save(dataset: Dataset, path: Path) -> None:
    """Write ``dataset`` as one file; the last row of an episode is its terminal or its timeout.

    Raises:
        TrimtabError: if the dataset is not valid, something else is in its place, or the disk
            refuses.
    """
    validate(dataset, f"dataset {dataset.id}")
    check_replaceable(path, _TEXT.rpartition("/")[0] in root_names(path))
    held = with_common_infos(dataset)
    text = text_of(held, lengths=[len(episode) for episode in held.episodes])
    terminals = rows_of(held, "terminations")
    last = np.cumsum([len(episode) for episode in held.episodes]) - 1
    timeouts = np.zeros_like(terminals)
    timeouts[last] = ~terminals[last]

    def write(file: h5py.File) -> None:
        file["observations"] = np.concatenate([e.observations[:-1] for e in held.episodes])
        file["next_observations"] = np.concatenate([e.observations[1:] for e in held.episodes])
        file["actions"], file["rewards"] = rows_of(held, "actions"), rows_of(held, "rewards")
        file["terminals"], file["timeouts"] = terminals, timeouts
        for name in common_infos(held)[0]:
            file.create_dataset(f"infos/{name}", data=rows_of(held, f"infos/{name}"))
        file.create_dataset(_TEXT, data=np.frombuffer(text.encode(), np.uint8))
        file.create_dataset(_TRUNCATIONS, data=rows_of(held, "truncations"))

    atomic_write_bytes(path, file_image(write))


def _recognises(path: Path) -> bool:
    names = root_names(path)
    return {"observations", "actions"} <= names or "virtual" in names


FORMAT = Format(
    name="d4rl",
    description="D4RL's HDF5 of transitions; read by d4rl and CORL",
    suffixes=(".hdf5", ".h5"),
    load=_load,
    recognises=_recognises,
    save=_save,
    loses=uneven_infos,
    hints=frozenset({"env", "id", "mask", "horizon"}),
)
